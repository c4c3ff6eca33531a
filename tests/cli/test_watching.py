"""train with averages, evaluations, early stopping and scalars: what is published, printed and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compatkit.registry.store import Store

WATCHED = """steps = 4
log_every = 2
ema = 0.5
clip_norm = 1
accumulate = 2
validation = 0.25
evaluate_every = 1
stop_early = { patience = 3, on = "accuracy" }
"""


def test_averages_are_published_with_what_was_measured(run: Any, recipe: Any, tmp_path: Path) -> None:
    root, scalars = tmp_path / "parts", tmp_path / "runs"
    result = run(
        "--registry", root, "train", recipe(("steps = 2\n", WATCHED)), "--logger", f"tensorboard={scalars}"
    )
    assert result.code == 0, result.err
    assert "averages" in result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0][:2] == ["4", "steps"]
    assert ["task", "network", "trained", "on", "loss", "evaluated"] in lines
    (left,) = [line for line in result.out.splitlines() if line.split()[:1] == ["left"]]
    assert left.endswith("on validation"), left
    assert "ended after " in result.out
    training = Store.open(root).manifest("digits/left.head").training
    assert training["weights"] == "averages" and set(training["stopped"]) == {"steps", "weights_of_step"}
    assert [path.name.startswith("events.out.tfevents") for path in scalars.iterdir()] == [True]


def test_evaluations_are_in_the_json(run: Any, recipe: Any, tmp_path: Path) -> None:
    document = run(
        "--registry",
        tmp_path / "parts",
        "train",
        recipe(("steps = 2\n", 'steps = 2\nevaluate_every = 2\nevaluate_on = "test"\n')),
        "--json",
    ).json
    assert [(row["task"], row["on"], row["weights"]) for row in document["evaluations"]] == [
        ("left", "test", "trained"),
        ("right", "test", "trained"),
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("stop_early = 3", "[trainer.stop_early] must be a table, got int 3"),
        (
            "stop_early = { patiense = 3 }",
            "[trainer.stop_early] has the unknown key 'patiense'. Did you mean 'patience'",
        ),
        ("stop_early = { on = 'loss' }", "[trainer.stop_early] lacks patience"),
        (
            "stop_early = { patience = 0 }",
            "[trainer.stop_early]: 'patience' must be a whole number from 1 up; got 0",
        ),
        ("stop_early = { patience = 1 }", "[trainer]: stop_early needs validation"),
        ("evaluate_every = 5", "[trainer]: evaluate_every=5 has no images to evaluate on"),
        (
            "evaluate_on = 'tset'",
            "[trainer]: evaluate_on must be 'validation' or 'test' or 'train', got 'tset'. Did you mean 'test'",
        ),
        ("ema = 2", "[trainer]: 'ema' must be a number above 0 and below 1, or None; got 2"),
        ("clip_norm = 0", "[trainer]: 'clip_norm' must be a number above 0, or None; got 0"),
        ("accumulate = 3", "cannot be divided into accumulate=3 micro-batches"),
        ("validation = 'some'", "[trainer]: validation must be a number, got 'some'"),
    ],
)
def test_settings_that_cannot_be_used_are_named_before_any_work(
    run: Any, recipe: Any, tmp_path: Path, written: str, message: str
) -> None:
    result = run(
        "train", recipe(("steps = 2\n", f"steps = 2\n{written}\n")), "--registry", tmp_path / "parts"
    )
    assert result.code == 2 and message in result.err
    assert not (tmp_path / "parts").exists()
