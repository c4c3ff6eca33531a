"""Images that stay in their files and are read on demand: files of a folder, members of an archive.

Every file is decoded to 8-bit RGB by one rule (``decoding``); conversion to gray is a later step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.decoding import decode
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
"""Pixels that an image may be scaled up to before its center is cropped: a line of pixels would become billions."""
SAMPLE = 1000
"""Number of images from which mean and standard deviation are computed."""


class Reader(Protocol):
    """Source of encoded images."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def read(self, position: int) -> bytes:
        """Return the bytes of an encoded image.

        Raises:
            DataError: The image is missing.
            EnvironmentFailure: It cannot be read.
        """
        ...

    def name(self, position: int) -> str:
        """Return the name of an image for messages."""
        ...

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """Return a digest of each image's bytes, 16 bytes long.

        Args:
            positions: Positions of images, int64.
            progress: Called with images hashed, all images, and a description.
        """
        ...


@attrs.frozen
class ImageResize:
    """A resize with the arguments of ``Split.resized``."""

    size: Size
    interpolation: str
    crop_pct: float
    crop_mode: CropMode


@attrs.frozen
class Shrink:
    """A resize to the size that evaluation crops from, aspect ratio kept, nothing cropped; small images stay."""

    size: Size
    interpolation: str
    crop_pct: float


Step = ImageResize | Shrink | Shift | Channels
STEP_NAMES = {ImageResize: "resize", Shrink: "shrink", Shift: "shift"}
"""Names of steps in the digest of a split; they must not change with the names of classes."""


@attrs.frozen(eq=False)
class LazyImages:
    """Images of a reader, and the steps applied to each when it is read.

    Attributes:
        reader: Source of the encoded images.
        positions: Positions in the reader, int64 ``(n,)``.
        steps: Steps applied to the 8-bit RGB images, in order; ``"L"`` and ``"RGB"`` convert.
        verified: Whether a split's digest covers the bytes of the files; else it covers their names, sizes and times,
            the reader's ``states``.
    """

    reader: Reader
    positions: NDArray[np.int64]
    steps: tuple[Step, ...] = ()
    verified: bool = True

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> Size | None:
        """Height and width; None if images differ in size."""
        return next((step.size for step in reversed(self.steps) if isinstance(step, ImageResize)), None)

    @property
    def channels(self) -> Channels:
        """``"L"`` for gray images, ``"RGB"`` for colored ones."""
        conversions = (step for step in reversed(self.steps) if isinstance(step, str))
        return cast("Channels", next(conversions, "RGB"))

    @property
    def json_steps(self) -> list[Any]:
        """The steps as JSON values."""
        return [
            step if isinstance(step, str) else [STEP_NAMES[type(step)], *attrs.astuple(step)]
            for step in self.steps
        ]

    def take(self, positions: NDArray[np.int64]) -> LazyImages:
        """Return the images at some positions."""
        return attrs.evolve(self, positions=self.positions[positions])

    def apply(self, step: Step) -> LazyImages:
        """Return the images with one more step.

        Raises:
            DataError: The step rotates the hue of gray images.
        """
        if isinstance(step, Shift):
            check_hue(step, self.channels)
            if step == Shift():
                return self
        return attrs.evolve(self, steps=(*self.steps, step))

    def name_in(self, split: str, position: int) -> str:
        """Return the reader's name of an image."""
        return self.reader.name(int(self.positions[position]))

    @property
    def extensions(self) -> dict[str, int]:
        """Number of files with each extension; empty if images are not files of their own."""
        reader: Any = self.reader
        return reader.extensions(self.positions) if hasattr(reader, "extensions") else {}

    def image(self, position: int) -> Image:
        """Return an image as a Pillow image.

        Raises:
            DataError: The image is missing, damaged or too large.
            EnvironmentFailure: It cannot be read.
        """
        index = int(self.positions[position])
        return apply_steps(decode(self.reader.read(index), self.reader.name(index)), self.steps)

    def pixels(self, position: int) -> Images:
        """Return an image as uint8 ``(height, width, channels)``; raises as ``image`` does."""
        return pixels_of(self.image(position))

    def read(self, positions: Iterable[int]) -> Images:
        """Return images of one size, uint8 ``(n, height, width, channels)``, decoded by several threads."""
        if self.size is None:
            raise DataError(
                "Images that differ in size cannot be one array. Resize them: "
                "split.resized((224, 224), crop_mode='center')."
            )
        return np.stack(list(each(self.pixels, map(int, positions))))

    def digests(self, progress: Progress | None = None) -> NDArray[np.void]:
        """Return a digest of the bytes of each image's file, whatever the steps, ``(n,)``."""
        return self.reader.digests(self.positions, progress)

    def hashed(self, digests: Callable[[], NDArray[np.void]]) -> tuple[str, dict[str, Any], Any]:
        """Return the content of a split's digest: its kind, JSON values, and bytes.

        Args:
            digests: Returns ``digests``, possibly cached.
        """
        reader: Any = self.reader
        content = digests() if self.verified else reader.states(self.positions)
        kind = "sha256" if self.verified else "unverified"
        return kind, {"images": len(self), "steps": self.json_steps}, content.tobytes()

    def histogram(self) -> NDArray[np.int64]:
        """Return the count of each value in each channel of ``SAMPLE`` images, ``(channels, 256)``."""
        n = min(SAMPLE, len(self))
        counts = np.zeros((1 if self.channels == "L" else 3, 256), dtype=np.int64)
        positions = (number * len(self) // n for number in range(n))
        histograms = each(lambda position: histogram(self.pixels(position)), positions)
        with bar() as report:
            for done, image_counts in enumerate(histograms, 1):
                counts += image_counts
                report(done, n, "mean and deviation")
        return counts


def apply_steps(image: Image, steps: Iterable[Step]) -> Image:
    """Return a Pillow image with some steps applied.

    Args:
        image: Image of mode ``"RGB"``.
        steps: Steps, in order.
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
    """Return a Pillow image resized and cropped like timm's transform for evaluation, by Pillow itself.

    Args:
        image: Image of mode ``"RGB"``.
        step: Size, interpolation and crop.
    """
    from PIL import Image

    height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, step.crop_mode)
    if step.crop_mode == "center" and height * width > max(LARGEST_SCALED, image.height * image.width):
        image = _crop_source(image, (height, width), step.size)
        height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, step.crop_mode)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling[step.interpolation.upper()])
    if (height, width) == step.size:
        return image
    top, left = (round((have - want) / 2) for have, want in zip((height, width), step.size, strict=True))
    return image.crop((left, top, left + step.size[1], top + step.size[0]))  # black beyond the border


def _crop_source(image: Image, scaled: Size, size: Size) -> Image:
    """Crop a very long image to the pixels that its resized center depends on, with a margin.

    Args:
        image: Image of mode ``"RGB"``.
        scaled: Height and width that it would be resized to.
        size: Height and width that would then be cropped.
    """
    box = []
    for have, wide, want in zip((image.height, image.width), scaled, size, strict=True):
        half = min(have / 2, 4 * (want + 8) * have / wide + 8)
        box.append((math.floor(have / 2 - half), math.ceil(have / 2 + half)))
    (top, bottom), (left, right) = box
    return image.crop((left, top, right, bottom))


def shrunk_image(image: Image, step: Shrink) -> Image:
    """Return a Pillow image scaled down to the size that evaluation crops from; unchanged if it is no larger.

    Args:
        image: Image of mode ``"RGB"``.
        step: Size that evaluation crops, interpolation and crop.
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
