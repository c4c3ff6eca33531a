"""Decode image files to 8-bit RGB by one rule for training, prediction and summaries.

The EXIF orientation is applied; values of other than 8 bits are converted by the file's own range (``bitdepth``);
everything else goes through Pillow's ``convert``, which drops transparency and converts CMYK and palettes. Color
profiles are not applied, as in torchvision and timm. Only the first of several pages or frames is read.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from compatkit.data.bitdepth import MAX_16_BIT, ValueRange, check_bright, to_8_bit, value_range
from compatkit.data.skipped import unsupported_format
from compatkit.errors import DamagedImage

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
RULE = 2
"""Version of the decoding rule; a part of the keys of cached results."""
LARGEST_PIXELS = 2**27
"""Pixels of the largest image that is decoded: 134 megapixels. A small file may claim many more."""
ANY_FILE = 2**24
"""Pixels that any file may hold, however small it is."""
PER_BYTE = 64
"""Pixels per byte of the file of a larger image; photos have 1 to 20."""
SLOW_PIXELS = 2**22
"""Pixels of the largest PPM that Pillow reads value by value, which takes some seconds."""
PROFILE = "with a color profile"
SRGB = (b"sRGB", "sRGB".encode("utf-16-be"))
"""Name of sRGB in the description of a color profile, as ASCII or Unicode (ICC.1:2022)."""
SCANS = 100
"""Limit on the scans of a JPEG; progressive ones have about 10, and each covers the full image."""
DAMAGE = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, OSError),
    *(RecursionError, SyntaxError, TypeError, ValueError, struct.error),
)
"""Errors that Pillow raises for damaged bytes."""
REMEDY = (
    'Repair or remove it; or skip damaged images with damaged = "skip" in a recipe\'s data, damaged="skip" in load or '
    "predict, or --damaged skip on the command line."
)


def decode(data: bytes, name: str) -> Image:
    """Decode an image file to mode ``"RGB"``.

    Args:
        data: Bytes of the file.
        name: Name of the image, for messages.

    Raises:
        DamagedImage: The image is damaged, too large, or its range of values is unknown.
    """
    return decode_with_mode(data, name)[0]


def decode_with_mode(data: bytes, name: str) -> tuple[Image, str]:
    """Return the decoded image, and Pillow's mode of the file with its color profile; raises as ``decode``."""
    from PIL import Image

    with _named_errors(name):
        if data.startswith(b"\xff\xd8") and (scans := _scans(data)) > SCANS:
            raise ValueError(f"it is a JPEG of {scans:,} scans; at most {SCANS} are decoded")
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_pixels(image, len(data))
            mode = image.mode + (f" {PROFILE}" if _has_unapplied_profile(image) else "")
            return _rgb(image, copy=False), mode


def to_rgb(image: Image, name: str) -> Image:
    """Convert a Pillow image to mode ``"RGB"`` by the same rule; raises as ``decode``."""
    with _named_errors(name):
        _check_pixels(image, None)
        return _rgb(image, copy=True)


def _scans(jpeg: bytes) -> int:
    """Return how many scans begin in a JPEG; eight times as fast as ``bytes.count``."""
    codes = np.frombuffer(jpeg, dtype=np.uint8)
    return int(np.count_nonzero((codes[:-1] == 0xFF) & (codes[1:] == 0xDA)))


def _check_pixels(image: Image, n_bytes: int | None) -> None:
    """Check that an image has no more pixels than a file of ``n_bytes`` bytes can hold.

    Raises:
        ValueError: It has more.
    """
    limit = LARGEST_PIXELS if n_bytes is None else min(LARGEST_PIXELS, max(ANY_FILE, n_bytes * PER_BYTE))
    if any(tile[0].startswith("ppm") for tile in getattr(image, "tile", [])):
        limit = min(limit, SLOW_PIXELS)
    tags = getattr(image, "tag_v2", {})  # TileLength (323) and TileWidth (322) of a TIFF
    sizes = [(image.height, image.width), (int(tags.get(323, 0)), int(tags.get(322, 0)))]
    height, width = max(sizes, key=lambda size: size[0] * size[1])
    if height * width > limit:
        file = "" if n_bytes is None else f" in {n_bytes:,} bytes"
        raise ValueError(f"it claims {width:,} x {height:,} pixels{file}; at most {limit:,} are decoded")


def _has_unapplied_profile(image: Image) -> bool:
    """Return whether a file has a color profile other than sRGB or gray."""
    profile = image.info.get("icc_profile") or b""
    return profile[16:20] in (b"RGB ", b"CMYK", b"Lab ") and not any(name in profile for name in SRGB)


def _rgb(image: Image, *, copy: bool) -> Image:
    """Convert to mode ``"RGB"``; an image that needs no change is returned itself unless ``copy``."""
    from PIL import ExifTags, ImageOps

    values = value_range(image)
    image.load()
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    oriented = ImageOps.exif_transpose(image) if copy or turned else image
    oriented.info.pop("transparency", None)  # otherwise convert warns
    result = _with_8_bits(oriented, values)
    if result.mode in ("La", "RGBa"):  # premultiplied alpha
        result = result.convert(result.mode.upper())
    return result if result.mode == "RGB" else result.convert("RGB")


def _with_8_bits(image: Image, values: ValueRange | None) -> Image:
    """Return an image with 8 bits per value.

    Raises:
        ValueError: Values contradict their range, or the range is unknown (None).
    """
    from PIL import Image

    if values is None:
        raise ValueError(
            "it has 32-bit or signed integers whose white is unknown; save it with 8 bits, or with 16 at full range"
        )
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(to_8_bit(np.asarray(image), values))
    if values.truncated:
        extrema = image.getextrema()
        bands = extrema if isinstance(extrema[0], tuple) else (extrema,)
        colors = [band for band, name in zip(bands, image.getbands(), strict=True) if name not in "Aa"]
        check_bright(max(high for _, high in colors) * 257, MAX_16_BIT)  # type: ignore[misc]
    return image


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Turn errors of decoding into one that names the image.

    Raises:
        DamagedImage: In place of Pillow's error.
    """
    from PIL import Image

    try:
        yield
    except (Image.DecompressionBombError, Warning, *DAMAGE) as error:
        text = re.sub(r":? ?<_io.BytesIO object at \w+>", "", str(error)).strip()
        reason = unsupported_format(name) or text.rstrip(".") or type(error).__name__
        raise DamagedImage(
            f"{name} cannot be read as an image: {reason}. {REMEDY}", subject=name, reason=reason
        ) from error
