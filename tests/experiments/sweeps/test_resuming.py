"""A sweep goes on: finished runs are taken, interrupted ones go on from their checkpoint, others are done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from swept import TASK

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.results import accuracies

ONE = ((TASK, ""),)
"""Leaves the second task out, where one tells as much."""
SEEDS = '"trainer.seed" = [0, 1]'


def run(file: Path, tmp_path: Path, **kwargs: Any) -> Any:
    return ck.Sweep.read(file).run(tmp_path / "parts", **{"launcher": "sequential", **kwargs})


@pytest.fixture
def trained(monkeypatch: Any) -> list[int]:
    """The seeds that were trained, in order."""
    seeds: list[int] = []
    fit = ck.Trainer.fit

    def count(self: ck.Trainer, *args: Any, **kwargs: Any) -> ck.Fit:
        seeds.append(self.seed)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(ck.Trainer, "fit", count)
    return seeds


def test_what_is_done_is_taken_and_a_new_seed_is_added(
    recipe: Any, tmp_path: Path, trained: list[int]
) -> None:
    first = run(recipe(SEEDS, change=ONE), tmp_path)
    again_recipe = recipe('"trainer.seed" = [0, 1, 2]', change=ONE)
    again = run(again_recipe, tmp_path, resume=True)
    assert trained == [0, 1, 2]
    assert again.records[:2] == first.records and not again.notes
    nothing_left = run(again_recipe, tmp_path, resume=True, launcher="process")
    assert trained == [0, 1, 2] and nothing_left.records == again.records


def test_a_record_of_another_plan_is_done_again_and_told(
    recipe: Any, tmp_path: Path, trained: list[int]
) -> None:
    run(recipe('"trainer.seed" = [0]', change=ONE), tmp_path)
    outcome = run(
        recipe('"trainer.seed" = [0]', change=(*ONE, ("steps = 3", "steps = 2"))), tmp_path, resume=True
    )
    assert trained == [0, 0] and "seed0 is done again: its record is of another plan" in outcome.notes[0]


def test_a_failed_and_a_damaged_run_are_made_again(recipe: Any, tmp_path: Path, trained: list[int]) -> None:
    first = run(recipe(SEEDS, change=ONE), tmp_path)
    records.write(first.folder, first.records[0].failed(ValueError("was killed")))
    (first.folder / "seed1.json").write_bytes(b"{")
    outcome = run(recipe(SEEDS, change=ONE), tmp_path, resume=True)
    assert trained == [0, 1, 0, 1]
    assert "seed0 failed before (ValueError: was killed), and is done again" in outcome.notes
    assert "its record is damaged" in outcome.notes[1]
    assert [record.parts for record in outcome.records] == [record.parts for record in first.records]


def test_an_interrupted_run_goes_on_from_its_checkpoint(
    recipe: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from compatkit.training.loop import Loop

    file = recipe(SEEDS, change=(*ONE, ("steps = 3", "steps = 3\ncheckpoint_every = 1")))
    whole = run(file, tmp_path, out=tmp_path / "whole")
    step, taken = Loop.step, list[tuple[int, int]]()

    def stop(self: Loop, task: Any, number: int, reports: bool) -> Any:
        if number == 2 and self.setup.seed == 1:
            raise KeyboardInterrupt
        return step(self, task, number, reports)

    monkeypatch.setattr(Loop, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        run(file, tmp_path, out=tmp_path / "cut")
    assert records.read(tmp_path / "cut", "seed1").state == "begun"  # type: ignore[union-attr]

    def count(self: Loop, task: Any, number: int, reports: bool) -> Any:
        taken.append((self.setup.seed, number))
        return step(self, task, number, reports)

    monkeypatch.setattr(Loop, "step", count)
    outcome = run(file, tmp_path, out=tmp_path / "cut", resume=True)
    assert taken == [(1, 2)]
    assert outcome.notes == ("seed1 was interrupted, and resumes from its checkpoint",)
    for record, other in zip(whole.records, outcome.records, strict=True):
        assert (record.fit, record.losses, accuracies(record)) == (other.fit, other.losses, accuracies(other))
        assert record.parts == other.parts  # the same version: the same bytes


def test_a_registry_that_lost_the_parts_gets_them_again(
    recipe: Any, tmp_path: Path, trained: list[int]
) -> None:
    file = recipe('"trainer.seed" = [0]', change=ONE)
    run(file, tmp_path, out=tmp_path / "records")
    sweep = ck.Sweep.read(file)
    outcome = sweep.run(tmp_path / "others", out=tmp_path / "records", resume=True, launcher="sequential")
    assert trained == [0, 0] and "the registry does not hold its parts" in outcome.notes[0]


def test_a_folder_that_is_taken(recipe: Any, tmp_path: Path) -> None:
    file = recipe('"trainer.seed" = [0]', change=ONE)
    run(file, tmp_path)
    with pytest.raises(UsageError, match=r"holds a sweep already.*--resume"):
        run(file, tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match="holds other files and no sweep"):
            run(file, tmp_path, out=tmp_path / "full", resume=resume)
    with pytest.raises(UsageError, match="is a file"):
        run(file, tmp_path, out=tmp_path / "full" / "notes.txt")
