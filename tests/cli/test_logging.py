"""Loggers of recipes, of `train --logger` and of `sweep --logger`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TABLE = ('prefix = "digits"', 'prefix = "digits"\nloggers = [{ name = "csv", folder = "FOLDER" }]')


def test_a_recipe_names_loggers_and_the_command_others(run: Any, recipe: Any, tmp_path: Path) -> None:
    own = recipe((TABLE[0], TABLE[1].replace("FOLDER", str(tmp_path / "own"))))
    words = "train", own, "--registry", tmp_path / "parts", "--out", tmp_path / "run"
    assert run(*words).code == 0 and (tmp_path / "own" / "metrics.csv").exists()
    (tmp_path / "own" / "metrics.csv").unlink()
    other = *words[:-1], tmp_path / "other", "--prefix", "more", "--logger", "csv"
    assert run(*other).code == 0
    assert (tmp_path / "other" / "metrics.csv").exists() and not (tmp_path / "own" / "metrics.csv").exists()


def test_runs_of_a_sweep_are_logged_under_their_names(run: Any, recipe: Any, tmp_path: Path) -> None:
    file = Path(recipe())
    file.write_text(file.read_text() + '\n[sweep]\n"trainer.seed" = [0, 1]\n')
    logs = tmp_path / "logs"
    result = run("sweep", file, "--registry", tmp_path / "parts", "--logger", f"csv={logs}")
    assert result.code == 0
    assert sorted(path.parent.name for path in logs.glob("*/metrics.csv")) == ["seed0", "seed1"]


@pytest.mark.parametrize("words", ["=x", "csv:", "csv:folder", ":a=b"])
def test_what_is_no_logger(words: str, run: Any, recipe: Any, tmp_path: Path) -> None:
    assert run("train", recipe(), "--registry", tmp_path / "parts", "--logger", words).code == 2


def test_loggers_in_two_places_are_refused(run: Any, recipe: Any, tmp_path: Path) -> None:
    both = recipe(
        (TABLE[0], TABLE[1].replace("FOLDER", "logs")), ("[trainer]", '[trainer]\nloggers = { csv = "logs" }')
    )
    result = run("train", both, "--registry", tmp_path / "parts")
    assert result.code == 2 and "keep one" in result.err
