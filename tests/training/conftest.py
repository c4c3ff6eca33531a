"""A run that is killed right after a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import compatkit as ck
from compatkit.training import checkpoints


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what starts a fit and ends it once the checkpoint ``after`` some steps is written."""

    def kill(trainer: ck.Trainer, tasks: Sequence[ck.Task], uses: Sequence[str] = (), *, after: int) -> None:
        save = checkpoints.save

        def once(path: Any, loop: Any, run: Any, values: Any, tensors: Any) -> None:
            save(path, loop, run, values, tensors)
            if values["step"] == after:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checkpoints, "save", once)
            trainer.fit(tasks, uses)

    return kill
