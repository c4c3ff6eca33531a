"""Images that stay in their files and are read on demand: files of a folder, members of an archive.

One rule brings every file to 8-bit RGB (``decoding``). Gray is a step after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.decoding import decoded
from compatkit.data.transforms import (
    CropMode,
    Images,
    Shift,
    Size,
    check_hue,
    histogram,
    scaled_size,
    shifted,
)
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

if TYPE_CHECKING:
    from PIL.Image import Image

Channels = Literal["L", "RGB"]
LARGEST_SCALED = 2**24
"""Pixels that an image may be scaled up to before the middle is cut out: a line of pixels would become billions."""
SAMPLE = 1000
"""Images whose pixels give mean and standard deviation."""


class Reader(Protocol):
    """Where encoded images are."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def read(self, position: int) -> bytes:
        """Return the bytes of an encoded image.

        Raises:
            DataError: They are not there any more.
            EnvironmentFailure: The system does not let them be read.
        """
        ...

    def name(self, position: int) -> str:
        """Return what an image is called in messages."""
        ...

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """Return a digest of each image's bytes, 16 bytes long.

        Args:
            positions: Of images, int64.
            progress: Told of the images that are hashed.
        """
        ...


@attrs.frozen
class ImageResize:
    """A resize as ``Split.resized`` does it."""

    size: Size
    interpolation: str
    crop_pct: float
    crop_mode: CropMode


@attrs.frozen
class Shrink:
    """A resize to the size from which evaluation cuts, the proportions kept and nothing cut; small images stay."""

    size: Size
    interpolation: str
    crop_pct: float


Change = ImageResize | Shrink | Shift | Channels
STATED = {ImageResize: "resize", Shrink: "shrink", Shift: "shift"}
"""What a change is called in the digest of a split, which must outlive the names of classes."""


