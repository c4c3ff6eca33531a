"""Measurements that need a GPU: each runs here on the CPU with little work, and contestants compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import gpu  # noqa: E402
import gpu_similarity  # noqa: E402
import gpu_steps  # noqa: E402
from contest import Mismatch  # noqa: E402
from floor import ROWS, Figure  # noqa: E402
from gpu_size import Size  # noqa: E402

sys.path.remove(str(BENCHMARKS))

SMALL = Size("cpu", small=True)
GPU_ROWS = [row for row in ROWS if row.needs]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)  # rows import their scripts by plain names


@pytest.mark.timeout(1200)  # two networks are compiled
@pytest.mark.parametrize("row", GPU_ROWS, ids=lambda row: row.key)
def test_a_row_is_measured(row: Any) -> None:
    """Scripts raise if contestants computed different numbers."""
    (figure,) = row.measure(1, size=SMALL)
    assert figure > 0


def test_every_row_is_in_one_section() -> None:
    found = [row.key for group in gpu.GROUPS for row in gpu.rows_of(group)]
    assert sorted(found) == sorted(row.key for row in GPU_ROWS)
    assert all(gpu.rows_of(group) for group in gpu.GROUPS)


def test_contestants_that_compute_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lambda left, right: 0.9 * gpu_similarity.ours(left, right)  # noqa: E731
    monkeypatch.setitem(gpu_similarity.RIVALS, "Grams once", wrong)
    with pytest.raises(Mismatch, match="CKA"):
        gpu_similarity.cka(1, SMALL, rival="Grams once")


def test_a_hand_written_step_with_another_rate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = lambda module: torch.optim.SGD(module.parameters(), lr=0.012)  # noqa: E731
    monkeypatch.setattr(gpu_steps, "optimizer_of", other)
    with pytest.raises(Mismatch, match="steps of ours and by hand"):
        gpu_steps.step(1, SMALL, network="resnet20_cifar", mode="eager")


def test_the_program_prints_all_sections_and_says_which_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(size: Size) -> list[str]:
        raise RuntimeError("no device today")

    monkeypatch.setitem(gpu.CHECKS, "shares", ("Shares", failing))
    arguments = ["--small", "--device", "cpu", "--rounds", "1", "--only"]
    assert gpu.main([*arguments, "cka", "waiting"]) == 0
    printed = capsys.readouterr().out
    assert "## CKA of all pairs of layers" in printed and "| gpu-cka-torch-cka |" in printed
    assert "needs a CUDA device" in printed and "FAILED" not in printed
    assert gpu.main([*arguments, "shares", "waiting"]) == 1
    printed = capsys.readouterr().out
    assert "no device today" in printed and "## Waiting for the device" in printed


def test_a_row_that_fails_is_said_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gpu_similarity.RIVALS, "Grams once")
    figures = dict[str, Figure]()
    lines = gpu.measured("cka", SMALL, 1, figures)
    assert "FAILED: gpu-cka-grams-once" in lines and list(figures) == ["gpu-cka-torch-cka"]


def test_where_the_time_of_a_step_goes() -> None:
    (line,) = gpu.CHECKS["shares"][1](SMALL)[2:]
    assert line.startswith("| eager |") and line.count("%") == 2


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--small"]])
def test_only_figures_of_a_gpu_are_kept(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--keep", *arguments])
    assert "--keep" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_rows_are_left_out_and_said_where_there_is_no_gpu() -> None:
    command = [sys.executable, "-m", "benchmarks", "--needs", "cuda", "--json"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == []
    assert "no cuda device" in process.stderr
    assert all(row.key in process.stderr for row in GPU_ROWS)
