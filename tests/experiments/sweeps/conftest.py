"""Recipes of small sweeps, their data beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from swept import write_recipe

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test in its own folder: sweeps are written to the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path: Path) -> Write:
    """Write the recipe with lines of [sweep] and with pieces replaced; return its path."""

    def write(*lines: str, change: tuple[tuple[str, str], ...] = ()) -> Path:
        return write_recipe(tmp_path / "recipes", lines, change)

    return write
