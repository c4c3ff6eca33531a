"""Colors, text and PNG output of pictures: readable contrasts, printable characters, reproducible bytes."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # bundled with matplotlib, so pictures look the same everywhere
TEXT_COLOR, MUTED_COLOR, BACKGROUND = "#0d1520", "#566170", "#ffffff"
BLACK_TEXT = "#000000"
"""Text on light shades: on every shade, either black or white has a contrast of 4.5 (WCAG AA)."""
EMPTY_COLOR = "#eceef1"
COLORS = ("#566170", "#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be185d")
MARKS = "osD^vPX*"
"""Markers of the series in a picture."""
OWN_OUTLINE, STALE_OUTLINE = "#c2410c", "#7a5200"
"""Outlines of own pairs, and of stale cells (dashed), in every picture and page."""


def png(figure: Figure, title: str = "", *, tight: bool = False) -> bytes:
    """Return a figure as PNG without time and version, so that equal figures have equal bytes.

    Args:
        figure: Figure of matplotlib.
        title: Title stored in the file; empty for none.
        tight: Whether to fit the size of the picture to its content, even beyond the figure.
    """
    buffer = io.BytesIO()
    metadata = {"Title": title} if title else {}
    figure.savefig(
        buffer,
        format="png",
        dpi=figure.dpi,
        bbox_inches="tight" if tight else None,
        pad_inches=0.2,
        metadata={**metadata, "Software": "compatkit"},
    )
    return buffer.getvalue()


def shade(accuracy: float) -> tuple[str, str]:
    """Return fill and text color; lightness falls with accuracy, which is visible with color blindness and in gray.

    Args:
        accuracy: Value in [0, 1]; values outside are clipped.
    """
    from matplotlib import colormaps

    return _with_ink(colormaps["Blues"](0.04 + 0.86 * min(1.0, max(0.0, accuracy))))


def gain_shade(gain: float) -> tuple[str, str]:
    """Return fill and text color of a change: losses orange, gains purple, which color blindness leaves distinct.

    Args:
        gain: Change in [-1, 1]; values outside are clipped.
    """
    from matplotlib import colormaps

    return _with_ink(colormaps["PuOr"](0.5 + 0.4 * min(1.0, max(-1.0, gain))))


def _with_ink(color: tuple[float, float, float, float]) -> tuple[str, str]:
    """Return a fill, and the text color that is readable on it."""
    from matplotlib.colors import to_hex

    red, green, blue, _ = color
    # Relative luminance (WCAG 2.2), with exponent 2.2 as an approximation of the sRGB curve.
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return to_hex((red, green, blue)), BLACK_TEXT if luminance > 0.179 else BACKGROUND


def draw_text(parent: Any, x: float, y: float, text: str, size: float, color: str, **options: Any) -> None:
    """Add text to axes (centered) or to a figure (left-aligned), without interpreting dollars as math.

    Args:
        parent: Axes or figure of matplotlib.
        x: Position in data coordinates of the axes, or as a share of the figure.
        y: Position, as ``x``.
        text: Text to draw.
        size: Font size in points.
        color: Color of matplotlib.
        options: Further options of ``text`` of matplotlib.
    """
    defaults: dict[str, Any] = {
        "ha": "center" if hasattr(parent, "plot") else "left",
        "va": "center_baseline",
    }
    parent.text(
        x, y, text, fontsize=size, color=color, family=FONT, parse_math=False, **{**defaults, **options}
    )


def printable(text: str) -> str:
    """Return ``text`` with a replacement for each character that the font lacks; matplotlib would warn of each."""
    available = _characters()
    return "".join(
        character if ord(character) in available else "\N{REPLACEMENT CHARACTER}" for character in text
    )


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(FONT)).get_charmap())
