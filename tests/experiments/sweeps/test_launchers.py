"""A launcher of another package carries out a sweep; what it leaves out or answers wrongly is an error in its name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from swept import TASK

import compatkit as ck
from compatkit.errors import EnvironmentFailure, PluginError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.results import accuracies

SOURCE = """
from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure

@hookimpl
def compatkit_launchers(register):
    register("mine", lambda: launch)

def launch(work, jobs, workers):
    if workers == 5:
        raise RuntimeError("no such queue")
    for position, job in reversed(list(enumerate(jobs))):
        assert isinstance(job, str) and work.__module__.startswith("compatkit.")
        yield {ANSWER}
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a launcher that yields an expression for each job, the last job first."""

    def install(answer: str) -> None:
        information = tmp_path / "site" / "mine-1.dist-info"
        information.mkdir(parents=True)
        (tmp_path / "site" / "mine_launcher.py").write_text(SOURCE.replace("{ANSWER}", answer))
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
        (information / "entry_points.txt").write_text("[compatkit]\nlaunchers.mine = mine_launcher\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    yield install
    sys.modules.pop("mine_launcher", None)


@pytest.fixture
def sweep(recipe: Any) -> ck.Sweep:
    """Two runs of one task."""
    return ck.Sweep.read(recipe('"trainer.seed" = [0, 1]', change=((TASK, ""),)))


def test_its_runs_are_bitwise_those_of_this_process(
    sweep: ck.Sweep, tmp_path: Path, launcher: Callable[[str], None]
) -> None:
    launcher("position, work(job)")
    here = sweep.run(tmp_path / "one", launcher="sequential")
    sweep_result = sweep.run(tmp_path / "two", launcher="mine", workers=2)
    assert [(record.run, record.state, record.launcher) for record in sweep_result.records] == [
        ("seed0", "done", "mine"),
        ("seed1", "done", "mine"),
    ]
    for record, other in zip(here.records, sweep_result.records, strict=True):
        assert (record.fit, record.losses, accuracies(record)) == (other.fit, other.losses, accuracies(other))
    text = (sweep_result.folder / "seed0.json").read_text()
    assert '"backend":"mine"' in text and "launcher" not in text, "the key on disk stays"
    assert sweep.run(tmp_path / "two", launcher="mine", resume=True).records == sweep_result.records


def test_an_error_in_place_of_an_answer_fails_that_run_only(
    sweep: ck.Sweep, tmp_path: Path, launcher: Callable[[str], None]
) -> None:
    launcher('position, (EnvironmentFailure("The queue lost it.") if position else work(job))')
    ended = sweep.run(tmp_path / "parts", launcher="mine")
    assert [record.state for record in ended.records] == ["done", "failed"]
    (failed,) = ended.failed
    assert (failed.run, failed.code, failed.reason) == (
        "seed1",
        EnvironmentFailure.code,
        "The queue lost it.",
    )
    assert records.read(ended.folder, "seed1") == failed


@pytest.mark.parametrize(
    ("answer", "subject"), [("7, 'text'", "7"), ("position, 3", "3"), ("0, EnvironmentFailure('gone')", "0")]
)
def test_an_answer_that_is_none_is_an_error_of_the_launcher(
    sweep: ck.Sweep, tmp_path: Path, launcher: Callable[[str], None], answer: str, subject: str
) -> None:
    launcher(answer)
    with pytest.raises(PluginError, match=subject) as error:
        sweep.run(tmp_path / "parts", launcher="mine")
    assert error.value.plugin == "launchers.mine"


def test_a_run_without_an_answer_is_named(
    sweep: ck.Sweep, tmp_path: Path, launcher: Callable[[str], None]
) -> None:
    launcher('position, EnvironmentFailure("gone")\n        return')
    with pytest.raises(PluginError, match="seed0") as error:
        sweep.run(tmp_path / "parts", launcher="mine")
    assert error.value.plugin == "launchers.mine"


def test_a_launcher_that_raises_is_named(
    sweep: ck.Sweep, tmp_path: Path, launcher: Callable[[str], None]
) -> None:
    launcher("position, work(job)")
    with pytest.raises(PluginError, match="no such queue") as error:
        sweep.run(tmp_path / "parts", launcher="mine", workers=5)
    assert error.value.plugin == "launchers.mine"
