"""Contestants that take turns, and the table of their ratios; knows nothing of registries."""

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


class Different(Exception):
    """Two contestants did not do the same work, so that their times say nothing."""


class Taken(NamedTuple):
    """Seconds on the clock, and those of the processor, which other programs disturb less."""

    wall: float
    processor: float


@attrs.frozen
class Contestant:
    """A timed operation.

    Attributes:
        work: Is timed; gives what ``check`` looks at.
        prepare: Untimed preparation before each call: forgetting, fresh names.
        check: Looks at what came out, not timed; raises ``Different``.
        calls: How often ``work`` is called a turn; the time is divided by it.
    """

    work: Callable[[], Any]
    prepare: Callable[[], object] | None = None
    check: Callable[[Any], object] | None = None
    calls: int = 1

    def turn(self) -> Taken:
        """Return what one turn took."""
        if self.prepare is not None:
            self.prepare()
        gc.collect()
        used, begun = _processor(), time.perf_counter()
        for _ in range(self.calls - 1):
            self.work()
        came = self.work()
        taken = Taken((time.perf_counter() - begun) / self.calls, (_processor() - used) / self.calls)
        if self.check is not None:
            self.check(came)
        return taken


@attrs.frozen
class Gate:
    """A promised ratio.

    Attributes:
        ratio: At most so many times the floor.
        extra: Or: at most so many seconds above it.
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
    """One line of the table: ``ours`` beside ``floor``, and rivals.

    Attributes:
        operation: Name of the operation.
        floor: Label of the contestant that is the yardstick.
        ours: Label of the one that is judged.
        gate: Promised ratio; None for information only.
        rivals: Labels of others.
    """

    operation: str
    floor: str
    ours: str
    gate: Gate | None = None
    rivals: Sequence[str] = ()


Times = dict[str, list[Taken]]


def compete(contestants: Mapping[str, Contestant], rounds: int, seed: int) -> Times:
    """Let all take turns, in another order each round; a first round, which warms up, is not counted."""
    order, draw = list(contestants), random.Random(seed)
    times: Times = {label: [] for label in order}
    for number in range(rounds + 1):
        print(f"\r  round {number} of {rounds} ", end="", file=sys.stderr, flush=True)
        draw.shuffle(order)
        for label in order:
            taken = contestants[label].turn()
            if number:
                times[label].append(taken)
    say("")
    return times


def lines(rows: Sequence[Row], times: Times) -> list[str]:
    """Return the table's lines; rows whose contestants did not run are left out."""
    return [_line(row, times) for row in rows if row.floor in times and row.ours in times]


def _line(row: Row, times: Times) -> str:
    floor, ours = times[row.floor], times[row.ours]
    pairs = list(zip(ours, floor, strict=True))
    ratio = statistics.median(one.wall / other.wall for one, other in pairs)
    extra = statistics.median(one.wall - other.wall for one, other in pairs)
    least, used = ([_least(one, what) for one in (ours, floor)] for what in (0, 1))
    told = f"**{ratio:.3g}** ({least[0] / least[1]:.3g}; {used[0] / max(used[1], 1e-9):.3g})"
    if row.gate is None:
        verdict = ""
    elif row.gate.extra is not None:
        both = "; ".join(f"{1e3 * (ours - floor):+.2f}" for ours, floor in (least, used))
        told = f"**{1e3 * extra:+.2f} ms** ({both}), {ratio:.3g} x"
        verdict = "pass" if extra <= row.gate.extra else "FAIL"
    else:
        verdict = "pass" if row.gate.ratio is not None and ratio <= row.gate.ratio else "FAIL"
    rivals = "; ".join(f"{label} {milliseconds(times[label])}" for label in row.rivals if label in times)
    gate = "" if row.gate is None else str(row.gate)
    return (
        "| "
        + " | ".join(
            (row.operation, row.floor, milliseconds(floor), milliseconds(ours), told, gate, verdict, rivals)
        )
        + " |"
    )


def milliseconds(taken: Sequence[Taken]) -> str:
    """Return median and, in brackets, minimum of the wall times, with three digits."""
    walls = [1e3 * one.wall for one in taken]
    return f"{_digits(statistics.median(walls))} ({_digits(min(walls))})"


def _least(taken: Sequence[Taken], which: int) -> float:
    return min(one[which] for one in taken)


def _processor() -> float:
    """Return the seconds that this process and its children computed."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _digits(value: float) -> str:
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{places}f}"


def head() -> str:
    """Return the first lines of the table."""
    aligned = [":---", ":---", "---:", "---:", "---:", "---:", ":---:", ":---"]
    return f"| {' | '.join(HEADER)} |\n| {' | '.join(aligned)} |"


def machine() -> str:
    """Return what the figures depend on: processor, load, versions."""
    found = [f"{name} {version(name) or 'not installed'}" for name in SHOWN]
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    system = f"{platform.system()} {platform.release()}"
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, load {load} (1, 5, 15 minutes), {system}, "
        f"Python {platform.python_version()}, one thread; {', '.join(found)}."
    )


def version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not there."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def say(text: str) -> None:
    """Tell what is being done."""
    print(text, file=sys.stderr, flush=True)


def expect(what: str, came: object, expected: object) -> None:
    """Refuse figures of work that was not the same.

    Raises:
        Different: It was not.
    """
    if came != expected:
        raise Different(f"{what}: expected {expected!r:.200}, got {came!r:.200}.")
