"""Runs of a study in other processes: every bit of one process, a killed one is started again, others stand."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import EnvironmentFailure, Incomplete
from compatkit.experiments.studies import read
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.jobs import work
from compatkit.experiments.studies.records import FILE
from compatkit.plugins.launching import Launcher

STUDY = """
import os
import signal
from pathlib import Path

import torch

from compatkit import hookimpl
from compatkit.experiments.studies import Measure, Outcome, Study

compatkit_api = 1


def run(run):
    order = Path(os.environ["ORDERS"]) / f"{run.arm}-{run.seed}"
    if order.is_file():
        text = order.read_text()
        if text == "fail":
            raise ValueError("as ordered")
        if text != "0":
            order.write_text(str(int(text) - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(run.seed)
    value = float((torch.randn(300, 300) @ torch.randn(300, 300)).sum()) + run.settings["shift"]
    return Outcome(values={"sum": value}, figure_data={"threads": torch.get_num_threads()})


STUDY = Study(
    title="a toy", question="?", reference="none", arms=("one", "two"), measures=(Measure(name="sum", title="sum"),),
    sizes={"cpu": {"shift": 0.0}, "paper": {"shift": 0.0}}, scale={"cpu": "", "paper": ""}, paper=(), run=run,
)


@hookimpl
def compatkit_studies(register):
    register("toy", lambda: STUDY)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / f"toy_{tmp_path.name}.py"
    file.write_text(STUDY)
    monkeypatch.setenv("COMPATKIT_PLUGIN_FILES", str(file))
    monkeypatch.setenv("ORDERS", str(tmp_path))
    yield tmp_path
    sys.modules.pop(file.stem, None)


def plain(document: Any) -> dict[str, Any]:
    """What does not depend on when and where it ran."""
    return {name: document[name] for name in ("results", "notes", "settings", "seeds", "own_arms")}


def test_two_workers_give_every_bit_of_one_process_and_a_killed_one_is_started_again(toy: Path) -> None:
    here = carry_out("toy", toy / "here", seeds=2)
    (toy / "two-1").write_text("1")
    seen: list[tuple[int, int, str]] = []
    there = carry_out("toy", toy / "there", seeds=2, workers=2, progress=lambda *words: seen.append(words))
    assert plain(there) == plain(here) == plain(read(toy / "there"))
    assert (toy / "two-1").read_text() == "0"
    assert [done for done, total, _ in seen if total == 4][-1] == 4
    kept = [
        json.loads(line)["kept"]
        for name in ("here", "there")
        for line in (toy / name / FILE).read_text().splitlines()
    ]
    assert len({one["threads"] for one in kept}) == 1 and len(kept) == 8
    assert sorted(os.listdir(toy / "there")) == ["figure.png", "results.json", "runs.jsonl", "table.md"]


def test_runs_that_fail_are_named_others_stand_and_the_same_command_goes_on(toy: Path) -> None:
    (toy / "one-0").write_text("fail")
    (toy / "two-0").write_text("9")
    with pytest.raises(Incomplete) as error:
        carry_out("toy", toy / "out", seeds=2, workers=2)
    assert error.value.subject == ("one, seed 0", "two, seed 0")
    assert "as ordered" in str(error.value) and signal.SIGKILL.name in str(error.value)
    before = (toy / "out" / FILE).read_text().splitlines()
    assert len(before) == 2
    (toy / "one-0").unlink()
    (toy / "two-0").unlink()
    carry_out("toy", toy / "out", seeds=2, workers=2)
    after = (toy / "out" / FILE).read_text().splitlines()
    assert after[:2] == before and len(after) == 4


def test_a_worker_that_does_not_see_the_folder_is_an_error(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(self: Launcher, task: Any, jobs: list[str], labels: list[str]) -> Iterator[tuple[int, str]]:
        job = json.loads(jobs[0])
        yield 0, work(json.dumps({**job, "mark": job["mark"] + "-elsewhere"}))

    monkeypatch.setattr(Launcher, "answers", answers)
    with pytest.raises(EnvironmentFailure) as error:
        carry_out("toy", toy / "out", seeds=1, workers=2)
    assert error.value.subject == toy / "out"
    assert not (toy / "out").exists()
