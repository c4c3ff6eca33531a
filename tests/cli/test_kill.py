"""Training that is killed without warning goes on from its checkpoint, bit by bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compatkit.registry.store import Store

RUN = "from compatkit.cli import main; main()"
STEPS, KILLS = 60, 3


def command(recipe: Path, root: Path, folder: Path) -> list[str]:
    words = ["--registry", root, "train", recipe, "--out", folder]
    return [sys.executable, "-c", RUN, *map(str, words)]


@pytest.mark.case("D1")
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("seed", range(2))
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(
    recipe: Any, tmp_path: Path, seed: int
) -> None:
    file = recipe(
        ("steps = 2", f"steps = {STEPS}\ncheckpoint_every = 1\nlog_every = 7"),
        ('"dcc"', '"dcc", "rotation_prediction"'),
    )
    calm, torn = (tmp_path / name for name in ("calm", "torn"))
    subprocess.run(command(file, calm, tmp_path / "calm run"), check=True, capture_output=True)
    draw, folder = random.Random(seed), tmp_path / "torn run"
    checkpoint = folder / "state.safetensors"
    for _ in range(KILLS):
        running = subprocess.Popen(
            command(file, torn, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while running.poll() is None and not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before):
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 1.0))
        running.send_signal(signal.SIGKILL)
        running.wait()
    last = subprocess.run(command(file, torn, folder), check=False, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    left, right = Store.open(calm), Store.open(torn)
    assert left.names() == right.names() and len(left.names()) == 6
    for name in left.names():  # equal manifest digests: equal bytes, probe and run
        assert left.resolve(name) == right.resolve(name)
