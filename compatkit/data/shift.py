"""A second domain out of the first: hue rotated, light dimmed, edges blurred. Nothing is random."""

from __future__ import annotations

import math

import attrs
import numpy as np

from compatkit.data.separable import Floats, Images, apply, gaussian, mapped
from compatkit.errors import DataError


@attrs.frozen
class Shift:
    """A shift in colour and blur, applied in the order of the attributes; the defaults change nothing.

    Attributes:
        hue: Rotation of the colours about the grey axis, in turns: 1/3 moves red to green, green to blue.
        brightness: Factor of all values, above 0 and at most 1; 0.6 dims to 60 %.
        blur: Standard deviation of a Gaussian blur in pixels.
    """

    hue: float = 0.0
    brightness: float = 1.0
    blur: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check the values.

        Raises:
            DataError: A value is no finite number, or outside its range.
        """
        for name in ("hue", "brightness", "blur"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise DataError(f"Shift: {name} must be a finite number, got {value!r}.")
        if not 0 < self.brightness <= 1:
            raise DataError(f"Shift: brightness must be above 0 and at most 1, got {self.brightness}.")
        if not 0 <= self.blur <= 100:
            raise DataError(f"Shift: blur is in pixels, 0 to 100, got {self.blur}.")


def rotation(turns: float) -> Floats:
    """Return the colour map of a rotation about (1, 1, 1), float32 ``(3, 3)``, for row vectors of RGB.

    Rodrigues' formula ``cos a I + sin a K + (1 - cos a) k k'`` with ``k = (1, 1, 1) / sqrt 3``; the sum of
    the three channels is kept.
    """
    angle = 2 * math.pi * turns
    cosine, sine = math.cos(angle), math.sin(angle)
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    return (cosine * np.eye(3) + sine * cross + (1 - cosine) / 3).T.astype(np.float32)


def shifted(images: Images, shift: Shift) -> Images:
    """Return uint8 images ``(n, h, w, c)`` with ``shift`` applied, rounded once at the end.

    Raises:
        DataError: A hue is to be rotated in grey images.
    """
    if shift == Shift():
        return images
    _, height, width, channels = images.shape
    if shift.hue and channels != 3:
        raise DataError(
            "Shift: grey images have no hue to rotate; leave hue out, or convert the data set to RGB first."
        )
    colours = rotation(shift.hue) if shift.hue else None
    blurs = (gaussian(height, shift.blur), gaussian(width, shift.blur)) if shift.blur else None

    def change(values: Floats) -> Floats:
        if colours is not None:
            values = np.clip(values @ colours, 0, 255)
        if shift.brightness != 1:
            values = values * np.float32(shift.brightness)
        return values if blurs is None else apply(values, *blurs)

    return mapped(images, (height, width, channels), change)
