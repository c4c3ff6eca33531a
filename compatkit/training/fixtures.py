"""Fixtures for the tests of plugin packages; pytest loads them wherever compatkit is installed.

They import compatkit when a test asks for them, so that other tests do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compatkit import Registry, Task, Trainer


@pytest.fixture
def compatkit_tasks() -> list[Task]:
    """Return two small tasks for residual networks: noise of three classes, 12 images of 16 x 16 pixels."""
    from compatkit.training.testing import small_tasks

    return small_tasks()


@pytest.fixture
def compatkit_trainer() -> Callable[..., Trainer]:
    """Return a function of the settings of a trainer: float32, batches of 4, no progress, every step in the history."""
    from compatkit import Trainer

    def trainer(**settings: Any) -> Trainer:
        defaults = {"batch_size": 4, "precision": "float32", "progress": False, "log_every": 1}
        return Trainer(**{**defaults, **settings})

    return trainer


@pytest.fixture
def compatkit_registry(tmp_path: Path) -> Registry:
    """Return an empty registry in a temporary folder."""
    from compatkit import Registry

    return Registry(tmp_path / "registry", create=True)
