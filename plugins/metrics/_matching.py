"""How near pictures come to each other: correlation, structural similarity, LPIPS with weights from a local file."""

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
"""Side and deviation of SSIM's Gaussian window (Wang et al. 2004)."""
LPIPS_SIDE = 64
"""Images with a smaller side are enlarged to it: AlexNet's last maps would be empty."""

Distance = Callable[[Tensor, Tensor], Tensor]


def pearson(one: Tensor, other: Tensor) -> Tensor:
    """Return the correlation of every picture with every other, ``(n, m)``; 0 where a picture is of one value.

    Args:
        one: ``(n, ...)``.
        other: ``(m, ...)``, as many values in each.
    """
    left, right = (value.flatten(1).double() for value in (one, other))
    left, right = (value - value.mean(1, keepdim=True) for value in (left, right))
    return F.normalize(left, dim=1) @ F.normalize(right, dim=1).T


def ssim(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean structural similarity of every picture with every other, ``(n, m)``.

    Wang, Bovik, Sheikh, Simoncelli (2004), eq. 13: Gaussian window 11 x 11 of deviation 1.5, K 0.01 and 0.03, where the
    window lies inside the picture; mean over channels.

    Args:
        one: ``(n, channels, height, width)`` in [0, 1], sides of 11 at least.
        other: ``(m, channels, height, width)`` in [0, 1].
    """
    left, right = one.double(), other.double()
    (a, aa), (b, bb) = ((_windowed(value), _windowed(value.square())) for value in (left, right))
    # One picture after the other: all products at once would be as many images as there are pairs.
    return torch.stack(
        [
            _similarity(a[place], b, aa[place], bb, _windowed(left[place] * right))
            for place in range(len(left))
        ]
    )


def _similarity(a: Tensor, b: Tensor, aa: Tensor, bb: Tensor, ab: Tensor) -> Tensor:
    """Return SSIM of one picture with several, from windowed means of values, squares and products."""
    c1, c2 = 0.01**2, 0.03**2
    alike = (2 * a * b + c1) * (2 * (ab - a * b) + c2)
    apart = (a.square() + b.square() + c1) * (aa - a.square() + bb - b.square() + c2)
    return (alike / apart).flatten(1).mean(1)


def _windowed(pictures: Tensor) -> Tensor:
    place = torch.arange(WINDOW, dtype=torch.float64, device=pictures.device) - WINDOW // 2
    weight = torch.exp(-place.square() / (2 * SIGMA**2))
    weight = weight / weight.sum()
    channels = pictures.shape[1]
    rows = F.conv2d(pictures, weight.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(rows, weight.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels)


@lru_cache(maxsize=2)
def lpips(trunk: str, sha256: str) -> Distance:
    """Return the LPIPS distance of every picture to every other, with AlexNet weights from a local file.

    The linear weights are those of the package ``lpips`` (version 0.1); nothing is downloaded.

    Args:
        trunk: State dict of torchvision's AlexNet, as ``alexnet-owt-7be5be79.pth`` holds it; no code in it is run.
        sha256: Of that file, 64 hexadecimal digits.

    Raises:
        MissingDependency: The package ``lpips`` is not installed.
        EnvironmentFailure: The file cannot be read.
        FormatError: It holds no weights.
        IntegrityError: It is another file.
    """
    try:
        import lpips as package  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependency(
            "LPIPS needs the package lpips: pip install 'compatkit[lpips]'. Leave lpips_trunk out for the scores that "
            "need no weights."
        ) from error
    read = read_checkpoint(trunk)
    found = read.digest.rpartition(":")[2]
    if found != sha256.lower():
        raise IntegrityError(
            f"{trunk} has the sha256 {found}, and {sha256} was asked for: LPIPS of other weights is another metric.",
            subject=trunk,
        )
    model = _model(package, read.tensors)

    def distance(one: Tensor, other: Tensor) -> Tensor:
        left, right = (_for_alexnet(value) for value in (one, other))
        with torch.no_grad():
            return torch.stack(
                [model(each[None].expand_as(right), right).flatten() for each in left]
            ).double()

    return distance


def _model(package: Any, weights: dict[str, Tensor]) -> Any:
    """Return LPIPS on AlexNet without its download: the trunk is made empty, and filled."""
    # The package calls torchvision, and torch's reader for its own linear weights, as they were called once.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = package.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    trunk = {name: value for name, value in weights.items() if name.startswith("features.")}
    held = [one for one in model.net.modules() if isinstance(one, torch.nn.Conv2d)]
    names = [name.removesuffix(".weight") for name in trunk if name.endswith(".weight")]
    names.sort(key=lambda name: int(name.removeprefix("features.")))
    shapes = [tuple(trunk[f"{name}.weight"].shape) for name in names]
    if shapes != [tuple(one.weight.shape) for one in held]:
        raise UsageError(
            f"lpips_trunk is no state dict of torchvision's AlexNet: its convolutions are {shapes}. Give "
            "alexnet-owt-7be5be79.pth."
        )
    with torch.no_grad():
        for name, one in zip(names, held, strict=True):
            one.weight.copy_(trunk[f"{name}.weight"])
            one.bias.copy_(trunk[f"{name}.bias"])  # type: ignore[union-attr]
    return model


def _for_alexnet(pictures: Tensor) -> Tensor:
    """Return RGB in [-1, 1], enlarged where it is too small."""
    rgb = pictures.float().cpu().expand(-1, 3, -1, -1) if pictures.shape[1] == 1 else pictures.float().cpu()
    if min(rgb.shape[2:]) < LPIPS_SIDE:
        rgb = F.interpolate(rgb, size=(LPIPS_SIDE, LPIPS_SIDE), mode="bilinear", antialias=True)
    return rgb * 2 - 1


@attrs.frozen(eq=False)
class ImageMatch:
    """Images as pictures on the scale 0 to 1, to find the nearest one to a vector.

    Attributes:
        image_range: Lowest and highest value that an image may have, numbers or one a channel.
        trunk: File of AlexNet's weights, for LPIPS.
        sha256: Of that file.

    Raises:
        UsageError: The range is none, or the file is not the one that is named.
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
        low, high = (torch.as_tensor(one, dtype=torch.float64).view(-1, 1, 1) for one in self.image_range)
        return low, high

    def scaled(self, images: Tensor) -> Tensor:
        """Return images on the scale 0 to 1.

        Raises:
            DataError: A value is outside the range.
        """
        low, high = (one.to(images.device) for one in self._bounds())
        scaled = (images.double() - low) / (high - low)
        if images.dim() != 4 or bool((scaled < -1e-3).any()) or bool((scaled > 1 + 1e-3).any()):
            raise DataError(
                f"singular_features: images of shape {tuple(images.shape)} hold values from {float(images.min()):.4g} "
                f"to {float(images.max()):.4g}, and image_range declares {self.image_range!r}. Declare the range of "
                "images as the network takes them, after normalisation."
            )
        return scaled.clamp(0, 1)

    def nearest(self, layer: nn.Module, vectors: Tensor, pictures: Tensor) -> dict[str, Tensor]:
        """Return by score how near the nearest picture is to each vector, larger is nearer, over both signs.

        Args:
            layer: Compared where it takes whole images.
            vectors: One a row, ``(n, in)``.
            pictures: From ``scaled``, ``(batch, channels, height, width)``.
        """
        if not isinstance(layer, nn.Linear) or layer.in_features != pictures[0].numel():
            return {}
        both = [as_pictures(sign * vectors, pictures.shape[1:]) for sign in (1, -1)]
        found = {"pearson": pearson(both[0], pictures).abs().amax(1)}
        if min(pictures.shape[2:]) >= WINDOW:
            found["ssim"] = -torch.stack([1 - ssim(one, pictures) for one in both]).amin((0, 2))
        if self.trunk is not None:
            distance = lpips(self.trunk, str(self.sha256))
            found["lpips"] = -torch.stack([distance(one, pictures) for one in both]).amin((0, 2))
        return found
