"""Convert images in common forms to what an extractor takes: channels, size and scale of its contract."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from torch import Tensor

from compatkit.contracts.ports import size_text
from compatkit.data.lazy import ImageResize, LazyImages, apply_steps, pixels_of
from compatkit.data.split import NO_CLASSES, Split
from compatkit.errors import DataError, TooCostly

if TYPE_CHECKING:
    from PIL.Image import Image

    from compatkit.contracts.contract import Data
    from compatkit.data.transforms import Images

LARGEST_SET = 2**34
"""Bytes of images that are held in memory at the size of a contract, which may be a stranger's."""
WHITE = 255.0


@attrs.frozen(eq=False)
class Prepared:
    """Images with the size and channels that a component takes, not yet normalized.

    Attributes:
        stored: uint8 ``(n, channels, height, width)``, contiguous; or images that are read when they are asked for.
        labels: Class indices of the split, int64 ``(n,)``.
    """

    stored: Tensor | LazyImages
    labels: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def images(self) -> Tensor:
        """All images, uint8 ``(n, channels, height, width)``."""
        return self.batch(torch.arange(len(self))) if isinstance(self.stored, LazyImages) else self.stored

    def batch(self, positions: Tensor) -> Tensor:
        """Return images at ``positions``, uint8 ``(batch, channels, height, width)``."""
        if isinstance(self.stored, LazyImages):
            return _planes(self.stored.read(positions.tolist()))
        return self.stored[positions]

    def each(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the batches at ``parts``; of images in files, the next one is read while a batch is used.

        Yields:
            uint8 ``(batch, channels, height, width)``.
        """
        if not isinstance(self.stored, LazyImages):
            yield from map(self.batch, parts)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="next-batch") as reading:
            upcoming: Future[Tensor] | None = None
            for part in parts:
                following = reading.submit(self.batch, part)
                if upcoming is not None:
                    yield upcoming.result()
                upcoming = following
            if upcoming is not None:
                yield upcoming.result()


def fitting(split: Split, data: Data) -> Split:
    """Convert a split to the channels, then the size, of ``data``: resize and center-crop.

    Args:
        split: Any images; gray and color are converted into each other.
        data: Size, channels, interpolation and crop, from a component's contract.

    Raises:
        DataError: The interpolation is unknown, or the crop share is not above 0.
        TooCostly: Images in memory would take more than ``LARGEST_SET`` bytes.
    """
    if not isinstance(split.images, LazyImages):
        needed = len(split) * math.prod(data.size) * len(data.mean)
        if needed > max(LARGEST_SET, split.images.nbytes):
            raise TooCostly(
                f"{len(split):,} images take {needed:,} bytes at the contract's size {size_text(data.size)}; the limit "
                f"in memory is {LARGEST_SET:,}. Use fewer, or images in files, which are read one by one.",
                subject=split.name,
            )
    return split.converted(data.channels).resized(
        data.size, interpolation=data.interpolation, crop_pct=data.crop_pct, crop_mode=data.crop_mode
    )


def covering(split: Split, data: Data) -> Split:
    """Return images of their own sizes in the one from which ``fitting`` cuts the middle; others as they are.

    Args:
        split: Images.
        data: Preprocessing of a contract.
    """
    if split.size is not None:
        return split
    height, width = (math.floor(side / data.crop_pct) for side in data.size)
    return split.resized((height, width), interpolation=data.interpolation, crop_mode=data.crop_mode)


def prepare(split: Split, data: Data) -> Prepared:
    """Return a split as tensors, with the channels and size of ``data``; see ``fitting``.

    Args:
        split: Images and labels.
        data: Preprocessing of a contract.
    """
    fitted = fitting(split, data)
    pixels = fitted.images if isinstance(fitted.images, LazyImages) else _planes(fitted.images)
    return Prepared(pixels, torch.from_numpy(fitted.labels).to(torch.int64))


def fitted(image: Image | Images, data: Data) -> Tensor:
    """Return one image, or an array of them, with the channels and size of ``data``, as ``fitting`` brings them there.

    Args:
        image: A Pillow image of mode ``"RGB"``, or uint8 ``(n, height, width, 1 or 3)``.
        data: Preprocessing of a contract.

    Returns:
        uint8 ``(n, channels, height, width)``.
    """
    if isinstance(image, np.ndarray):
        return prepare(Split(image, np.zeros(len(image), dtype=np.int64), NO_CLASSES, "images"), data).images
    resize = ImageResize(data.size, data.interpolation, data.crop_pct, data.crop_mode)
    return _planes(pixels_of(apply_steps(image, (data.channels, resize)))[None])


def _planes(images: Images) -> Tensor:
    writable = images if images.flags.writeable else images.copy()  # Pillow gives out its own memory
    return torch.from_numpy(writable).permute(0, 3, 1, 2).contiguous()


def normalize(
    images: Tensor,
    data: Data,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return ``(images / 255 - mean) / std`` per channel, in the memory layout of the images.

    Args:
        images: uint8 ``(n, channels, height, width)``.
        data: Mean and standard deviation on the scale 0 to 1, from a component's contract.
        device: Device to compute on; None for the device of the images.
        dtype: Dtype of the result.

    Returns:
        ``(n, channels, height, width)``.

    Raises:
        DataError: The numbers of channels of images, mean and standard deviation differ.
    """
    channels = images.shape[1]
    if not channels == len(data.mean) == len(data.std):
        means, stds = len(data.mean), len(data.std)
        raise DataError(
            f"The images have {channels} channels; the contract has {means} means and {stds} stds."
        )
    pixels = images.to(device).to(dtype, copy=True)  # transfer bytes, then convert
    if channels > 1 and pixels.is_contiguous(memory_format=torch.channels_last):
        # Full rows at once: three channels are too few for an efficient inner loop.
        rows = pixels.permute(0, 2, 3, 1).view(*images.shape[0:4:2], -1)
        scale, shift = affine(data.mean, data.std, pixels.device, dtype, images.shape[3])
        torch.addcmul(shift, rows, scale, out=rows)
        return pixels
    scale, shift = affine(data.mean, data.std, pixels.device, dtype, 0)
    return torch.addcmul(shift, pixels, scale, out=pixels)


@lru_cache(maxsize=64)
def affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype, width: int
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of (x / 255 - mean) / std = x / (255 std) - mean / std.

    Each is ``(1, channels, 1, 1)``, or ``(width * channels,)`` for a row of pixels if ``width`` is not 0.

    Args:
        mean: Mean of each channel, on the scale 0 to 1.
        std: Standard deviation of each channel, on the same scale.
        device: Device of the result.
        dtype: Dtype of the result.
        width: Pixels of a row, or 0.

    Returns:
        Scale and shift.
    """
    with torch.inference_mode(False):
        scale = torch.tensor([1 / (WHITE * deviation) for deviation in std], dtype=torch.float64)
        shifts = [-middle / deviation for middle, deviation in zip(mean, std, strict=True)]
        shift = torch.tensor(shifts, dtype=torch.float64)
        both = scale.to(dtype).to(device), shift.to(dtype).to(device)
        if width:
            return both[0].repeat(width), both[1].repeat(width)
        return both[0].view(1, -1, 1, 1), both[1].view(1, -1, 1, 1)
