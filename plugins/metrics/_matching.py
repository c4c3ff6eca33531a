"""Similarity of images: correlation, structural similarity, and LPIPS with weights from a local file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import read_checkpoint
from compatkit.errors import DataError, IntegrityError, MissingDependency, UsageError

from ._singular import as_pictures

WINDOW, SIGMA = 11, 1.5
"""Side and standard deviation, in pixels, of SSIM's Gaussian window (Wang et al. 2004)."""
LPIPS_SIDE = 64
"""Images with a smaller side are enlarged to it, because AlexNet's last maps would be empty."""

Distance = Callable[[Tensor, Tensor], Tensor]


def pearson(image: Tensor, other: Tensor) -> Tensor:
    """Return the correlation of each image with each other one, ``(n, m)``; 0 for constant images.

    Args:
        image: ``(n, ...)``.
        other: ``(m, ...)``, with the same number of values per image.
    """
    left, right = (value.flatten(1).double() for value in (image, other))
    left, right = (value / _largest(value) for value in (left, right))  # normalize takes small norms for 0
    left, right = (value - value.mean(1, keepdim=True) for value in (left, right))
    return F.normalize(left, dim=1) @ F.normalize(right, dim=1).T


def _largest(values: Tensor) -> Tensor:
    """Return the largest absolute value of each row, 1 for rows of zeros, ``(n, 1)``."""
    largest = values.abs().amax(1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)


def ssim(image: Tensor, other: Tensor) -> Tensor:
    """Return the mean structural similarity of each image with each other one, ``(n, m)``.

    Source: Wang, Bovik, Sheikh, Simoncelli (2004), eq. 13: 11 x 11 Gaussian window with standard deviation 1.5, K 0.01
    and 0.03, only windows inside the image; mean over channels.

    Args:
        image: ``(n, channels, height, width)`` in [0, 1], sides of at least 11.
        other: ``(m, channels, height, width)`` in [0, 1].
    """
    left, right = image.double(), other.double()
    (a, aa), (b, bb) = ((_windowed(value), _windowed(value.square())) for value in (left, right))
    # One image at a time: products of all pairs at once would need too much memory.
    return torch.stack(
        [
            _similarity(a[index], b, aa[index], bb, _windowed(left[index] * right))
            for index in range(len(left))
        ]
    )


def _similarity(a: Tensor, b: Tensor, aa: Tensor, bb: Tensor, ab: Tensor) -> Tensor:
    """Return SSIM of one image with several, from windowed means of values, squares and products."""
    c1, c2 = 0.01**2, 0.03**2
    numerator = (2 * a * b + c1) * (2 * (ab - a * b) + c2)
    denominator = (a.square() + b.square() + c1) * (aa - a.square() + bb - b.square() + c2)
    return (numerator / denominator).flatten(1).mean(1)


