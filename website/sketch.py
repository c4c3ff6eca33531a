"""A sheet on which boxes, arrows and words are placed by coordinates, for the drawings of the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from compatkit.reports.drawing import BACKGROUND, COLORS, FONT, MUTED_COLOR, TEXT_COLOR

GRAY, ORANGE, BLUE, GREEN, PURPLE = COLORS[:5]
"""Ink of lines and outlines; no meaning rests on color alone, since every box has words."""
PALE = {GRAY: "#eceef1", ORANGE: "#fbe7dc", BLUE: "#dfe8fb", GREEN: "#dcf1e2", PURPLE: "#eee1f8"}
"""Fill of boxes by the color of their outline."""
DPI = 160


class Sheet:
    """A white sheet of a width and height in inches, which are its coordinates too; y goes up."""

    def __init__(self, width: float, height: float) -> None:
        matplotlib.rcParams["font.family"] = FONT
        self.figure = Figure(figsize=(width, height), dpi=DPI, facecolor=BACKGROUND)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(0, height)
        self.axes.axis("off")

    def box(
        self,
        x: float,
        y: float,
        text: str,
        color: str = GRAY,
        *,
        width: float = 1.5,
        height: float = 0.5,
        size: float = 9,
        dashed: bool = False,
    ) -> None:
        """Draw a box around a center with words in it."""
        patch = FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=PALE[color],
            edgecolor=color,
            linewidth=1.4,
            linestyle="--" if dashed else "-",
        )
        self.axes.add_patch(patch)
        self.words(x, y, text, size=size)

    def words(
        self, x: float, y: float, text: str, *, size: float = 9, color: str = TEXT_COLOR, **options: Any
    ) -> None:
        """Write words around a center."""
        self.axes.text(
            x,
            y,
            text,
            **{
                "ha": "center",
                "va": "center",
                "fontsize": size,
                "color": color,
                "linespacing": 1.25,
                **options,
            },
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        color: str = GRAY,
        *,
        text: str = "",
        bend: float = 0.0,
        dashed: bool = False,
        above: float = 0.13,
    ) -> None:
        """Draw an arrow, with words above its middle."""
        patch = FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            color=color,
            linewidth=1.4,
            linestyle="--" if dashed else "-",
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=0,
            shrinkB=0,
        )
        self.axes.add_patch(patch)
        if text:
            middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + above
            self.words(*middle, text, size=8, color=MUTED_COLOR)

    def plot(self, place: tuple[float, float, float, float]) -> Any:
        """Return axes for a plot at left, bottom, width and height in inches, without upper and right lines."""
        width, height = self.figure.get_size_inches()
        axes = self.figure.add_axes(
            (place[0] / width, place[1] / height, place[2] / width, place[3] / height)
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=MUTED_COLOR)
        return axes

    def rows(
        self, x: float, y: float, lines: Sequence[tuple[str, str]], *, gap: float, step: float = 0.3
    ) -> None:
        """Write lines of two columns downwards from a place, the second ``gap`` to the right."""
        for number, (left, right) in enumerate(lines):
            self.words(x, y - number * step, left, ha="left", weight="bold")
            self.words(x + gap, y - number * step, right, ha="left", color=MUTED_COLOR)
