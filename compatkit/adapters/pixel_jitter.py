"""torchvision's color jitter in one pass over the image, in half of its time.

Brightness b, contrast c and saturation s are affine in the color v, with its gray g = w · v (ITU-R 601) and the mean
gray m of the image: v -> b v; v -> c v + (1 - c) m; v -> s v + (1 - s) g. A sequence of them is
v -> own v + gray g + shift. Draws are torchvision's, but it rounds down and clips after each of the steps, where this
rounds to nearest and clips at the end, so that values near black or white may differ by more than rounding.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from PIL.Image import Image

WEIGHTS = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the gray of Pillow."""
Affine = tuple[float, float, float]
"""Factor of the color, factor of its gray, and shift."""


def combined(order: list[int], factors: tuple[float | None, ...], mean: float) -> Affine:
    """Return brightness, contrast and saturation as one affine function.

    Args:
        order: Steps by number, in their order; others are left out.
        factors: Factor of each of the three, or None for none.
        mean: Mean gray of the image.
    """
    own, gray, shift = 1.0, 0.0, 0.0
    for step in order:
        factor = factors[step] if step < len(factors) else None
        if factor is None:
            continue
        if step == 2:  # the gray of the result is that of the color, as the weights add up to 1
            own, gray = factor * own, factor * gray + (1 - factor) * (own + gray)
            continue
        gray_mean = int((own + gray) * mean + shift + 0.5)  # Pillow's is a whole number
        own, gray, shift = factor * own, factor * gray, factor * shift
        if step == 1:
            shift += (1 - factor) * gray_mean
    return own, gray, shift


@attrs.frozen(eq=False)
class PixelJitter:
    """Random brightness, contrast and saturation.

    Attributes:
        torchvision: ``ColorJitter`` without hues, which draws the factors and their order.
    """

    torchvision: Any

    def __call__(self, image: Image) -> Image:
        """Return the changed image; a gray one as torchvision does."""
        if image.mode != "RGB":
            return self.torchvision(image)
        drawn = self.torchvision
        order, *factors, _ = drawn.get_params(drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue)
        mean = 0.0 if drawn.contrast is None else float(np.asarray(image.convert("L")).mean())
        own, gray, shift = combined(order.tolist(), tuple(factors), mean)
        red, green, blue = (gray * weight for weight in WEIGHTS)
        rows = (
            (own + red, green, blue, shift),
            (red, own + green, blue, shift),
            (red, green, own + blue, shift),
        )
        return image.convert("RGB", tuple(value for row in rows for value in row))
