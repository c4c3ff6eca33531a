"""Contestants that take turns, and the table of their ratios."""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import attrs

HEADER = ("operation", "floor (what)", "floor ms", "ours ms", "ratio", "gate", "pass/fail", "rivals ms")
SHOWN = ("compatkit", "torch", "timm", "safetensors", "huggingface_hub", "mlflow")


class Mismatch(Exception):
    """Contestants did different work, so that their times are not comparable."""


class Timing(NamedTuple):
    """Wall seconds, and processor seconds, which other programs disturb less."""

    wall: float
    processor: float


@attrs.frozen
class Contestant:
    """A timed operation.

    Attributes:
        work: Timed call; its result goes to ``check``.
        prepare: Untimed preparation before each turn, such as clearing caches.
        check: Untimed check of the result; raises ``Mismatch``.
        calls: Calls of ``work`` per turn; the time is divided by it.
    """

    work: Callable[[], Any]
    prepare: Callable[[], object] | None = None
    check: Callable[[Any], object] | None = None
    calls: int = 1

    def turn(self) -> Timing:
        """Return the time of one turn."""
        if self.prepare is not None:
            self.prepare()
        gc.collect()
        processor_start, start = _processor(), time.perf_counter()
        for _ in range(self.calls - 1):
            self.work()
        result = self.work()
        timing = Timing(
            (time.perf_counter() - start) / self.calls, (_processor() - processor_start) / self.calls
        )
        if self.check is not None:
            self.check(result)
        return timing


@attrs.frozen
class Gate:
    """A promised ratio.

    Attributes:
        ratio: Largest multiple of the floor.
        extra: Largest number of seconds above the floor, in place of ``ratio``.
        text: Text in the table, if it is not the plain ratio.
    """

    ratio: float | None = None
    extra: float | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.text:
            return self.text
        return (
            f"at most {self.ratio:g} x"
            if self.ratio is not None
            else f"at most + {1e3 * (self.extra or 0):g} ms"
        )


@attrs.frozen
class Row:
    """Line of the table: ``ours`` against ``floor``, and rivals.

    Attributes:
        operation: Name of the operation.
        floor: Label of the baseline.
        ours: Label of the judged contestant.
        gate: Promised ratio; None for information only.
        rivals: Labels of other contestants.
    """

    operation: str
    floor: str
    ours: str
    gate: Gate | None = None
    rivals: Sequence[str] = ()


Times = dict[str, list[Timing]]


def compete(contestants: Mapping[str, Contestant], rounds: int, seed: int) -> Times:
    """Time all contestants by turns, in a new random order each round, after a warm-up round."""
    order, generator = list(contestants), random.Random(seed)
    times: Times = {label: [] for label in order}
    for number in range(rounds + 1):
        if sys.stderr.isatty():
            print(f"\r  round {number} of {rounds} ", end="", file=sys.stderr, flush=True)
        generator.shuffle(order)
        for label in order:
            timing = contestants[label].turn()
            if number:
                times[label].append(timing)
    say("")
    return times


def ratios(times: Times, ours: str, rival: str, *, processor: bool = False) -> list[float]:
    """Return the ratio of the wall times, or of the processor times, of two contestants in each round."""
    pairs = zip(times[ours], times[rival], strict=True)
    return [mine[processor] / other[processor] for mine, other in pairs]


def ratios_to_fastest(times: Times, ours: str) -> list[float]:
    """Return the ratio of the wall times of a contestant and of the fastest other one, by median, in each round."""
    rivals = (label for label in times if label != ours)
    fastest = min(rivals, key=lambda label: statistics.median(turn.wall for turn in times[label]))
    return ratios(times, ours, fastest)


def lines(rows: Sequence[Row], times: Times) -> list[str]:
    """Return the lines of the table, without rows of contestants that did not run."""
    return [_line(row, times) for row in rows if row.floor in times and row.ours in times]


def _line(row: Row, times: Times) -> str:
    floor, ours = times[row.floor], times[row.ours]
    pairs = list(zip(ours, floor, strict=True))
    ratio = statistics.median(timing.wall / floor_timing.wall for timing, floor_timing in pairs)
    extra = statistics.median(timing.wall - floor_timing.wall for timing, floor_timing in pairs)
    walls, processor = ([_minimum(timings, field) for timings in (ours, floor)] for field in (0, 1))
    ratio_text = f"**{ratio:.3g}** ({walls[0] / walls[1]:.3g}; {processor[0] / max(processor[1], 1e-9):.3g})"
    if row.gate is None:
        verdict = ""
    elif row.gate.extra is not None:
        differences = "; ".join(f"{1e3 * (ours - floor):+.2f}" for ours, floor in (walls, processor))
        ratio_text = f"**{1e3 * extra:+.2f} ms** ({differences}), {ratio:.3g} x"
        verdict = "pass" if extra <= row.gate.extra else "FAIL"
    else:
        verdict = "pass" if row.gate.ratio is not None and ratio <= row.gate.ratio else "FAIL"
    rivals = "; ".join(f"{label} {milliseconds(times[label])}" for label in row.rivals if label in times)
    gate = "" if row.gate is None else str(row.gate)
    medians = milliseconds(floor), milliseconds(ours)
    cells = (row.operation, row.floor, *medians, ratio_text, gate, verdict, rivals)
    return f"| {' | '.join(cells)} |"


def milliseconds(timings: Sequence[Timing]) -> str:
    """Return median and, in brackets, minimum of the wall times, with three digits."""
    walls = [1e3 * timing.wall for timing in timings]
    return f"{_digits(statistics.median(walls))} ({_digits(min(walls))})"


def _minimum(timings: Sequence[Timing], field: int) -> float:
    return min(timing[field] for timing in timings)


def _processor() -> float:
    """Return the processor seconds of this process and its children."""
    own, children = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _digits(value: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{decimals}f}"


def head() -> str:
    """Return the first lines of the table."""
    aligned = [":---", ":---", "---:", "---:", "---:", "---:", ":---:", ":---"]
    return f"| {' | '.join(HEADER)} |\n| {' | '.join(aligned)} |"


def machine() -> str:
    """Return a description of the machine: processor, load, versions."""
    versions = [f"{name} {version(name) or 'not installed'}" for name in SHOWN]
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    system = f"{platform.system()} {platform.release()}"
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, load {load} (1, 5, 15 minutes), {system}, "
        f"Python {platform.python_version()}, one thread; {', '.join(versions)}."
    )


def version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def expect(what: str, actual: object, expected: object) -> None:
    """Check that contestants did the same work.

    Raises:
        Mismatch: The values differ.
    """
    if actual != expected:
        raise Mismatch(f"{what}: expected {expected!r:.200}, got {actual!r:.200}.")
