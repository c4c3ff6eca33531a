"""Results of a sweep: records of its runs, and means and deviations over seeds."""

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
"""Path of the seed; means are over runs that differ in nothing else."""
PAIR = (
    *("extractor", "head", "own", "grade", "accuracy", "correct", "count", "low", "high"),
    *("chance", "bound_accuracy", "recovered"),
)
"""Columns of a pair."""


@attrs.frozen
class SeedGroup:
    """Runs that differ only in the seed.

    Attributes:
        values: Common varied values, by path.
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
    """Records of all runs of a sweep, from ``Sweep.run`` or ``Sweep.open``.

    The table has a row for each pair of each run, with the seed and the varied values as columns. A run without
    a matrix has one row, with its state and reason.

    Attributes:
        folder: Folder of the records.
        records: Records of the runs, in the order of the recipe.
        choice: Requested launcher and used launcher.
        notes: Runs that were repeated or are not shown, with the reason.
        seeds: Seed by name of the run, if known.
    """

    folder: Path
    records: tuple[RunRecord, ...]
    choice: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    seeds: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def failed(self) -> tuple[RunRecord, ...]:
        """Failed runs."""
        return tuple(record for record in self.records if record.state == "failed")

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """Runs that were not begun, or not finished."""
        return tuple(record for record in self.records if record.state in ("planned", "begun"))

    def check(self) -> None:
        """Raise if a run failed or is not finished.

        Raises:
            Incomplete: A run failed, or is not finished; the message lists all of these with their reasons.
        """
        if self.failed:
            reasons = " ".join(f"{record.run}: {record.reason}" for record in self.failed)
            raise Incomplete(
                f"{len(self.failed)} of {len(self.records)} runs failed. {reasons}", subject=self
            )
        if self.unfinished:
            names = ", ".join(record.run for record in self.unfinished)
            raise Incomplete(
                f"{len(self.unfinished)} of {len(self.records)} runs are not finished: {names}. Resume the sweep "
                "(--resume).",
                subject=self,
            )

    _columns = ("run", "seed", "state", "reason", "seconds", *PAIR)

    def _rows(self) -> list[dict[str, Any]]:
        return [row for record in self.records for row in _rows(record, self.seeds.get(record.run))]

    def table(self) -> list[tuple[str, ...]]:
        """Return the header, and a row for each group of runs that differ only in the seed."""
        groups = self.groups()
        paths = list(dict.fromkeys(path for group in groups for path in group.values))
        rows: list[tuple[str, ...]] = [(*paths, "runs", "failed", "as trained", "recombined")]
        for group in groups:
            values = (str(cell_value(group.values[path])) for path in paths)
            spreads = ("" if spread is None else str(spread) for spread in (group.own, group.cross))
            rows.append((*values, str(group.runs), str(group.failed or ""), *spreads))
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
        """Return means and deviations over seeds, in the order of the recipe."""
        groups: dict[bytes, list[RunRecord]] = {}
        for record in self.records:
            key = {path: value for path, value in record.values.items() if path != SEED}
            groups.setdefault(dumps(key), []).append(record)
        return tuple(map(_group, groups.values()))


def _rows(record: RunRecord, seed: int | None) -> list[dict[str, Any]]:
    """Return a row for each pair of a run, or one with its state."""
    run_columns = {
        "run": record.run,
        "seed": record.values.get(SEED, seed),
        **{path: cell_value(value) for path, value in record.values.items() if path != SEED},
        "state": record.state,
        "reason": record.reason,
        "seconds": record.seconds,
    }
    matrix = record.figures()
    cells = {} if matrix is None else {(cell.extractor, cell.head): cell for cell in matrix}
    if matrix is None or not cells:
        return [run_columns]
    return [
        run_columns
        | {name: row[name] for name in PAIR}
        | dict(zip(("extractor", "head"), _tasks(cells[row["extractor"], row["head"]]), strict=True))
        for row in tidy.rows(matrix)
    ]


def cell_value(value: Any) -> Any:
    """Return a varied value for a table cell: numbers unchanged, lists and tables of a recipe as text."""
    if isinstance(value, list | tuple):
        return ", ".join(str(cell_value(item)) for item in value) or "none"
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} {item}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')} ({rest})".strip() if rest else str(value.get("name", ""))
    return value


def accuracies(record: RunRecord) -> dict[tuple[str, str], float]:
    """Return the accuracies of a run's measured pairs, by the names of their tasks."""
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


def read_results(folder: Path) -> SweepResult:
    """Return the results in a folder; see ``Sweep.open``."""
    note = records.read_note(folder)
    if not note.runs:  # written by a version that did not list them
        recorded = [records.read(folder, name) for name in records.recorded_names(folder)]
        return SweepResult(folder, tuple(filter(None, recorded)), note.choice)
    notes = list[str]()
    runs = tuple(_record(folder, plan, notes) for plan in note.runs)
    seeds = {plan.run: plan.seed for plan in note.runs}
    return SweepResult(folder, runs, note.choice, tuple(notes), seeds)


def _record(folder: Path, plan: RunPlan, notes: list[str]) -> RunRecord:
    """Return the record of a planned run; a record of another plan is ignored with a note."""
    record = records.read(folder, plan.run)
    if record is not None and record.plan == plan.plan:
        return record
    if record is not None:
        notes.append(f"{plan.run} is not shown: its record is {records.OTHER_PLAN}")
    return RunRecord(run=plan.run, values=plan.values, plan=plan.plan, state="planned")
