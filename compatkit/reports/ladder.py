"""A ladder of bridges as a small picture: agreement and accuracy of each rung against its seconds.

The layout is computed here once, for the page's template and for the PNG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from compatkit.contracts.evidence import Figure, Rung
from compatkit.reports.ink import INK, PAPER, QUIET, png, printable, text_at
from compatkit.reports.wording import share, visible

LEAST = 0.01
"""Seconds; faster rungs are drawn at the left edge."""

LEFT, RIGHT, TOP, NAMES = 40.0, 330.0, 12.0, 362.0
"""Coordinates: ends of the time axis, height of shares of 1, start of the names."""
HEIGHT, LINE, MARGIN = 170.0, 15.0, 12.0
"""Distances: least height of the axis of shares, between names, from an axis to the first point."""
DECADES = 6
"""Most ticks."""
WIDTH, TITLE, DPI = 560.0, 24.0, 160
"""Width in units, of which 96 make an inch of the PNG; units for the title; resolution."""
CHOSEN = "#c2410c"


@attrs.frozen
class Point:
    """One rung: position, and line to its name."""

    x: float
    agreement: float
    low: float
    high: float
    accuracy: float | None
    line: float
    name: str
    description: str
    chosen: bool


@attrs.frozen
class Picture:
    """Layout for the template; ticks are positions with texts."""

    points: tuple[Point, ...]
    seconds: tuple[tuple[float, str], ...]
    shares: tuple[tuple[float, str], ...]
    left: float
    right: float
    names: float
    bottom: float
    height: float


def picture(rungs: Sequence[Rung]) -> Picture:
    """Return the layout of a ladder with at least one rung.

    Seconds increase to the right on a logarithmic axis, shares upwards from 0 to 1. Names form a column at the right in
    the order of agreement, since rungs in closed form lie close together.
    """
    height = max(HEIGHT, LINE * len(rungs))
    logs = [math.log10(max(LEAST, rung.seconds)) for rung in rungs]
    first, last = math.floor(min(logs)), math.ceil(max(logs))
    last = max(last, first + 1)

    def across(log: float) -> float:
        start, end = LEFT + MARGIN, RIGHT - MARGIN
        return round(start + (end - start) * (log - first) / (last - first), 2)

    def down(value: float) -> float:
        return round(TOP + height * (1 - min(1.0, max(0.0, value))), 2)

    lines = _spread([down(rung.agreement.accuracy) for rung in rungs], TOP, TOP + height)
    points = [
        Point(
            x=across(log),
            agreement=down(rung.agreement.accuracy),
            low=down(rung.agreement.low),
            high=down(rung.agreement.high),
            accuracy=None if rung.accuracy is None else down(rung.accuracy.accuracy),
            line=line,
            name=f"{visible(rung.name)}, {_used(rung)}",
            description=_description(rung),
            chosen=rung.chosen,
        )
        for rung, log, line in zip(rungs, logs, lines, strict=True)
    ]
    step = math.ceil((last - first) / DECADES)
    return Picture(
        points=tuple(points),
        seconds=tuple((across(log), f"{10.0**log:g} s") for log in range(first, last + 1, step)),
        shares=tuple((down(value), f"{value:g}") for value in (0, 0.5, 1)),
        left=LEFT,
        right=RIGHT,
        names=NAMES,
        bottom=TOP + height,
        height=TOP + height + 46,
    )


def draw(rungs: Sequence[Rung], title: str) -> bytes:
    """Return the picture as PNG; equal rungs (at least one) give equal bytes.

    Args:
        rungs: From top to bottom.
        title: Above the picture.
    """
    from matplotlib.figure import Figure

    layout = picture(rungs)
    figure = Figure((WIDTH / 96, (layout.height + TITLE) / 96), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(layout.height, -TITLE))
    axes.set_axis_off()
    text_at(axes, layout.left, 6 - TITLE / 2, printable(title), 7.5, INK, ha="left")
    for y, text in layout.shares:
        axes.plot([layout.left, layout.right], [y, y], color=QUIET, linewidth=0.4, alpha=0.5)
        text_at(axes, layout.left - 6, y, text, 7, QUIET, ha="right")
    for x, text in layout.seconds:
        axes.plot([x, x], [layout.bottom, layout.bottom + 4], color=QUIET, linewidth=0.6)
        text_at(axes, x, layout.bottom + 13, text, 7, QUIET)
    for point in layout.points:
        _mark(axes, point, layout)
    key = layout.left + 4, layout.bottom + 36
    axes.plot(*key, "o", color=INK, markersize=4)
    text_at(axes, key[0] + 10, key[1], "agreement, 95 %", 7, INK, ha="left")
    axes.plot(key[0] + 124, key[1], "x", color=INK, markersize=5)
    text_at(axes, key[0] + 134, key[1], "accuracy on test images", 7, INK, ha="left")
    return png(figure, "Ladder of bridges")


def _mark(axes: Any, point: Point, layout: Picture) -> None:
    """Draw a rung: its points, and the line to its name."""
    ink = CHOSEN if point.chosen else INK
    reach = [point.x, layout.right, layout.names - 4], [point.agreement, point.agreement, point.line]
    axes.plot(*reach, color=ink, linewidth=0.4, alpha=0.45)
    axes.plot([point.x, point.x], [point.low, point.high], color=ink, linewidth=1)
    axes.plot(point.x, point.agreement, "o", color=ink, markersize=4)
    if point.accuracy is not None:
        axes.plot(point.x, point.accuracy, "x", color=ink, markersize=5)
    text_at(axes, layout.names, point.line, printable(point.name), 7, ink, ha="left")


def _description(rung: Rung) -> str:
    """Describe a rung, for tooltips and screen readers."""
    right = "" if rung.accuracy is None else f", accuracy {_between(rung.accuracy)}"
    chosen = ", chosen" if rung.chosen else ""
    return (
        f"{visible(rung.name)}{chosen}: agreement {_between(rung.agreement)}{right}, {_used(rung)}, "
        f"{max(0.0, rung.seconds):.2f} s"
    )


def _used(rung: Rung) -> str:
    labels = f", {rung.labels:,} labels" if rung.labels else ""
    return f"{rung.images:,} images{labels}"


def _between(figure: Figure) -> str:
    return f"{share(figure.accuracy)} ({share(figure.low)} to {share(figure.high)})"


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return positions near the wanted ones, at least ``LINE`` apart, between top and bottom if they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    above = top - LINE
    for index in order:
        above = places[index] = max(above + LINE, wanted[index])
    below = bottom + LINE
    for index in reversed(order):
        below = places[index] = min(below - LINE, places[index])
    return [round(place, 2) for place in places]
