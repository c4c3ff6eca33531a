"""From the bytes of an image file to 8-bit RGB, by one rule for training, prediction and surveys.

The EXIF orientation is applied; values of other than 8 bits are converted by the file's own scale (``scales``);
everything else goes through Pillow's ``convert``, which drops transparency and takes CMYK and palettes to their colors.
Color profiles are not applied, as in torchvision and timm. Of several pages or frames the first is read.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from compatkit.data.bitdepth import SIXTEEN, ValueRange, check_bright, gray, scale_of
from compatkit.data.skipped import not_read
from compatkit.errors import DamagedImage

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
RULE = 2
"""Number of this rule; what is remembered of decoded images was made by one of them."""
LARGEST_PIXELS = 2**27
"""Pixels of the largest image that is decoded: 134 megapixels. A small file may claim many more."""
ANY_FILE = 2**24
"""Pixels of an image that any file may hold, however small it is."""
PER_BYTE = 64
"""Pixels for a byte of the file of a larger image; photos have 1 to 20."""
SLOW_PIXELS = 2**22
"""Pixels of the largest PPM that Pillow reads value by value: some seconds."""
PROFILE = "with a color profile"
SRGB = (b"sRGB", "sRGB".encode("utf-16-be"))
"""In the description of a profile, as ASCII or as the format's Unicode (ICC.1:2022)."""
SCANS = 100
"""Scans of a JPEG; progressive ones have about 10, and each goes over the whole image."""
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    ZeroDivisionError,
    struct.error,
)
"""What Pillow raises for damaged bytes."""
REMEDY = (
    "Mend or remove it. To leave out all images that cannot be decoded, write "
    'data = {name = "...", damaged = "skip"} in a recipe, damaged="skip" in a call of load or predict, or --damaged '
    "skip with a command that takes a data set by --data or by its name."
)


def decoded(data: bytes, name: str) -> Image:
    """Decode an image to mode ``"RGB"``.

    Args:
        data: Bytes of a file.
        name: Of the image, for messages.

    Raises:
        DamagedImage: It is damaged, too large, or its values have no scale that is known.
    """
    return decoded_kind(data, name)[0]


def decoded_kind(data: bytes, name: str) -> tuple[Image, str]:
    """Return the decoded image, and Pillow's mode of the file with its color profile; raises as ``decoded``."""
    from PIL import Image

    with _naming(name):
        _check_scans(data)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_pixels(image, len(data))
            kind = image.mode + (f" {PROFILE}" if _profiled(image) else "")
            return _rgb(image), kind


def to_rgb(image: Image, name: str) -> Image:
    """Convert a Pillow image to mode ``"RGB"`` by the same rule; raises as ``decoded``."""
    with _naming(name):
        _check_pixels(image, None)
        return _rgb(image)


def _check_pixels(image: Image, size: int | None) -> None:
    """Check that an image has no more pixels than a file of ``size`` bytes can hold.

    Raises:
        ValueError: It has more.
    """
    most = LARGEST_PIXELS if size is None else min(LARGEST_PIXELS, max(ANY_FILE, size * PER_BYTE))
    if any(tile[0].startswith("ppm") for tile in getattr(image, "tile", [])):
        most = min(most, SLOW_PIXELS)
    tags = getattr(image, "tag_v2", {})
    tile = int(tags.get(323, 0)), int(tags.get(322, 0))
    what, height, width = max(
        ("", image.height, image.width), (" in a tile", *tile), key=lambda area: area[1] * area[2]
    )
    if height * width > most:
        of = "" if size is None else f" in {size:,} bytes"
        raise ValueError(
            f"it claims {width:,} x {height:,} pixels{what}{of}; at most {most:,} are decoded of such a file"
        )


def _profiled(image: Image) -> bool:
    """Return whether a file brings a color profile other than sRGB or gray, which is not applied."""
    profile = image.info.get("icc_profile") or b""
    return profile[16:20] in (b"RGB ", b"CMYK", b"Lab ") and not any(name in profile for name in SRGB)


def _check_scans(data: bytes) -> None:
    """Refuse a JPEG of very many scans.

    Raises:
        ValueError: It is one.
    """
    if data.startswith(b"\xff\xd8") and (scans := data.count(b"\xff\xda")) > SCANS:
        raise ValueError(f"it is a JPEG of {scans:,} scans; at most {SCANS} are decoded")


def _rgb(image: Image) -> Image:
    from PIL import ImageOps

    scale = scale_of(image)
    image.load()
    turned = ImageOps.exif_transpose(image)  # a copy
    turned.info.pop("transparency", None)  # dropped without a warning
    turned = eight_bit(turned, scale)
    if turned.mode in ("La", "RGBa"):  # premultiplied by their transparency
        turned = turned.convert(turned.mode.upper())
    return turned if turned.mode == "RGB" else turned.convert("RGB")


def eight_bit(image: Image, scale: ValueRange | None) -> Image:
    """Return an image with 8 bits a value.

    Args:
        image: Of any mode.
        scale: Of its values; None where nothing tells it.

    Raises:
        ValueError: Values contradict their scale, or it is not known.
    """
    from PIL import Image

    if scale is None:
        raise ValueError(
            "it holds whole numbers of 32 bits, or signed ones, and nothing tells what is white; write it with 8 bits, "
            "or over the full range of 16"
        )
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(gray(np.asarray(image), scale))
    if scale.cut:
        bands = [
            most
            for (_, most), band in zip(_extrema(image), image.getbands(), strict=True)
            if band not in "Aa"
        ]
        check_bright(max(bands) * 257, SIXTEEN)
    return image


def _extrema(image: Image) -> list[tuple[int, int]]:
    extrema = image.getextrema()
    return list(extrema) if isinstance(extrema[0], tuple) else [extrema]  # type: ignore[list-item]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the image in the error for an image that cannot be decoded.

    Raises:
        DamagedImage: In place of Pillow's error.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except (UnidentifiedImageError, Image.DecompressionBombError, Warning, *DAMAGE) as error:
        text = re.sub(r": <_io.BytesIO object at \w+>|<_io.BytesIO object at \w+>", "", str(error)).strip()
        reason = not_read(name) or text.rstrip(".") or type(error).__name__
        raise DamagedImage(
            f"{name} cannot be read as an image: {reason}. {REMEDY}", subject=name, reason=reason
        ) from error
