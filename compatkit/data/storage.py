"""Storage of a split's images: an array in memory (``ResidentImages``), or files (``LazyImages``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.lazy import (
    Channels,
    ImageResize,
    Shrink,
    Step,
    apply_steps,
    as_image,
    pixels_of,
)
from compatkit.data.transforms import Floats, Images, Shift, Size, chunks, histogram, mapped, resized, shifted
from compatkit.foundation.bars import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 2**14
"""Pixels of the longest side up to which images in memory are resized by matrices."""
LUMA = np.array([[0.299], [0.587], [0.114]], dtype=np.float32)
"""Weights of red, green and blue in gray (ITU-R BT.601, as in Pillow)."""


@attrs.frozen(eq=False)
class ResidentImages:
    """Images in an array; the methods are those of ``LazyImages``.

    Attributes:
        array: uint8 ``(n, h, w, c)``.
    """

    array: Images

    @property
    def size(self) -> Size:
        """Height and width."""
        return self.array.shape[1], self.array.shape[2]

    @property
    def channels(self) -> Channels:
        """See ``LazyImages``."""
        return "L" if self.array.shape[3] == 1 else "RGB"

    def image(self, position: int) -> Image:
        """See ``LazyImages``."""
        return as_image(self.array[position])

    def name_in(self, split: str, position: int) -> str:
        """Return a name with the image's number."""
        return f"image {position} of {split}"

    def read(self, positions: Iterable[int] | NDArray[np.int64]) -> Images:
        """See ``LazyImages``."""
        return self.array[np.asarray(positions, dtype=np.int64)]

    def digests(self, progress: Progress | None = None) -> NDArray[np.void]:
        """See ``LazyImages``; reports no progress, as it is fast."""
        digests = (hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in self.array)
        return np.frombuffer(b"".join(digests), dtype="V16")

    def hashed(self, digests: Callable[[], NDArray[np.void]]) -> tuple[str, dict[str, Any], Any]:
        """See ``LazyImages``; covers the pixels."""
        return "sha256", {"shape": list(self.array.shape)}, np.ascontiguousarray(self.array).data

    def histogram(self) -> NDArray[np.int64]:
        """See ``LazyImages``; covers all pixels."""
        return np.sum([histogram(self.array[chunk]) for chunk in chunks(self.array)], axis=0)

    def take(self, positions: NDArray[np.int64]) -> Images:
        """See ``LazyImages``."""
        return self.array[positions]

    def apply(self, step: Step) -> Images:
        """See ``LazyImages``; ``Shrink`` changes nothing. Very long images are resized by Pillow, to save memory."""
        if isinstance(step, ImageResize):
            if max(self.size) > MAX_SIDE:
                return np.stack([pixels_of(apply_steps(as_image(image), [step])) for image in self.array])
            return resized(self.array, step.size, step.interpolation, step.crop_pct, step.crop_mode)
        if isinstance(step, Shift):
            return shifted(self.array, step)
        if isinstance(step, Shrink):
            return self.array
        if step == "RGB":
            return np.repeat(self.array, 3, axis=3)
        return mapped(self.array, (*self.size, 1), _gray)


def _gray(values: Floats) -> Floats:
    return cast("Floats", values @ LUMA)
