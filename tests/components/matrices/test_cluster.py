"""A matrix on a Ray cluster of two workers on this machine, one of which is killed while it runs."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick

import compatkit as ck


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


def kill_one_worker(killed: list[int], ended: threading.Event) -> None:
    """Kill the first process that carries out a job."""
    while not ended.wait(0.05):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name = (folder / "cmdline").read_bytes()
                parent = os.stat(folder).st_uid == os.getuid()
            except OSError:
                continue
            if parent and name.startswith(b"ray::_work"):
                time.sleep(0.5)
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
                return


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_a_cluster_gives_the_figures_of_one_process_though_a_worker_is_killed(
    tmp_path: Path, two_workers: Any
) -> None:
    sets = [data_set(name, seed=seed) for seed, name in enumerate(("left", "right"))]
    tasks = [ck.Task(data.name, data, "resnet8_cifar", "layer2", size=(16, 16)) for data in sets]
    registry = ck.Registry(tmp_path / "parts", create=True)
    registry.publish(quick(steps=1).fit(tasks), prefix="digits")
    words: Any = "digits/*.extractor", "digits/*.head", [data.test for data in sets]
    here = registry.matrix(*words, record=False)
    killed: list[int] = []
    ended = threading.Event()
    killer = threading.Thread(target=kill_one_worker, args=(killed, ended))
    killer.start()
    try:
        there = registry.matrix(*words, launcher="ray")
    finally:
        ended.set()
        killer.join()
    assert len(killed) == 1
    assert there.cells == here.cells and there.settings["cells"] == {"taken": 0, "measured": 4}
    assert os.listdir(registry.store.root / "tmp") == []
