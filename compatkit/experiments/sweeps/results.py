"""What came out of a sweep: a record of every run, and means and spreads over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import dumps
from compatkit.contracts.evidence import Cell
from compatkit.errors import Incomplete
from compatkit.experiments.sweeps.records import RunRecord

SEED = "trainer.seed"
"""The value over which means are taken; runs that differ in anything else are told apart."""


@attrs.frozen
class Spread:
    """Mean and sample standard deviation of some runs; no deviation of a single one."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of ``values``, None where there are none."""
        if not values:
            return None
        return cls(
            statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values)
        )

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" ± {self.deviation:.3f}" if self.deviation is not None else "")


@attrs.frozen
class SeedGroup:
    """The runs that differ in the seed only.

    Attributes:
        values: By path, what they have in common of what varies.
        runs: How many are done.
        failed: How many are not.
        own: Mean accuracy of a run's networks as trained.
        cross: Mean accuracy of a run's recombinations.
        pairs: Accuracy of each pair, by the names of extractor's and head's tasks.
    """

    values: Mapping[str, Any]
    runs: int
    failed: int
    own: Spread | None
    cross: Spread | None
    pairs: Mapping[tuple[str, str], Spread]

    def to_json(self) -> dict[str, Any]:
        """Return the group as JSON values."""

        def plain(one: Spread | None) -> dict[str, Any] | None:
            return None if one is None else attrs.asdict(one)

        pairs = [
            {"extractor": left, "head": right, **attrs.asdict(one)}
            for (left, right), one in self.pairs.items()
        ]
        return {
            "values": dict(self.values),
            "runs": self.runs,
            "failed": self.failed,
            "own": plain(self.own),
            "cross": plain(self.cross),
            "pairs": pairs,
        }


@attrs.frozen(eq=False)
class SweepResult:
    """A sweep that has ended.

    Attributes:
        folder: Where its records are.
        records: One a run, in the order of the recipe.
        choice: Which back end was asked for, and which ran it.
        notes: What was done again, and why.
    """

    folder: Path
    records: tuple[RunRecord, ...]
    choice: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[RunRecord, ...]:
        """The runs that failed, each with its reason."""
        return tuple(one for one in self.records if one.state == "failed")

    def check(self) -> None:
        """Refuse a sweep of which a run failed.

        Raises:
            Incomplete: Names every such run with its reason.
        """
        if self.failed:
            told = " ".join(f"{one.run}: {one.reason}" for one in self.failed)
            raise Incomplete(f"{len(self.failed)} of {len(self.records)} runs failed. {told}", subject=self)

    def groups(self) -> tuple[SeedGroup, ...]:
        """Return means and spreads over seeds, in the order of the recipe."""
        sorts: dict[bytes, list[RunRecord]] = {}
        for record in self.records:
            key = {path: value for path, value in record.values.items() if path != SEED}
            sorts.setdefault(dumps(key), []).append(record)
        return tuple(map(_group, sorts.values()))


def accuracies(record: RunRecord) -> dict[tuple[str, str], float]:
    """Return what the pairs of a run reached, by the names of their tasks; those without a figure are left out."""
    matrix = record.figures()
    cells = () if matrix is None else matrix.cells
    return {_tasks(cell): cell.restricted.accuracy for cell in cells if cell.restricted is not None}


def _tasks(cell: Cell) -> tuple[str, str]:
    left, right = (
        name.split("@")[0].split("/")[-1].rsplit(".", 1)[0] for name in (cell.extractor, cell.head)
    )
    return left, right


def _group(found: Sequence[RunRecord]) -> SeedGroup:
    done = [accuracies(one) for one in found if one.state == "done"]
    own = [statistics.fmean(kept) for one in done if (kept := [v for (a, b), v in one.items() if a == b])]
    cross = [statistics.fmean(kept) for one in done if (kept := [v for (a, b), v in one.items() if a != b])]
    pairs = dict.fromkeys(pair for one in done for pair in one)
    spreads = {pair: Spread.of([one[pair] for one in done if pair in one]) for pair in pairs}
    return SeedGroup(
        {path: value for path, value in found[0].values.items() if path != SEED},
        len(done),
        sum(one.state == "failed" for one in found),
        Spread.of(own),
        Spread.of(cross),
        {pair: spread for pair, spread in spreads.items() if spread is not None},
    )
