"""A promise about speed, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from statistics import median, quantiles
from typing import Any, Literal

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
        needs: Device that the row is about, ``"cuda"``; empty for a CPU.
        arguments: Further arguments of the function.
    """

    key: str
    work: str
    rival: str
    unit: Unit
    goal: float
    source: str
    rounds: int = 9
    why: str = ""
    needs: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, eq=False)

    @property
    def possible(self) -> bool:
        """Whether this machine has what the row needs."""
        return not self.needs or import_module("torch").cuda.is_available()

    def measure(self, rounds: int, **settings: Any) -> list[float]:
        """Return the figure of each round; ``settings`` are further arguments, such as the size of the work."""
        script, function = self.source.split(":")
        call: Callable[..., list[float]] = getattr(import_module(script), function)
        return call(rounds, **self.arguments, **settings)


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
