"""Expected time of a study: what its runs took before, from a file beside the study's module.

``durations.json`` is ``{"machine": text, "studies": {number: {size: {"seconds": {arm: mean}, "seeds": n, "changes":
{setting: value}}}}}``; ``changes`` are settings of the measured runs that differ from those of the size.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.experiments.folders import read_json
from compatkit.experiments.studies.finding import InstalledStudy
from compatkit.foundation.codec import structure

FILE = "durations.json"


@attrs.frozen
class Measured:
    """What the runs of a study took at one size.

    Attributes:
        seconds: Mean seconds of a run, by arm.
        seeds: Number of seeds.
        changes: Settings that differ from those of the size.
    """

    seconds: Mapping[str, float]
    seeds: int
    changes: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Durations:
    """Content of ``durations.json``.

    Attributes:
        machine: What the runs were measured on.
        studies: Measured runs by size, by number of the study.
    """

    machine: str
    studies: Mapping[str, Mapping[str, Measured]]


@attrs.frozen
class Expected:
    """Expected time of one seed of some arms.

    Attributes:
        seconds: Sum over the arms that were measured.
        unknown: Arms that were not.
        machine: What was measured on.
        seeds: Number of seeds measured.
        changes: Settings of the measured runs that differ from those of the size.
    """

    seconds: float
    unknown: tuple[str, ...]
    machine: str
    seeds: int
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        least = "at least " if self.unknown else "about "
        other = f"; measured with {', '.join(f'{name}={value}' for name, value in self.changes.items())}"
        rest = f"; not measured: {', '.join(self.unknown)}" if self.unknown else ""
        return f"{least}{words(self.seconds)} a seed ({self.machine}{other if self.changes else ''}{rest})"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


def expected(installed: InstalledStudy, size: str, arms: Sequence[str] = ()) -> Expected | None:
    """Return the expected time of one seed; None if no run of this size was measured.

    Args:
        installed: Study.
        size: Name of a size.
        arms: Arms of the study; empty for all.

    Raises:
        FormatError: The file of durations is damaged.
    """
    path = Path(inspect.getfile(installed.study.run)).with_name(FILE)
    document = read_json(path)
    if document is None:
        return None
    try:
        known = structure(Durations, document, FILE)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", subject=path) from error
    measured = known.studies.get(installed.number, {}).get(size)
    if measured is None:
        return None
    wanted = arms or installed.study.arms
    seconds = sum(measured.seconds.get(arm, 0.0) for arm in wanted)
    unknown = tuple(arm for arm in wanted if arm not in measured.seconds)
    if len(unknown) == len(wanted):
        return None
    return Expected(seconds, unknown, known.machine, measured.seeds, measured.changes)


def words(seconds: float) -> str:
    """Return a time in words, such as ``"40 s"``, ``"12 min"`` or ``"3.5 h"``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
