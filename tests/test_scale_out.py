"""The simulation of many workers, by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def program() -> Any:
    path = Path(__file__).parents[1] / "benchmarks" / "scale_out.py"
    spec = importlib.util.spec_from_file_location("scale_out", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("costs", "rows", "heads", "workers", "seconds"),
    [
        ((1, 2, 0.5, 0), 4, 2, 1, 1 + 4 * 3),  # a row takes 2 + 2 * .5
        ((1, 2, 0.5, 0), 4, 2, 2, 1 + 2 * 3),
        ((1, 2, 0.5, 0), 4, 2, 9, 1 + 3),
        ((0, 1, 0, 1), 3, 2, 3, 1 + 3 * 2),  # all end at once and wait for the registry
        ((0, 1, 0, 1), 2, 1, 1, 2 * (1 + 1)),
    ],
)
def test_the_last_result_is_recorded_when_it_should(
    program: Any, costs: tuple[float, ...], rows: int, heads: int, workers: int, seconds: float
) -> None:
    assert program.simulate(program.Costs(*costs), rows, heads, workers) == pytest.approx(seconds)
