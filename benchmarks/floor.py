"""The floor: work that compatkit should do as fast as the best other way, with the goal of each row.

A row names a function of a script of this folder, ``FUNCTION(rounds)``. It measures both contestants by turns in one
process and returns a figure for each round: ours divided by the rival's, or what ours adds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from statistics import median, quantiles
from typing import Literal

import attrs

Unit = Literal["x", "us", "ms", "slope"]


@attrs.frozen
class Row:
    """A promise about speed.

    Attributes:
        key: Name of the row on the command line.
        work: What is timed.
        rival: What it is compared with.
        unit: ``x``: ratio of times, ours by the rival's; ``us``, ``ms``: time that ours adds; ``slope``: of the line
            through log time over log size, 1 where time is proportional to size.
        goal: Largest median that meets the promise.
        source: ``SCRIPT:FUNCTION`` that measures it.
        rounds: Rounds by default.
        why: Where the time goes, if the goal is missed.
    """

    key: str
    work: str
    rival: str
    unit: Unit
    goal: float
    source: str
    rounds: int = 9
    why: str = ""

    def measure(self, rounds: int) -> list[float]:
        """Return the figure of each round."""
        script, function = self.source.split(":")
        call: Callable[[int], list[float]] = getattr(import_module(script), function)
        return call(rounds)


@attrs.frozen
class Figure:
    """What was measured of a row.

    Attributes:
        key: Name of the row.
        median: Median over the rounds.
        low: Lower quartile.
        high: Upper quartile.
        rounds: Number of rounds.
        load: Load of the machine at the end, averaged over a minute.
        date: Day, ISO 8601.
    """

    key: str
    median: float
    low: float
    high: float
    rounds: int
    load: float
    date: str

    @classmethod
    def of(cls, key: str, values: list[float], load: float, date: str) -> Figure:
        """Summarize the figures of all rounds."""
        low, _, high = quantiles(values, method="inclusive") if len(values) > 1 else 3 * values
        return cls(key, median(values), low, high, len(values), load, date)


ROWS = (
    Row(
        "tiny-step-fit",
        "a step of a tiny network through `fit`, three idle plugins, everything included, SGD",
        "bare loop with the same data and optimizer",
        "us",
        15,
        "trainer_overhead:fit_step",
    ),
    Row(
        "tiny-step-loop",
        "the same step in the trainer's loop alone",
        "the same bare loop",
        "us",
        8,
        "trainer_overhead:loop_step",
    ),
)
