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
    for name in ("left.extractor", "shared.dcc (adam)", "identical_init", "eager: on cpu"):
        assert name in shown.out
    document = run(*words, "--json").json
    assert [task["task"] for task in document["tasks"]] == ["left", "right"]
    assert document["execution"]["mode"] == "eager"
    assert not (tmp_path / "parts").exists()


def test_where_the_time_goes_is_shown_and_nothing_is_made(
    recipe: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    words = ["--registry", tmp_path / "parts", "train", recipe(), "--profile", "2"]
    shown = run(*words)
    assert shown.code == 0 and "ms for a step of every task, over 2 steps" in shown.out
    document = run(*words, "--json").json
    assert abs(sum(document["shares"].values()) - 1) < 1e-6 and document["steps"] == 2
    assert not (tmp_path / "parts").exists()
