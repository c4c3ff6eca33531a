"""From stored images to what an extractor takes: channels, size, scale, by its own contract."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from compatkit.contract import Data
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.data.dataset import Split

WHITE = 255.0


@attrs.frozen(eq=False)
class Prepared:
    """Images in the size and channels that a component takes, not yet normalised.

    Attributes:
        images: uint8 ``(n, channels, height, width)``, contiguous.
        labels: Class indices of the split, int64 ``(n,)``.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def to(self, device: str | torch.device) -> Prepared:
        """Return the same on ``device``."""
        return Prepared(self.images.to(device), self.labels.to(device))


def prepare(split: Split, data: Data) -> Prepared:
    """Bring a split into the channels, then the size, that ``data`` asks for: resized, and cut out of the middle.

    Args:
        split: Any images; grey and colour are converted into each other.
        data: Size, channels, interpolation and crop, from a component's contract.

    Raises:
        DataError: The interpolation is not known, or the share that the crop keeps is not above 0.
    """
    fitting = split.converted(data.channels).resized(
        data.size, interpolation=data.interpolation, crop_pct=data.crop_pct, crop_mode=data.crop_mode
    )
    images = torch.from_numpy(fitting.images).permute(0, 3, 1, 2).contiguous()
    return Prepared(images, torch.from_numpy(fitting.labels).to(torch.int64))


def normalise(
    images: Tensor,
    data: Data,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return ``(images / 255 - mean) / std`` per channel.

    Args:
        images: uint8 ``(n, channels, height, width)``.
        data: Mean and standard deviation on the scale 0 to 1, from a component's contract.
        device: Where to compute; None stays where the images are.
        dtype: Of the result.

    Raises:
        DataError: Channels of images, mean and standard deviation differ, or a standard deviation is not
            above 0.
    """
    target = torch.device(device) if device is not None else images.device
    if not images.shape[1] == len(data.mean) == len(data.std):
        raise DataError(
            f"The images have {images.shape[1]} channels; the contract gives {len(data.mean)} means and "
            f"{len(data.std)} standard deviations. Prepare the images with the same contract."
        )
    scale, shift = _affine(data.mean, data.std, target, dtype)
    return torch.addcmul(shift, images.to(target).to(dtype), scale)


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of (x / 255 - mean) / std = x / (255 std) - mean / std, each (1, c, 1, 1)."""
    if not all(one > 0 for one in std):
        raise DataError(f"Standard deviations must be above 0 to divide by them, got {std}.")
    with torch.inference_mode(False):
        scale = torch.tensor([1 / (WHITE * one) for one in std], dtype=torch.float64)
        shift = torch.tensor([-one / by for one, by in zip(mean, std, strict=True)], dtype=torch.float64)
        return (
            scale.to(dtype).to(device).view(1, -1, 1, 1),
            shift.to(dtype).to(device).view(1, -1, 1, 1),
        )
