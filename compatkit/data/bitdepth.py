"""The scale of values that are not 8 bits a channel: what the file states, else the full range of its type.

Values that contradict their scale are refused, since one cannot tell a dark picture from one of fewer bits. Tags are
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
"""Whole numbers that all lie below this part of their scale are refused: 255 of 1,023 levels, 4,095 of 16,383."""
HALF_LEVEL = 1 / 510
"""What a floating-point value may lie outside 0 to 1: it is rounded to black or white anyway."""
SIXTEEN = 65535
WHITE_IS_ZERO, PALETTE = 0, 3
"""Of PhotometricInterpretation."""
SIGNED, REAL = 2, 3
"""Of SampleFormat."""
FULL = "; write it with 8 bits, or over the full range of 16"


@attrs.frozen
class ValueRange:
    """What black and white are.

    Attributes:
        low: Value of black.
        high: Value of white.
        inverted: Whether the low end is white.
        stated: Whether the file itself says so; else it is the full range of the type, which values may contradict.
        cut: Whether values have 16 bits of which the decoder gives the upper 8.
    """

    low: float
    high: float
    inverted: bool = False
    stated: bool = False
    cut: bool = False


def scale_of(image: Image) -> ValueRange | None:
    """Return the scale of an image that is not yet loaded; None where nothing tells it.

    Raises:
        ValueError: The file states a range that cannot be told from the extremes of this picture, or that is of no use.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    bits = _one(tags.get(258, 1))
    stated, words = _stated(tags, bits), _words(image)
    if image.mode == "F":
        scale = ValueRange(*(stated or (0.0, 1.0)), stated=stated is not None)
    elif image.mode.startswith("I;16"):
        most = 2**bits - 1 if tags else SIXTEEN
        scale = ValueRange(*(stated or (0, most)), stated=stated is not None or most < SIXTEEN)
    elif image.mode == "I" and image.format == "PPM":
        scale = ValueRange(0, SIXTEEN, stated=any(word not in ("L", "I;16B", SIXTEEN) for word in words))
    elif image.mode == "I":
        return None if stated is None else ValueRange(*stated, stated=True)
    else:
        _check_colors(tags)
        if _one(tags.get(339, 1)) == SIGNED:
            return None
        if stated is not None:
            raise ValueError(f"it states that its values end at {stated[1]:,} of {2**bits - 1:,}{FULL}")
        return ValueRange(0, 255, cut=any(word == SIXTEEN or ";16" in str(word) for word in words))
    return attrs.evolve(scale, inverted=tags.get(262) == WHITE_IS_ZERO)


def _words(image: Image) -> list[Any]:
    """Return the arguments of a file's decoder: the layout of its values, and for a PPM the stated maximum."""
    words = [tile[3] for tile in getattr(image, "tile", [])]
    return [word for argument in words for word in (argument if isinstance(argument, tuple) else (argument,))]


def _stated(tags: Mapping[int, Any], bits: int) -> tuple[float, float] | None:
    """Return the range that a TIFF states, where that is less than the full one: of whole bits, or 0 to 1.

    Raises:
        ValueError: It is another, which may be no more than the extremes of this picture, as the format has it.
    """
    low, high = tags.get(340, tags.get(280)), tags.get(341, tags.get(281))
    if low is None and high is None:
        return None
    real = _one(tags.get(339, 1)) == REAL
    full = 1.0 if real else 2**bits - 1
    low, high = 0 if low is None else _one(low), full if high is None else _one(high)
    if (low, high) == (0, full):
        return (0.0, 1.0) if real else None
    if low == 0 and high > 0 and float(high + 1).is_integer() and (int(high) + 1) & int(high) == 0:
        return 0, high
    raise ValueError(
        f"it states that its values go from {low:g} to {high:g}, its scale or the extremes of this one{FULL}"
    )


def _one(values: Any) -> Any:
    """Return the value of a tag, which is the same for each channel.

    Raises:
        ValueError: It is not.
    """
    several = set(values) if isinstance(values, tuple) else {values}
    if len(several) != 1:
        raise ValueError("its channels have different bits or ranges")
    return several.pop()


def _check_colors(tags: Mapping[int, Any]) -> None:
    colors = tags.get(320, ()) if tags.get(262) == PALETTE else ()
    if colors and 0 < max(colors) < SIXTEEN // DARK:
        raise ValueError(f"its table of colors ends at {max(colors):,} of {SIXTEEN:,}{FULL}")


def gray(values: NDArray[Any], scale: ValueRange) -> Images:
    """Return values as 8 bits: whole numbers rounded down, as by 257 of 16 bits, floating-point ones to the nearest.

    Args:
        values: Of one image, of any shape.
        scale: Of them.

    Raises:
        ValueError: They are not finite, lie outside the scale, or end far below it.
    """
    whole = values.dtype.kind in "iu"
    if not whole and not np.isfinite(values).all():
        raise ValueError("some of its values are no finite numbers")
    low, high = scale.low, scale.high
    least, most = values.min().item(), values.max().item()
    spare = 0 if whole else (high - low) * HALF_LEVEL
    if least < low - spare or most > high + spare:
        raise ValueError(
            f"its values go from {least:g} to {most:g}, where {low:g} to {high:g} is expected{FULL}"
        )
    if whole and not scale.stated:
        check_bright(most, high)
    levels = values.astype(np.int64 if whole else np.float64)
    levels = high - levels if scale.inverted else levels - low
    if whole:
        return (levels * 255 // int(high - low)).astype(np.uint8)
    return np.clip(np.rint(levels * 255 / (high - low)), 0, 255).astype(np.uint8)


def check_bright(most: float, high: float) -> None:
    """Refuse values of 16 bits that end far below the end of their scale; black ones are taken.

    Args:
        most: The largest value.
        high: End of the scale.

    Raises:
        ValueError: They do.
    """
    if 0 < most < (high + 1) // DARK:
        raise ValueError(
            f"its values end at {most:,} of {high:,}: it is very dark, or has fewer bits than its file says{FULL}"
        )
