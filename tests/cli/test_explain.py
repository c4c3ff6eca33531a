"""``compatkit train --explain`` and ``--profile``: for people and for machines; nothing is trained or made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_the_plan_is_shown_and_nothing_is_made(recipe: Callable[..., Path], run: Run, tmp_path: Path) -> None:
    words = ["--registry", tmp_path / "parts", "train", recipe(("steps = 2", "steps = 1000000")), "--explain"]
    shown = run(*words)
    assert shown.code == 0
    for said in ("left.extractor", "shared.dcc (adam)", "identical_init", "eager: on cpu"):
        assert said in shown.out
    told = run(*words, "--json").json
    assert [one["task"] for one in told["tasks"]] == ["left", "right"]
    assert told["execution"]["mode"] == "eager"
    assert not (tmp_path / "parts").exists()


def test_where_the_time_goes_is_shown_and_nothing_is_made(
    recipe: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    words = ["--registry", tmp_path / "parts", "train", recipe(), "--profile", "2"]
    shown = run(*words)
    assert shown.code == 0 and "ms for a step of every task, over 2 steps" in shown.out
    told = run(*words, "--json").json
    assert abs(sum(told["shares"].values()) - 1) < 1e-6 and told["steps"] == 2
    assert not (tmp_path / "parts").exists()
