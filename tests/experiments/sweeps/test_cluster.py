"""Runs on a Ray cluster of two workers on this machine; what is said where the library is missing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swept import TASK

import compatkit as ck
from compatkit.errors import MissingDependency
from compatkit.experiments.sweeps.results import accuracies


@pytest.fixture
def two_workers(monkeypatch: Any) -> Iterator[Any]:
    """Start a local cluster with room for two workers."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="r") as short:  # sockets have short names
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=80 * 2**20,
            _temp_dir=short,
        )
        yield ray
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_cluster_gives_bitwise_what_one_process_gives(
    recipe: Any, tmp_path: Path, two_workers: Any
) -> None:
    file = recipe('"trainer.seed" = [0, 1]', change=((TASK, ""),))
    here = ck.Sweep.read(file).run(tmp_path / "one", launcher="sequential")
    sweep_result = ck.Sweep.read(file).run(tmp_path / "two", launcher="ray")
    assert [(record.state, record.launcher, record.reason) for record in sweep_result.records] == [
        ("done", "ray", "")
    ] * 2
    for entry, other in zip(here.records, sweep_result.records, strict=True):
        assert (entry.fit, entry.losses, accuracies(entry)) == (other.fit, other.losses, accuracies(other))
        assert entry.parts == other.parts
    assert two_workers.is_initialized()  # whoever started it ends it


def test_without_ray_the_message_says_what_to_install(recipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sweep = ck.Sweep.read(recipe('"trainer.seed" = [0]'))
    with pytest.raises(MissingDependency, match=r"pip install 'compatkit\[ray\]'"):
        sweep.run(tmp_path / "parts", launcher="ray")
    assert not (tmp_path / "parts").exists()
