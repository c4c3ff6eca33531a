"""Range of image values that are not 8 bits per channel: the range the file states, else the full range of its type.

Values that contradict their range are refused, since a dark picture cannot be told from one of fewer bits. Tags are
those of TIFF 6.0 (Adobe, 1992): BitsPerSample (258), PhotometricInterpretation (262), MinSampleValue (280) and
MaxSampleValue (281), ColorMap (320), SampleFormat (339), SMinSampleValue (340) and SMaxSampleValue (341).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

    from compatkit.data.transforms import Images

DARK = 4
"""Integers that all lie below this part of their range are refused: 255 of 1,023 levels, 4,095 of 16,383."""
HALF_LEVEL = 1 / 510
"""Tolerance of floating-point values outside 0 to 1: they round to black or white anyway."""
MAX_16_BIT = 65535
WHITE_IS_ZERO, PALETTE = 0, 3
"""Values of PhotometricInterpretation."""
SIGNED, FLOAT = 2, 3
"""Values of SampleFormat."""
REMEDY = "; save it with 8 bits, or with 16 at full range"


@attrs.frozen
class ValueRange:
    """Values of black and white.

    Attributes:
        low: Value of black.
        high: Value of white.
        inverted: Whether the low end is white.
        stated: Whether the file states the range; else it is the full range of the type, which values may contradict.
        truncated: Whether values have 16 bits of which the decoder returns the upper 8.
    """

    low: float
    high: float
    inverted: bool = False
    stated: bool = False
    truncated: bool = False


def value_range(image: Image) -> ValueRange | None:
    """Return the range of an image that is not yet loaded; None if it is unknown.

    Raises:
        ValueError: The file states a range that may be just the extremes of this picture, or that cannot be used.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    bits = _single(tags.get(258, 1))
    stated, arguments = _stated_range(tags, bits), _decoder_arguments(image)
    if image.mode == "F":
        values = ValueRange(*(stated or (0.0, 1.0)), stated=stated is not None)
    elif image.mode.startswith("I;16"):
        high = 2**bits - 1 if tags else MAX_16_BIT
        values = ValueRange(*(stated or (0, high)), stated=stated is not None or high < MAX_16_BIT)
    elif image.mode == "I" and image.format == "PPM":
        full = all(argument in ("L", "I;16B", MAX_16_BIT) for argument in arguments)
        values = ValueRange(0, MAX_16_BIT, stated=not full)
    elif image.mode == "I":
        return None if stated is None else ValueRange(*stated, stated=True)
    else:
        _check_palette(tags)
        if _single(tags.get(339, 1)) == SIGNED:
            return None
        if stated is not None:
            raise ValueError(f"it states that its values end at {stated[1]:,} of {2**bits - 1:,}{REMEDY}")
        truncated = any(argument == MAX_16_BIT or ";16" in str(argument) for argument in arguments)
        return ValueRange(0, 255, truncated=truncated)
    return attrs.evolve(values, inverted=tags.get(262) == WHITE_IS_ZERO)


def _decoder_arguments(image: Image) -> list[Any]:
    """Return the arguments of a file's decoder: the layout of its values, and for a PPM the stated maximum."""
    arguments = [tile[3] for tile in getattr(image, "tile", [])]
    return [item for entry in arguments for item in (entry if isinstance(entry, tuple) else (entry,))]


def _stated_range(tags: Mapping[int, Any], bits: int) -> tuple[float, float] | None:
    """Return the range that a TIFF states if it is less than the full one: a number of bits, or 0 to 1.

    Raises:
        ValueError: The range is another, which the format allows to be just the extremes of this picture.
    """
    low, high = tags.get(340, tags.get(280)), tags.get(341, tags.get(281))
    if low is None and high is None:
        return None
    is_float = _single(tags.get(339, 1)) == FLOAT
    full = 1.0 if is_float else 2**bits - 1
    low, high = 0 if low is None else _single(low), full if high is None else _single(high)
    if (low, high) == (0, full):
        return (0.0, 1.0) if is_float else None
    if low == 0 and high > 0 and float(high + 1).is_integer() and (int(high) + 1) & int(high) == 0:
        return 0, high
    raise ValueError(
        f"it states values from {low:g} to {high:g}, either its range or the extremes of this picture{REMEDY}"
    )


def _single(values: Any) -> Any:
    """Return the value of a tag, which must be the same for each channel.

    Raises:
        ValueError: Channels differ.
    """
    distinct = set(values) if isinstance(values, tuple) else {values}
    if len(distinct) != 1:
        raise ValueError("its channels have different bits or ranges")
    return distinct.pop()


def _check_palette(tags: Mapping[int, Any]) -> None:
    colors = tags.get(320, ()) if tags.get(262) == PALETTE else ()
    if colors and 0 < max(colors) < MAX_16_BIT // DARK:
        raise ValueError(f"its color table ends at {max(colors):,} of {MAX_16_BIT:,}{REMEDY}")


def to_8_bit(values: NDArray[Any], scale: ValueRange) -> Images:
    """Return values as 8 bits: integers rounded down (16 bits are divided by 257), floats to the nearest.

    Args:
        values: Values of one image, any shape.
        scale: Range of the values.

    Raises:
        ValueError: Values are not finite, outside the range, or end far below its high end.
    """
    integer = values.dtype.kind in "iu"
    if not integer and not np.isfinite(values).all():
        raise ValueError("some of its values are not finite")
    low, high = scale.low, scale.high
    smallest, largest = values.min().item(), values.max().item()
    tolerance = 0 if integer else (high - low) * HALF_LEVEL
    if smallest < low - tolerance or largest > high + tolerance:
        raise ValueError(f"its values are {smallest:g} to {largest:g}, expected {low:g} to {high:g}{REMEDY}")
    if integer and not scale.stated:
        check_bright(largest, high)
    levels = values.astype(np.int64 if integer else np.float64)
    levels = high - levels if scale.inverted else levels - low
    if integer:
        return (levels * 255 // int(high - low)).astype(np.uint8)
    return np.clip(np.rint(levels * 255 / (high - low)), 0, 255).astype(np.uint8)


def check_bright(largest: float, high: float) -> None:
    """Refuse 16-bit values that end far below the end of their range; all-black images pass.

    Args:
        largest: The largest value.
        high: End of the range.

    Raises:
        ValueError: The image is too dark for its range.
    """
    if 0 < largest < (high + 1) // DARK:
        raise ValueError(
            f"its values end at {largest:,} of {high:,}: too dark, or fewer bits than stated{REMEDY}"
        )
