"""From stored images to what an extractor takes: channels, size, scale, by its own contract."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from compatkit.contracts.contract import Data
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


def fitting(split: Split, data: Data) -> Split:
    """Bring a split into the channels, then the size, that ``data`` asks for: resized, and cut out of the middle.

    Args:
        split: Any images; grey and colour are converted into each other.
        data: Size, channels, interpolation and crop, from a component's contract.

    Raises:
        DataError: The interpolation is not known, or the share that the crop keeps is not above 0.
    """
    return split.converted(data.channels).resized(
        data.size, interpolation=data.interpolation, crop_pct=data.crop_pct, crop_mode=data.crop_mode
    )


def prepare(split: Split, data: Data) -> Prepared:
    """Return a split as tensors, in the channels and size that ``data`` asks for; see ``fitting``."""
    brought = fitting(split, data)
    images = torch.from_numpy(brought.images).permute(0, 3, 1, 2).contiguous()
    return Prepared(images, torch.from_numpy(brought.labels).to(torch.int64))


def normalise(
    images: Tensor,
    data: Data,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return ``(images / 255 - mean) / std`` per channel, laid out in memory as the images are.

    Args:
        images: uint8 ``(n, channels, height, width)``.
        data: Mean and standard deviation on the scale 0 to 1, from a component's contract.
        device: Where to compute; None stays where the images are.
        dtype: Of the result.

    Raises:
        DataError: Channels of images, mean and standard deviation differ, or a standard deviation is not
            above 0.
    """
    channels = images.shape[1]
    if not channels == len(data.mean) == len(data.std):
        raise DataError(
            f"The images have {channels} channels; the contract gives {len(data.mean)} means and "
            f"{len(data.std)} standard deviations. Prepare the images with the same contract."
        )
    pixels = images.to(device).to(dtype, copy=True)  # bytes are what is sent to another device
    if channels > 1 and pixels.is_contiguous(memory_format=torch.channels_last):
        # Whole rows at once: three numbers are too few for the inner loop of an operation.
        rows = pixels.permute(0, 2, 3, 1).view(*images.shape[0:4:2], -1)
        scale, shift = affine(data.mean, data.std, pixels.device, dtype, images.shape[3])
        torch.addcmul(shift, rows, scale, out=rows)
        return pixels
    scale, shift = affine(data.mean, data.std, pixels.device, dtype, 0)
    return torch.addcmul(shift, pixels, scale, out=pixels)


@lru_cache(maxsize=64)
def affine(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: torch.device,
    dtype: torch.dtype,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of (x / 255 - mean) / std = x / (255 std) - mean / std.

    Each is ``(1, channels, 1, 1)``; with a width ``(width * channels,)``, for a row of pixels.

    Raises:
        DataError: A standard deviation is not above 0.
    """
    if not all(one > 0 for one in std):
        raise DataError(f"Standard deviations must be above 0 to divide by them, got {std}.")
    with torch.inference_mode(False):
        scale = torch.tensor([1 / (WHITE * one) for one in std], dtype=torch.float64)
        shift = torch.tensor([-one / by for one, by in zip(mean, std, strict=True)], dtype=torch.float64)
        both = scale.to(dtype).to(device), shift.to(dtype).to(device)
        return (
            (both[0].repeat(width), both[1].repeat(width))
            if width
            else (both[0].view(1, -1, 1, 1), both[1].view(1, -1, 1, 1))
        )
