"""Study 3.1b: what is measured on the way is what the networks give there, and an interrupted run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies import along_training
from compatkit_studies._pairs import measure, ordered

TINY: dict[str, Any] = {"train": 48, "test": 24, "steps": 4, "every": 2, "batch_size": 8, "test_batch": 24}


def run_of(arm: str) -> Run:
    return Run("3.1b", arm, 0, settings_of(find("3.1b"), "cpu", TINY), StudyData("3.1b"))


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    write_pack(tmp_path, data_set("cifar10", channels=3, count=96, size=(32, 32)))
    return tmp_path


def test_accuracy_on_the_way_is_the_matrix_s() -> None:
    """Heads of other classes in another order are read by name; nothing of the networks moves."""
    few = data_set("right", classes=("0", "2", "9"), seed=1)
    sets = [data_set("left"), ordered(few, "rolled")]
    tasks = [ck.Task(entry.name, entry, "resnet8_cifar", "layer2", size=16) for entry in sets]
    fit = quick(steps=3).fit(tasks, ["identical_init"])
    before = {name: fit.weights(name) for name in fit.tasks}
    run = attrs.evolve(run_of("iiw"), settings={"test_batch": 48})
    on_the_way = {
        (task, other): along_training.recombined(run, fit.tasks[task], fit.tasks[other])
        for task in fit.tasks
        for other in fit.tasks
    }
    matrix = {
        (cell["extractor"], cell["head"]): cell["accuracy"] for cell in measure(run, [fit], tasks, ["batch"])
    }
    assert on_the_way == pytest.approx(matrix)
    assert all(
        (value == before[name][key]).all() for name in fit.tasks for key, value in fit.weights(name).items()
    )
    assert not any(state.extractor.training or state.head.training for state in fit.tasks.values())


def test_rows_stand_every_so_many_steps_and_a_picture_is_drawn(packs: Path) -> None:
    out = packs / "out"
    carry_out("3.1b", out, seeds=1, arms=["none", "rp"], data=str(packs), changes=TINY)
    saved = {
        line["arm"]: line["kept"]["along"]
        for line in map(json.loads, (out / "runs.jsonl").read_text().splitlines())
    }
    assert [row["step"] for row in saved["rp"]] == [2, 4]
    assert all(row["turns"] > 0 for row in saved["rp"]) and all("turns" not in row for row in saved["none"])
    assert (out / "along.png").stat().st_size > 5000
    assert not list(out.glob("*.checkpoint"))


def test_an_interrupted_run_goes_on_from_its_checkpoint(packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(folder: str) -> list[dict[str, Any]]:
        carry_out("3.1b", packs / folder, seeds=1, arms=["rp"], data=str(packs), changes=TINY)
        (line,) = map(json.loads, (packs / folder / "runs.jsonl").read_text().splitlines())
        return [line["values"], line["kept"]["along"]]

    whole, trainer_of = rows("whole"), along_training.trainer_of
    monkeypatch.setattr(
        along_training, "trainer_of", lambda run: attrs.evolve(trainer_of(run), checkpoint_every=2)
    )
    after_step = along_training.Watch.compatkit_after_step

    @ck.hookimpl
    def stopped(self: along_training.Watch, step: ck.Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt
        after_step(self, step)

    monkeypatch.setattr(along_training.Watch, "compatkit_after_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        rows("parts")
    assert len(list((packs / "parts").glob("rp-0-*.checkpoint"))) == 1
    monkeypatch.setattr(along_training.Watch, "compatkit_after_step", after_step)
    assert rows("parts") == whole
    assert not list((packs / "parts").glob("*.checkpoint"))
