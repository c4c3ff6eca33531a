"""Colors and text of pictures: readable contrasts, characters of the font, reproducible PNG bytes."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # bundled with matplotlib, so pictures look the same everywhere
INK, QUIET, PAPER = "#0d1520", "#566170", "#ffffff"
BLACK = "#000000"
"""On shades: on every one of them, either black or white has a contrast of 4.5 (WCAG AA)."""
EMPTY = "#eceef1"
COLORS = ("#566170", "#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be185d")
MARKS = "osD^vPX*"
"""Of series in one picture."""
OWN_EDGE, STALE_EDGE = "#c2410c", "#7a5200"
"""Outlines of own pairs, and of stale figures (dashed), on every picture and page."""


def png(figure: Figure, title: str = "", *, tight: bool = False) -> bytes:
    """Return a figure as PNG without time and version, so that equal figures have equal bytes.

    Args:
        figure: A figure of matplotlib.
        title: Stored in the file; empty for none.
        tight: Whether the picture is as large as what is drawn, beyond the figure too.
    """
    out = io.BytesIO()
    metadata = {"Title": title} if title else {}
    figure.savefig(
        out,
        format="png",
        dpi=figure.dpi,
        bbox_inches="tight" if tight else None,
        pad_inches=0.2,
        metadata={**metadata, "Software": "compatkit"},
    )
    return out.getvalue()


def shade(accuracy: float) -> tuple[str, str]:
    """Return fill and ink color; lightness falls with accuracy, which survives color blindness and gray print."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    red, green, blue, _ = colormaps["Blues"](0.04 + 0.86 * min(1.0, max(0.0, accuracy)))
    # Relative luminance (WCAG 2.2), with exponent 2.2 as an approximation of the sRGB curve.
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return to_hex((red, green, blue)), BLACK if light > 0.179 else PAPER


def text_at(where: Any, x: float, y: float, text: str, size: float, ink: str, **more: Any) -> None:
    """Add text to axes (centered) or to a figure (left-aligned), without interpreting dollars as math.

    Args:
        where: Axes or figure.
        x: In data of the axes, or as a share of the figure.
        y: As ``x``.
        text: As it is to be read.
        size: In points.
        ink: A color of matplotlib.
        more: Further settings of the text.
    """
    options: dict[str, Any] = {"ha": "center" if hasattr(where, "plot") else "left", "va": "center_baseline"}
    where.text(x, y, text, fontsize=size, color=ink, family=FONT, parse_math=False, **{**options, **more})


def printable(text: str) -> str:
    """Return ``text`` with characters missing in the font replaced; matplotlib would warn of each."""
    known = _characters()
    return "".join(
        character if ord(character) in known else "\N{REPLACEMENT CHARACTER}" for character in text
    )


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(FONT)).get_charmap())
