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
    told: str
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
    logs = [math.log10(max(LEAST, one.seconds)) for one in rungs]
    first, last = math.floor(min(logs)), math.ceil(max(logs))
    last = max(last, first + 1)

    def across(log: float) -> float:
        start, end = LEFT + MARGIN, RIGHT - MARGIN
        return round(start + (end - start) * (log - first) / (last - first), 2)

    def down(value: float) -> float:
        return round(TOP + height * (1 - min(1.0, max(0.0, value))), 2)

    lines = _spread([down(one.agreement.accuracy) for one in rungs], TOP, TOP + height)
    points = [
        Point(
            x=across(log),
            agreement=down(one.agreement.accuracy),
            low=down(one.agreement.low),
            high=down(one.agreement.high),
            accuracy=None if one.accuracy is None else down(one.accuracy.accuracy),
            line=line,
            name=f"{visible(one.name)}, {_used(one)}",
            told=_told(one),
            chosen=one.chosen,
        )
        for one, log, line in zip(rungs, logs, lines, strict=True)
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

    found = picture(rungs)
    figure = Figure((WIDTH / 96, (found.height + TITLE) / 96), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(found.height, -TITLE))
    axes.set_axis_off()
    text_at(axes, found.left, 6 - TITLE / 2, printable(title), 7.5, INK, ha="left")
    for y, text in found.shares:
        axes.plot([found.left, found.right], [y, y], color=QUIET, linewidth=0.4, alpha=0.5)
        text_at(axes, found.left - 6, y, text, 7, QUIET, ha="right")
    for x, text in found.seconds:
        axes.plot([x, x], [found.bottom, found.bottom + 4], color=QUIET, linewidth=0.6)
        text_at(axes, x, found.bottom + 13, text, 7, QUIET)
    for one in found.points:
        _mark(axes, one, found)
    key = found.left + 4, found.bottom + 36
    axes.plot(*key, "o", color=INK, markersize=4)
    text_at(axes, key[0] + 10, key[1], "agreement, 95 %", 7, INK, ha="left")
    axes.plot(key[0] + 124, key[1], "x", color=INK, markersize=5)
    text_at(axes, key[0] + 134, key[1], "accuracy on test images", 7, INK, ha="left")
    return png(figure, "Ladder of bridges")


def _mark(axes: Any, one: Point, found: Picture) -> None:
    """Draw a rung: its points, and the line to its name."""
    ink = CHOSEN if one.chosen else INK
    reach = [one.x, found.right, found.names - 4], [one.agreement, one.agreement, one.line]
    axes.plot(*reach, color=ink, linewidth=0.4, alpha=0.45)
    axes.plot([one.x, one.x], [one.low, one.high], color=ink, linewidth=1)
    axes.plot(one.x, one.agreement, "o", color=ink, markersize=4)
    if one.accuracy is not None:
        axes.plot(one.x, one.accuracy, "x", color=ink, markersize=5)
    text_at(axes, found.names, one.line, printable(one.name), 7, ink, ha="left")


def _told(one: Rung) -> str:
    """Describe a rung, for tooltips and screen readers."""
    right = "" if one.accuracy is None else f", accuracy {_between(one.accuracy)}"
    chosen = ", chosen" if one.chosen else ""
    return (
        f"{visible(one.name)}{chosen}: agreement {_between(one.agreement)}{right}, {_used(one)}, "
        f"{max(0.0, one.seconds):.2f} s"
    )


def _used(one: Rung) -> str:
    labels = f", {one.labels:,} labels" if one.labels else ""
    return f"{one.images:,} images{labels}"


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
    return [round(one, 2) for one in places]