def _windowed(pictures: Tensor) -> Tensor:
    offset = torch.arange(WINDOW, dtype=torch.float64, device=pictures.device) - WINDOW // 2
    weight = torch.exp(-offset.square() / (2 * SIGMA**2))
    weight = weight / weight.sum()
    channels = pictures.shape[1]
    rows = F.conv2d(pictures, weight.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(rows, weight.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels)


@lru_cache(maxsize=2)
def lpips(trunk: str, sha256: str) -> Distance:
    """Return a function for the LPIPS distances of images, with AlexNet weights from a local file.

    The linear weights come with the package ``lpips`` (version 0.1); nothing is downloaded.

    Args:
        trunk: State dict of torchvision's AlexNet, such as ``alexnet-owt-7be5be79.pth``; no code in it is run.
        sha256: SHA-256 of that file, 64 hexadecimal digits.

    Raises:
        MissingDependency: The package ``lpips`` is not installed.
        EnvironmentFailure: The file cannot be read.
        FormatError: The file contains no weights.
        IntegrityError: The file has another SHA-256.
    """
    try:
        import lpips as package  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependency(
            "LPIPS needs the package lpips: pip install 'compatkit[lpips]'. Leave lpips_trunk out for the scores that "
            "need no weights."
        ) from error
    read = read_checkpoint(trunk)
    digest = read.digest.rpartition(":")[2]
    if digest != sha256.lower():
        raise IntegrityError(
            f"{trunk}: expected sha256 {sha256}, got {digest}; LPIPS with other weights is another metric.",
            subject=trunk,
        )
    model = _model(package, read.tensors)

    def distance(image: Tensor, other: Tensor) -> Tensor:
        left, right = (_for_alexnet(value) for value in (image, other))
        with torch.no_grad():
            return torch.stack(
                [model(each[None].expand_as(right), right).flatten() for each in left]
            ).double()

    return distance


def _model(package: Any, weights: dict[str, Tensor]) -> Any:
    """Return LPIPS on AlexNet without download: the trunk is created empty and filled."""
    # The package uses deprecated calls of torchvision and torch.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = package.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    trunk = {name: value for name, value in weights.items() if name.startswith("features.")}
    convolutions = [
        convolution for convolution in model.net.modules() if isinstance(convolution, torch.nn.Conv2d)
    ]
    names = [name.removesuffix(".weight") for name in trunk if name.endswith(".weight")]
    names.sort(key=lambda name: int(name.removeprefix("features.")))
    shapes = [tuple(trunk[f"{name}.weight"].shape) for name in names]
    if shapes != [tuple(convolution.weight.shape) for convolution in convolutions]:
        raise UsageError(
            f"lpips_trunk is not a state dict of torchvision's AlexNet: its convolutions are {shapes}. Use "
            "alexnet-owt-7be5be79.pth."
        )
    with torch.no_grad():
        for name, convolution in zip(names, convolutions, strict=True):
            convolution.weight.copy_(trunk[f"{name}.weight"])
            convolution.bias.copy_(trunk[f"{name}.bias"])  # type: ignore[union-attr]
    return model


def _for_alexnet(pictures: Tensor) -> Tensor:
    """Return RGB in [-1, 1], enlarged if too small."""
    rgb = pictures.float().cpu().expand(-1, 3, -1, -1) if pictures.shape[1] == 1 else pictures.float().cpu()
    if min(rgb.shape[2:]) < LPIPS_SIDE:
        rgb = F.interpolate(rgb, size=(LPIPS_SIDE, LPIPS_SIDE), mode="bilinear", antialias=True)
    return rgb * 2 - 1


@attrs.frozen(eq=False)
class ImageMatch:
    """Scales images to [0, 1] and finds the nearest one to each vector.

    Attributes:
        image_range: Lowest and highest possible value of an image, numbers or one per channel.
        trunk: File of AlexNet's weights, for LPIPS.
        sha256: SHA-256 of that file.

    Raises:
        UsageError: The range is invalid, or the file is not the named one.
    """

    image_range: Sequence[Any]
    trunk: str | None = None
    sha256: str | None = None

    def __attrs_post_init__(self) -> None:
        try:
            low, high = self._bounds()
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"singular_features: image_range is two numbers, such as (0, 1), or two lists with one for each "
                f"channel; got {self.image_range!r}."
            ) from error
        if not bool((low < high).all()):
            raise UsageError(
                f"singular_features: image_range is the lowest and the highest value of an image, or of each "
                f"channel; got {self.image_range!r}."
            )
        if self.trunk is not None:
            lpips(self.trunk, str(self.sha256))

    def _bounds(self) -> tuple[Tensor, Tensor]:
        low, high = (torch.as_tensor(bound, dtype=torch.float64).view(-1, 1, 1) for bound in self.image_range)
        return low, high

    def scaled(self, images: Tensor) -> Tensor:
        """Return images scaled to [0, 1].

        Raises:
            DataError: A value is outside the range.
        """
        low, high = (bound.to(images.device) for bound in self._bounds())
        scaled = (images.double() - low) / (high - low)
        if images.dim() != 4 or bool((scaled < -1e-3).any()) or bool((scaled > 1 + 1e-3).any()):
            raise DataError(
                f"singular_features: images of shape {tuple(images.shape)} hold values from {float(images.min()):.4g} "
                f"to {float(images.max()):.4g}, and image_range declares {self.image_range!r}. Declare the range of "
                "images as the network takes them, after normalization."
            )
        return scaled.clamp(0, 1)

    def nearest(self, layer: nn.Module, vectors: Tensor, pictures: Tensor) -> dict[str, Tensor]:
        """Return the similarity of each vector to its nearest image, by score, over both signs; larger is nearer.

        Args:
            layer: Compared only if its input is whole images.
            vectors: One per row, ``(n, in)``.
            pictures: Result of ``scaled``, ``(batch, channels, height, width)``.

        Returns:
            Scores by name, ``(n,)`` each.
        """
        if not isinstance(layer, nn.Linear) or layer.in_features != pictures[0].numel():
            return {}
        both = [as_pictures(sign * vectors, pictures.shape[1:]) for sign in (1, -1)]
        scores = {"pearson": pearson(both[0], pictures).abs().amax(1)}
        if min(pictures.shape[2:]) >= WINDOW:
            scores["ssim"] = -torch.stack([1 - ssim(signed, pictures) for signed in both]).amin((0, 2))
        if self.trunk is not None:
            distance = lpips(self.trunk, str(self.sha256))
            scores["lpips"] = -torch.stack([distance(signed, pictures) for signed in both]).amin((0, 2))
        return scores
