"""Results of a sweep: a record of each run, and means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.evidence import Cell
from compatkit.errors import Incomplete
from compatkit.experiments.spread import Spread
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.records import RunPlan, RunRecord
from compatkit.foundation.codec import dumps
from compatkit.foundation.display import Shown, aligned
from compatkit.reports import tidy
from compatkit.reports.tabular import Tabular

SEED = "trainer.seed"
"""The value over which means are taken; runs that differ in anything else form separate groups."""
PAIR = (
    *("extractor", "head", "own", "grade", "accuracy", "correct", "count", "low", "high"),
    *("chance", "bound_accuracy", "recovered"),
)
"""Columns of a pair's figures."""


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
            {"extractor": left, "head": right, **attrs.asdict(spread)}
            for (left, right), spread in self.pairs.items()
        ]
        return attrs.asdict(self, filter=lambda field, _: field.name != "pairs") | {"pairs": pairs}


@attrs.frozen(eq=False, repr=False)
class SweepResult(Shown, Tabular):
    """The runs of a sweep: all of them when ``Sweep.run`` returns, those recorded so far from ``Sweep.open``.

    As a table it has a row for each pair of each run, with the seed and the varied values as columns; a run without
    figures has one row, with its state and reason.

    Attributes:
        folder: Folder of its records.
        records: One per run, in the order of the recipe.
        choice: The requested and the used launcher.
        notes: Which runs were repeated or are not shown, and why.
        seeds: Seed of each run by its name, where it is known.
    """

    folder: Path
    records: tuple[RunRecord, ...]
    choice: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    seeds: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def failed(self) -> tuple[RunRecord, ...]:
        """The runs that failed, each with its reason."""
        return tuple(record for record in self.records if record.state == "failed")

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """The runs that were not begun, or not ended."""
        return tuple(record for record in self.records if record.state in ("planned", "begun"))

    def check(self) -> None:
        """Raise if a run failed or is not finished.

        Raises:
            Incomplete: Names every such run, with its reason.
        """
        if self.failed:
            reasons = " ".join(f"{record.run}: {record.reason}" for record in self.failed)
            raise Incomplete(
                f"{len(self.failed)} of {len(self.records)} runs failed. {reasons}", subject=self
            )
        if self.unfinished:
            names = ", ".join(record.run for record in self.unfinished)
            raise Incomplete(
                f"{len(self.unfinished)} of {len(self.records)} runs are not finished: {names}. Go on with the sweep "
                "(--resume).",
                subject=self,
            )

    _columns = ("run", "seed", "state", "reason", "seconds", *PAIR)

    def _rows(self) -> list[dict[str, Any]]:
        return [row for record in self.records for row in _rows(record, self.seeds.get(record.run))]

    def table(self) -> list[tuple[str, ...]]:
        """Return headings, and a row for each group of runs that differ only in the seed."""
        groups = self.groups()
        paths = list(dict.fromkeys(path for group in groups for path in group.values))
        rows: list[tuple[str, ...]] = [(*paths, "runs", "failed", "as trained", "recombined")]
        for group in groups:
            values = (str(worded(group.values[path])) for path in paths)
            figures = ("" if spread is None else str(spread) for spread in (group.own, group.cross))
            rows.append((*values, str(group.runs), str(group.failed or ""), *figures))
        return rows

    def __str__(self) -> str:
        done = sum(record.state == "done" for record in self.records)
        lines = [f"{done} of {len(self.records)} runs done; records are in {self.folder}"]
        lines += aligned(self.table())
        lines += [f"{record.run} failed: {record.reason}" for record in self.failed]
        if self.unfinished:
            lines.append(f"not finished: {', '.join(record.run for record in self.unfinished)}")
        return "\n".join([*lines, *self.notes])

    def groups(self) -> tuple[SeedGroup, ...]:
        """Return means and spreads over seeds, in the order of the recipe."""
        sorts: dict[bytes, list[RunRecord]] = {}
        for record in self.records:
            key = {path: value for path, value in record.values.items() if path != SEED}
            sorts.setdefault(dumps(key), []).append(record)
        return tuple(map(_group, sorts.values()))


def _rows(record: RunRecord, seed: int | None) -> list[dict[str, Any]]:
    """Return a row for each pair of a run, or one with its state."""
    front = {
        "run": record.run,
        "seed": record.values.get(SEED, seed),
        **{path: worded(value) for path, value in record.values.items() if path != SEED},
        "state": record.state,
        "reason": record.reason,
        "seconds": record.seconds,
    }
    matrix = record.figures()
    cells = {} if matrix is None else {(cell.extractor, cell.head): cell for cell in matrix}
    if matrix is None or not cells:
        return [front]
    return [
        front
        | {name: row[name] for name in PAIR}
        | dict(zip(("extractor", "head"), _tasks(cells[row["extractor"], row["head"]]), strict=True))
        for row in tidy.rows(matrix)
    ]


def worded(value: Any) -> Any:
    """Return a varied value for a table: numbers as they are, lists and tables of a recipe as text."""
    if isinstance(value, list | tuple):
        return ", ".join(str(worded(item)) for item in value) or "none"
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} {item}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')} ({rest})".strip() if rest else str(value.get("name", ""))
    return value


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


def _group(records: Sequence[RunRecord]) -> SeedGroup:
    done = [accuracies(run) for run in records if run.state == "done"]
    own = [statistics.fmean(row) for run in done if (row := [v for (a, b), v in run.items() if a == b])]
    cross = [statistics.fmean(row) for run in done if (row := [v for (a, b), v in run.items() if a != b])]
    pairs = dict.fromkeys(pair for run in done for pair in run)
    spreads = {pair: Spread.of([run[pair] for run in done if pair in run]) for pair in pairs}
    return SeedGroup(
        {path: value for path, value in records[0].values.items() if path != SEED},
        len(done),
        sum(run.state == "failed" for run in records),
        Spread.of(own),
        Spread.of(cross),
        {pair: spread for pair, spread in spreads.items() if spread is not None},
    )


def opened(folder: Path) -> SweepResult:
    """Return the results in a folder; see ``Sweep.open``."""
    note = records.read_note(folder)
    if not note.runs:  # written by a version that did not note them
        known = [records.read(folder, name) for name in records.names_of_records(folder)]
        return SweepResult(folder, tuple(filter(None, known)), note.choice)
    notes = list[str]()
    runs = tuple(_record(folder, plan, notes) for plan in note.runs)
    seeds = {plan.run: plan.seed for plan in note.runs}
    return SweepResult(folder, runs, note.choice, tuple(notes), seeds)


def _record(folder: Path, plan: RunPlan, notes: list[str]) -> RunRecord:
    """Return the record of a planned run; a record of another plan is not shown, and is added to the notes."""
    record = records.read(folder, plan.run)
    if record is not None and record.plan == plan.plan:
        return record
    if record is not None:
        notes.append(f"{plan.run} is not shown: its record is {records.OTHER_PLAN}")
    return RunRecord(run=plan.run, values=plan.values, plan=plan.plan, state="planned")
