"""Colours and letters of a picture: what can be read on what, what the font can draw, and the bytes of the whole."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"  # Comes with matplotlib, so that a picture looks the same everywhere.
INK, QUIET, PAPER = "#0d1520", "#566170", "#ffffff"


def png(figure: Figure, title: str = "") -> bytes:
    """Return a figure as PNG, the same bytes for the same figure: no time stands in it, no version."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    named = {"Title": title} if title else {}
    FigureCanvasAgg(figure).print_png(out, metadata={**named, "Software": "compatkit"})
    return out.getvalue()


def shade(accuracy: float) -> tuple[str, str]:
    """Return fill and ink; lightness falls with accuracy, which survives colour blindness and grey print."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    red, green, blue, _ = colormaps["Blues"](0.04 + 0.86 * min(1.0, max(0.0, accuracy)))
    # Relative luminance, WCAG 2.2, with the exponent 2.2 for the sRGB curve.
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return to_hex((red, green, blue)), INK if light > 0.24 else PAPER


def text_at(where: Any, x: float, y: float, text: str, size: float, ink: str, **more: Any) -> None:
    """Put a text on axes (centred) or on a figure (from the left), its dollars taken as dollars."""
    options: dict[str, Any] = {"ha": "center" if hasattr(where, "plot") else "left", "va": "center_baseline"}
    where.text(x, y, text, fontsize=size, color=ink, family=FONT, parse_math=False, **{**options, **more})


def printable(text: str) -> str:
    """Return ``text`` with what the font cannot draw replaced; matplotlib would warn for each."""
    known = _characters()
    return "".join(one if ord(one) in known else "\N{REPLACEMENT CHARACTER}" for one in text)


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(FONT)).get_charmap())
