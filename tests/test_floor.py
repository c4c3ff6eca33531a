"""The rows of the floor: goals, sources, and the program that measures them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from floor import ROWS, Figure  # noqa: E402
from growth import line, slope  # noqa: E402

sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_source_of_a_row_is_a_function_of_its_script(row) -> None:
    script, function = row.source.split(":")
    tree = ast.parse((BENCHMARKS / f"{script}.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    taken = [argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)]
    assert taken == ["rounds", *(["size"] if row.needs else []), *row.arguments]


def test_keys_are_different() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_a_figure_has_median_and_quartiles() -> None:
    figure = Figure.of("row", [4.0, 1.0, 2.0, 3.0, 5.0], 0.5, "2026-01-02")
    assert (figure.median, figure.low, figure.high, figure.rounds) == (3, 2, 4, 5)
    assert Figure.of("row", [7.0], 0, "").median == Figure.of("row", [7.0], 0, "").low == 7


def test_the_slope_of_times_is_the_power_of_their_growth() -> None:
    assert slope({10: 3.0, 100: 30.0, 1000: 300.0}) == pytest.approx(1)
    assert slope({10: 1.0, 20: 4.0, 40: 16.0}) == pytest.approx(2)
    # by hand: logs to base 2 are (0, 1, 2) and (0, 1, 1); the covariance is 1 / 3, the variance 2 / 3
    assert slope({1: 1.0, 2: 2.0, 4: 2.0}) == pytest.approx(1 / 2)
    assert "| 1.000 |" in line("ls", {10: [1.0, 9.0, 1.0], 100: [10.0, 10.0, 90.0]})


def test_rows_that_exist_can_be_asked_for() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "no-such-row"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2 and "tiny-step-loop" in process.stderr


def test_a_row_is_measured_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "tiny-step-loop", "--rounds", "1", "--json"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (figure,) = json.loads(process.stdout)
    assert figure["key"] == "tiny-step-loop"
    assert figure["low"] <= figure["median"] <= figure["high"]