@attrs.frozen(eq=False)
class LazyImages:
    """Images of a reader, and what is done to each when it is read.

    Attributes:
        reader: Where they are.
        positions: Which, int64 ``(n,)``.
        steps: What is done to the 8-bit RGB images, in order; ``"L"`` and ``"RGB"`` convert.
        verified: Whether a split's digest is over the bytes of the files; else over their names, sizes and times, which
            the reader's ``states`` gives.
    """

    reader: Reader
    positions: NDArray[np.int64]
    steps: tuple[Change, ...] = ()
    verified: bool = True

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> Size | None:
        """Height and width; None where images have sizes of their own."""
        return next((step.size for step in reversed(self.steps) if isinstance(step, ImageResize)), None)

    @property
    def channels(self) -> Channels:
        """``"L"`` for gray images, ``"RGB"`` for colored ones."""
        converted: list[Channels] = [
            step for step in self.steps if not isinstance(step, ImageResize | Shrink | Shift)
        ]
        return converted[-1] if converted else "RGB"

    @property
    def stated(self) -> list[Any]:
        """The steps as JSON values."""
        return [
            step if isinstance(step, str) else [STATED[type(step)], *attrs.astuple(step)]
            for step in self.steps
        ]

    def take(self, positions: NDArray[np.int64]) -> LazyImages:
        """Return some of them."""
        return attrs.evolve(self, positions=self.positions[positions])

    def resized(self, step: ImageResize) -> LazyImages:
        """Return them at a size."""
        return self._then(step)

    def shrunk(self, step: Shrink) -> LazyImages:
        """Return them scaled down."""
        return self._then(step)

    def converted(self, channels: Channels) -> LazyImages:
        """Return them in other channels."""
        return self._then(channels)

    def shifted(self, shift: Shift) -> LazyImages:
        """Return them shifted in color and blur.

        Raises:
            DataError: A hue is to be rotated in gray images.
        """
        check_hue(shift, self.channels)
        return self if shift == Shift() else self._then(shift)

    def _then(self, step: Change) -> LazyImages:
        return attrs.evolve(self, steps=(*self.steps, step))

    def name_in(self, split: str, position: int) -> str:
        """Return the file of an image, or what its reader calls it."""
        return self.reader.name(int(self.positions[position]))

    @property
    def endings(self) -> dict[str, int]:
        """How many files have each ending; empty where images are in no files of their own."""
        reader: Any = self.reader
        return reader.endings(self.positions) if hasattr(reader, "endings") else {}

    def image(self, position: int) -> Image:
        """Return an image as a Pillow image.

        Raises:
            DataError: It is gone, damaged or too large.
            EnvironmentFailure: It cannot be read.
        """
        place = int(self.positions[position])
        name = self.reader.name(place)
        return changed(decoded(self.reader.read(place), name), self.steps)

    def pixels(self, position: int) -> Images:
        """Return an image as uint8 ``(height, width, channels)``; raises as ``image`` does."""
        return pixels_of(self.image(position))

    def read(self, positions: Iterable[int]) -> Images:
        """Return images of one size, uint8 ``(n, height, width, channels)``, decoded by several threads."""
        if self.size is None:
            raise DataError(
                "These images have sizes of their own and cannot be one array. Give them a size: "
                "split.resized((224, 224), crop_mode='center')."
            )
        return np.stack(list(each(self.pixels, map(int, positions))))

    def digests(self, progress: Progress | None = None) -> NDArray[np.void]:
        """Return a digest of the bytes of each image's file, whatever is done to it, ``(n,)``."""
        return self.reader.digests(self.positions, progress)

    def hashed(self, digests: Callable[[], NDArray[np.void]]) -> tuple[str, dict[str, Any], Any]:
        """Return what the digest of a split is over: its kind, JSON values and bytes.

        Args:
            digests: Returns ``digests``, which may be cached.
        """
        reader: Any = self.reader
        content = digests() if self.verified else reader.states(self.positions)
        kind = "sha256" if self.verified else "unverified"
        return kind, {"images": len(self), "steps": self.stated}, content.tobytes()

    def histogram(self) -> NDArray[np.int64]:
        """Return the count of each value in each channel of ``SAMPLE`` images, ``(channels, 256)``."""
        count = min(SAMPLE, len(self))
        counts = np.zeros((1 if self.channels == "L" else 3, 256), dtype=np.int64)
        places = (number * len(self) // count for number in range(count))
        with bar() as tell:
            for number, values in enumerate(each(lambda place: histogram(self.pixels(place)), places), 1):
                counts += values
                tell(number, count, "mean and deviation")
        return counts


def changed(image: Image, steps: Iterable[Change]) -> Image:
    """Return a Pillow image with some changes made.

    Args:
        image: Of mode ``"RGB"``.
        steps: In order.
    """
    for step in steps:
        if isinstance(step, ImageResize):
            image = resized_image(image, step)
        elif isinstance(step, Shrink):
            image = shrunk_image(image, step)
        elif isinstance(step, str):
            image = image.convert(step)
        else:
            image = as_image(shifted(pixels_of(image)[None], step)[0])
    return image


def resized_image(image: Image, step: ImageResize) -> Image:
    """Return a Pillow image resized and cut as timm's transform for evaluation does it, by Pillow itself.

    Args:
        image: Of mode ``"RGB"``.
        step: Size, interpolation and crop.
    """
    from PIL import Image

    height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, step.crop_mode)
    if step.crop_mode == "center" and height * width > max(LARGEST_SCALED, image.height * image.width):
        image = _middle(image, (height, width), step.size)
        height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, step.crop_mode)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling[step.interpolation.upper()])
    if (height, width) == step.size:
        return image
    top, left = (round((have - want) / 2) for have, want in zip((height, width), step.size, strict=True))
    return image.crop((left, top, left + step.size[1], top + step.size[0]))  # black beyond the border


def _middle(image: Image, scaled: Size, size: Size) -> Image:
    """Cut a very long image down to what its middle at a size is made of, and some pixels around that.

    Args:
        image: Of mode ``"RGB"``.
        scaled: Height and width that it would be resized to.
        size: That is cut out of it then.
    """
    box = []
    for have, wide, want in zip((image.height, image.width), scaled, size, strict=True):
        half = min(have / 2, 4 * (want + 8) * have / wide + 8)
        box.append((math.floor(have / 2 - half), math.ceil(have / 2 + half)))
    (top, bottom), (left, right) = box
    return image.crop((left, top, right, bottom))


def shrunk_image(image: Image, step: Shrink) -> Image:
    """Return a Pillow image scaled down to what evaluation cuts from; itself where it is no larger.

    Args:
        image: Of mode ``"RGB"``.
        step: Size that evaluation cuts out, interpolation and crop.
    """
    from PIL import Image

    height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, "center")
    if height >= image.height or width >= image.width:
        return image
    return image.resize((width, height), Image.Resampling[step.interpolation.upper()])


def pixels_of(image: Image) -> Images:
    """Return a gray or RGB image as uint8 ``(height, width, channels)``."""
    pixels = np.asarray(image)
    return cast("Images", pixels[..., None] if pixels.ndim == 2 else pixels)


def as_image(pixels: Images) -> Image:
    """Return uint8 ``(height, width, channels)`` as a Pillow image."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
