"""A ladder of bridges as a small picture: what each rung reaches against the seconds that it takes."""

from __future__ import annotations

import io
from collections.abc import Sequence

from compatkit.evaluation.cells import Rung
from compatkit.reports.ink import FONT, INK, QUIET, printable, text_at

DPI = 160
SIZE = (6.4, 3.4)
LEAST = 0.01
"""Seconds below which rungs stand at the left edge."""
NEAR, LINE = 1.6, 0.045
"""Names of rungs whose seconds differ by less than this factor stand so far above each other."""


def draw(rungs: Sequence[Rung], title: str) -> bytes:
    """Return the picture as PNG; the same rungs give the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(SIZE, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    named: list[tuple[float, float]] = []
    for one in rungs:
        at, share = max(LEAST, one.seconds), one.agreement.accuracy
        ink = "#c2410c" if one.chosen else INK
        axes.plot([at, at], [one.agreement.low, one.agreement.high], color=QUIET, linewidth=1)
        axes.plot([at], [share], "o", color=ink, markersize=5)
        if one.accuracy is not None:
            axes.plot([at], [one.accuracy.accuracy], "x", color=ink, markersize=5)
        named.append((at, _free(at, share + 0.015, named)))
        text_at(axes, at * 1.06, named[-1][1], printable(one.name), 6.5, ink, ha="left")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("seconds of the rung", fontsize=8, family=FONT)
    axes.set_ylabel("agreement (dots), accuracy (crosses)", fontsize=8, family=FONT)
    axes.set_title(printable(title), fontsize=8, family=FONT, parse_math=False)
    axes.tick_params(labelsize=7)
    axes.margins(x=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out, metadata={"Title": "Ladder of bridges", "Software": "compatkit"})
    return out.getvalue()


def _free(at: float, height: float, named: Sequence[tuple[float, float]]) -> float:
    """Return a height from this one up at which a name does not stand on one before it."""
    near = [other for x, other in named if 1 / NEAR < at / x < NEAR]
    while any(abs(height - other) < LINE for other in near):
        height += LINE
    return height
