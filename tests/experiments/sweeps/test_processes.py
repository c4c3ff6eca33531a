"""Runs in processes of their own: bitwise those of one process, and one that is killed fails its own run only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swept import TASK

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.sweeps.results import accuracies

KILLER = """
import os, signal
from compatkit import hookimpl

class Killer:
    @hookimpl
    def compatkit_after_step(self, step):
        print("a plugin may print")
        if step.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)

@hookimpl
def compatkit_regularizers(register):
    register("killer", Killer)
"""


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: Any) -> Iterator[None]:
    """Install a plugin that kills its own process in the run with seed 1."""
    information = tmp_path / "site" / "killer-1.dist-info"
    information.mkdir(parents=True)
    (tmp_path / "site" / "killer_plugin.py").write_text(KILLER)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: killer\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[compatkit]\nregularizers.killer = killer_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("killer_plugin", None)


def test_processes_give_bitwise_what_one_gives_and_a_killed_one_fails_its_own_run_only(
    recipe: Any, tmp_path: Path, killer: None
) -> None:
    change = ((TASK, ""), ("prefix", 'regularizers = ["killer"]\nprefix'))
    here = ck.Sweep.read(recipe('"trainer.seed" = [0, 2]', change=change)).run(tmp_path / "one")
    sweep_result = ck.Sweep.read(recipe('"trainer.seed" = [0, 1, 2]', change=change)).run(
        tmp_path / "two", workers=1
    )
    assert here.choice["backend"] == "sequential" and sweep_result.choice["backend"] == "process"
    assert [record.state for record in sweep_result.records] == ["done", "failed", "done"]
    for record, other in zip(here.records, (sweep_result.records[0], sweep_result.records[2]), strict=True):
        assert (record.fit, record.losses, accuracies(record)) == (other.fit, other.losses, accuracies(other))
        manifests = [
            {ck.Registry.open(tmp_path / name).store.resolve(part).digest for part in record.parts.values()}
            for name in ("one", "two")
        ]
        assert manifests[0] == manifests[1]  # the same bytes
    (failed,) = sweep_result.failed
    assert (failed.run, failed.code) == ("seed1", "environment")
    assert "ended by SIGKILL before the run did. The system kills what uses up the memory" in failed.reason
    assert "Its last output: a plugin may print" in failed.reason


def test_back_ends_that_there_are_not(recipe: Any, tmp_path: Path) -> None:
    sweep = ck.Sweep.read(recipe('"trainer.seed" = [0]'))
    for entry, value in (
        ({"launcher": "proces"}, "no plugin launchers.proces. Did you mean 'process'?"),
        ({"launcher": "vmap"}, "no plugin launchers.vmap. Installed launchers: process, ray"),
        ({"launcher": "process", "workers": 0}, "workers must be at least 1, got 0"),
        ({"launcher": "sequential", "workers": 2}, "The launcher sequential takes no workers"),
    ):
        with pytest.raises(UsageError, match=value.replace("?", r"\?")):
            sweep.run(tmp_path / "parts", **entry)
    assert not (tmp_path / "parts").exists()
