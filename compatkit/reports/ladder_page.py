"""The same picture on a page: where the points, ticks and names of a ladder stand, for the template to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from compatkit.evaluation.cells import Figure, Rung
from compatkit.reports.ladder import LEAST
from compatkit.reports.wording import share, visible

LEFT, RIGHT, TOP, NAMES = 40.0, 330.0, 12.0, 362.0
"""Units of the picture: ends of the axis of seconds, where shares of 1 stand, where names begin."""
HEIGHT, LINE, MARGIN = 170.0, 15.0, 12.0
"""From a share of 1 down to 0, at least; from one name to the next; from an axis to the first point."""
DECADES = 6
"""Ticks at most."""


@attrs.frozen
class Point:
    """One rung: its place, and the line of its name."""

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
    """What the template draws; ticks are places with their texts."""

    points: tuple[Point, ...]
    seconds: tuple[tuple[float, str], ...]
    shares: tuple[tuple[float, str], ...]
    left: float
    right: float
    names: float
    bottom: float
    height: float


def picture(rungs: Sequence[Rung]) -> Picture | None:
    """Return the picture of a ladder, or None where there is none.

    Seconds run to the right on a logarithmic axis, shares upwards from 0 to 1. Names stand in a column beside, in the
    order of agreement, since rungs in closed form lie close together.
    """
    if not rungs:
        return None
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
            name=f"{visible(one.name)}, {one.images:,} images",
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


def _told(one: Rung) -> str:
    """Return a rung in words, for whoever points at it or has it read out."""
    right = "" if one.accuracy is None else f", accuracy {_between(one.accuracy)}"
    chosen = ", chosen" if one.chosen else ""
    return (
        f"{visible(one.name)}{chosen}: agreement {_between(one.agreement)}{right}, {one.images:,} images, "
        f"{max(0.0, one.seconds):.2f} s"
    )


def _between(figure: Figure) -> str:
    return f"{share(figure.accuracy)} ({share(figure.low)} to {share(figure.high)})"


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return places near those wanted, ``LINE`` apart at least, between top and bottom where they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    above = top - LINE
    for index in order:
        above = places[index] = max(above + LINE, wanted[index])
    below = bottom + LINE
    for index in reversed(order):
        below = places[index] = min(below - LINE, places[index])
    return [round(one, 2) for one in places]
