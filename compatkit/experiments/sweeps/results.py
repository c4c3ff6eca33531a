"""The result of a sweep: a record of each run, and means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import dumps
from compatkit.contracts.evidence import Cell
from compatkit.errors import Incomplete
from compatkit.experiments.spread import Spread
from compatkit.experiments.sweeps.records import RunRecord

SEED = "trainer.seed"
"""The value over which means are taken; runs that differ in anything else form separate groups."""


@attrs.frozen
class SeedGroup:
    """Runs that differ only in the seed.

    Attributes:
        values: Their common varied values, by path.
        runs: Number of finished runs.
        failed: Number of failed runs.
        own: Mean accuracy of a run's networks as trained.
        cross: Mean accuracy of a run's recombinations.
        pairs: Accuracy of each pair, by the names of the extractor's and the head's tasks.
    """

    values: Mapping[str, Any]
    runs: int
    failed: int
    own: Spread | None
    cross: Spread | None
    pairs: Mapping[tuple[str, str], Spread]

    def to_json(self) -> dict[str, Any]:
        """Return the group as JSON values."""
        pairs = [
            {"extractor": left, "head": right, **attrs.asdict(one)}
            for (left, right), one in self.pairs.items()
        ]
        return attrs.asdict(self, filter=lambda field, _: field.name != "pairs") | {"pairs": pairs}


@attrs.frozen(eq=False)
class SweepResult:
    """A completed sweep.

    Attributes:
        folder: Folder of its records.
        records: One per run, in the order of the recipe.
        choice: The requested and the used back end.
        notes: Which runs were repeated, and why.
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
        """Raise if a run failed.

        Raises:
            Incomplete: Names every failed run with its reason.
        """
        if self.failed:
            reasons = " ".join(f"{one.run}: {one.reason}" for one in self.failed)
            raise Incomplete(
                f"{len(self.failed)} of {len(self.records)} runs failed. {reasons}", subject=self
            )

    def groups(self) -> tuple[SeedGroup, ...]:
        """Return means and spreads over seeds, in the order of the recipe."""
        sorts: dict[bytes, list[RunRecord]] = {}
        for record in self.records:
            key = {path: value for path, value in record.values.items() if path != SEED}
            sorts.setdefault(dumps(key), []).append(record)
        return tuple(map(_group, sorts.values()))


def accuracies(record: RunRecord) -> dict[tuple[str, str], float]:
    """Return the accuracies of a run's pairs by the names of their tasks, without pairs that have no figure."""
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
