"""Images that stay where they are and are read when they are asked for: files of a folder, members of an archive.

One rule brings every file to 8-bit RGB: the EXIF orientation is applied; grey values of 16 bits are divided by 257 and
floating-point ones taken as 0 to 1; everything else goes through Pillow's ``convert``, which drops transparency and
takes CMYK and palettes to their colours. Grey is a step after that.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.bars import Progress, bar
from compatkit.data.threads import each
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
from compatkit.errors import DamagedImage, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Channels = Literal["L", "RGB"]
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
SAMPLE = 1000
"""Images whose pixels give mean and standard deviation."""
LARGEST_PIXELS = 2**27
"""Pixels of the largest image that is decoded: 134 megapixels. A small file may claim many more."""
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
)
"""What Pillow raises over damaged bytes."""
REMEDY = (
    'Mend or remove it, or leave out all images that cannot be decoded: damaged = "skip" in a recipe\'s data, '
    'damaged="skip" of load and predict, --damaged skip of a command.'
)


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


class FileReader(Reader, Protocol):
    """A reader of files, which may be told apart by what the file system says of them."""

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return a digest of each file's name, size and time, 16 bytes long; no file is read."""
        ...


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
        verified: Whether a split's digest is over the bytes of the files; else over their names, sizes and times.
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
        return next((one.size for one in reversed(self.steps) if isinstance(one, ImageResize)), None)

    @property
    def channels(self) -> Channels:
        """``"L"`` for grey images, ``"RGB"`` for coloured ones."""
        asked: list[Channels] = [
            one for one in self.steps if not isinstance(one, ImageResize | Shrink | Shift)
        ]
        return asked[-1] if asked else "RGB"

    @property
    def stated(self) -> list[Any]:
        """The steps as JSON values."""
        return [
            one if isinstance(one, str) else [STATED[type(one)], *attrs.astuple(one)] for one in self.steps
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
        """Return them shifted in colour and blur.

        Raises:
            DataError: A hue is to be rotated in grey images.
        """
        check_hue(shift, self.channels)
        return self if shift == Shift() else self._then(shift)

    def _then(self, step: Change) -> LazyImages:
        return attrs.evolve(self, steps=(*self.steps, step))

    def name_in(self, split: str, position: int) -> str:
        """Return the file of an image, or what its reader calls it."""
        return self.reader.name(int(self.positions[position]))

    def image(self, position: int) -> Image:
        """Return an image as a Pillow image.

        Raises:
            DataError: It is gone, damaged or too large.
            EnvironmentFailure: It cannot be read.
        """
        place = int(self.positions[position])
        name = self.reader.name(place)
        image = decoded(self.reader.read(place), name)
        for step in self.steps:
            if isinstance(step, ImageResize):
                image = resized_image(image, step)
            elif isinstance(step, Shrink):
                image = shrunk_image(image, step)
            elif isinstance(step, str):
                image = image.convert(step)
            else:
                image = as_image(shifted(pixels_of(image)[None], step)[0])
        return image

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
        """Return what the digest of a split is over; see ``Storage``."""
        head = {"images": len(self), "steps": self.stated}
        if self.verified:
            return "sha256", head, digests().tobytes()
        return "unverified", head, cast("FileReader", self.reader).states(self.positions).tobytes()

    def histogram(self) -> NDArray[np.int64]:
        """Return how often each value comes in each channel of ``SAMPLE`` images, ``(channels, 256)``."""
        count = min(SAMPLE, len(self))
        found = np.zeros((1 if self.channels == "L" else 3, 256), dtype=np.int64)
        places = (number * len(self) // count for number in range(count))
        with bar() as tell:
            for number, one in enumerate(each(lambda place: histogram(self.pixels(place)), places), 1):
                found += one
                tell(number, count, "mean and deviation")
        return found


def decoded(data: bytes, name: str) -> Image:
    """Return the image of an encoded one in mode ``"RGB"``, by the rule of this module; ``upright`` raises.

    Args:
        data: Bytes of a file.
        name: Of the image, for messages.
    """
    return eight_bit(upright(data, name)).convert("RGB")


def brought(image: Image, name: str) -> Image:
    """Return a Pillow image in mode ``"RGB"``, by the rule of this module; raises as ``upright``."""
    with _naming(name):
        return eight_bit(_turned(image, name)).convert("RGB")


def upright(data: bytes, name: str) -> Image:
    """Return a Pillow image of the mode of its file, turned as its EXIF orientation says.

    Args:
        data: An encoded image.
        name: For messages.

    Raises:
        DataError: It is damaged, or too large.
    """
    from PIL import Image

    with _naming(name), Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return _turned(image, name)


def _turned(image: Image, name: str) -> Image:
    from PIL import ImageOps

    if image.width * image.height > LARGEST_PIXELS:
        raise _damaged(
            name,
            f"it claims {image.width:,} x {image.height:,} pixels; at most {LARGEST_PIXELS:,} are decoded",
        )
    image.load()
    turned = ImageOps.exif_transpose(image)  # a copy
    turned.info.pop("transparency", None)  # dropped without a warning
    return turned


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the image in what Pillow raises over one that is damaged."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, Warning, *DAMAGE) as error:
        reason = re.sub(r": <_io.BytesIO object at \w+>|<_io.BytesIO object at \w+>", "", str(error)).strip()
        raise _damaged(name, reason or type(error).__name__) from error


def _damaged(name: str, reason: str) -> DamagedImage:
    return DamagedImage(
        f"{name} is no readable image: {reason.rstrip('.')}. {REMEDY}", subject=name, reason=reason
    )


def eight_bit(image: Image) -> Image:
    """Return an image with 8 bits a value: 16-bit values by 257, floating-point ones as 0 to 1."""
    from PIL import Image

    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64) // 257
        return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
    if image.mode == "F":
        values = np.rint(np.asarray(image, dtype=np.float64) * 255)
        return Image.fromarray(np.clip(np.nan_to_num(values), 0, 255).astype(np.uint8))
    return image


def resized_image(image: Image, step: ImageResize) -> Image:
    """Return a Pillow image resized and cut as timm's transform for evaluation does it, by Pillow itself.

    Args:
        image: Of mode ``"RGB"``.
        step: Size, interpolation and crop.
    """
    from PIL import Image

    height, width = scaled_size((image.height, image.width), step.size, step.crop_pct, step.crop_mode)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling[step.interpolation.upper()])
    if (height, width) == step.size:
        return image
    top, left = (round((have - want) / 2) for have, want in zip((height, width), step.size, strict=True))
    return image.crop((left, top, left + step.size[1], top + step.size[0]))  # black beyond the border


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
    """Return a grey or RGB image as uint8 ``(height, width, channels)``."""
    pixels = np.asarray(image)
    return cast("Images", pixels[..., None] if pixels.ndim == 2 else pixels)


def as_image(pixels: Images) -> Image:
    """Return uint8 ``(height, width, channels)`` as a Pillow image."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
