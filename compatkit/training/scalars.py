"""A run's figures for TensorBoard, through torch's SummaryWriter; nothing is imported where none is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import MissingDependency
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


def check_tensorboard(folder: str | os.PathLike[str]) -> None:
    """Refuse to begin a run whose scalars could not be written.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401 - it is imported to see whether it can be
    except ImportError as error:
        raise MissingDependency(
            f"scalars={os.fspath(folder)!r} is written through TensorBoard, which is not installed. Run: "
            f"pip install 'compatkit[tensorboard]' ({error})",
            subject="tensorboard",
        ) from error


@attrs.define(eq=False)
class Scalars:
    """Writes rows as they come.

    Tags begin with the task: ``<task>/losses/<name>``, ``<task>/accuracy``, ``<task>/gradient_norm``,
    ``<task>/learning_rate``, ``<task>/images_per_second``, ``<task>/<validation or test>/<trained or averages>/loss``
    and ``.../accuracy``. The step is the count of the task's steps.
    """

    _writer: SummaryWriter
    _images: int
    _done: int
    _time: float

    @classmethod
    def open(cls, folder: str | os.PathLike[str], start: int, images: int) -> Scalars:
        """Open event files in ``folder``; points after ``start`` steps that an ended run left there are hidden.

        Args:
            folder: Made where there is none.
            start: Steps that are done already.
            images: Of one step of a task.

        Raises:
            EnvironmentFailure: The folder cannot be written.
        """
        check_tensorboard(folder)
        from torch.utils.tensorboard.writer import SummaryWriter

        with environment("write", Path(folder)):
            writer = SummaryWriter(os.fspath(folder), purge_step=start + 1)
        return cls(writer, images, start, time.perf_counter())

    def losses(self, rows: Sequence[Mapping[str, Any]], rate: float) -> None:
        """Write rows of the history that were closed at the same step; ``rate`` is the learning rate then."""
        step, now = rows[0]["step"], time.perf_counter()
        speed = (step - self._done) * self._images / max(now - self._time, 1e-9)
        self._done, self._time = step, now
        for row in rows:
            task = row["task"]
            for name, value in row["losses"].items():
                place = name if name in ("accuracy", "gradient_norm") else f"losses/{name}"
                self._writer.add_scalar(f"{task}/{place}", value, step)
            self._writer.add_scalar(f"{task}/learning_rate", rate, step)
            self._writer.add_scalar(f"{task}/images_per_second", speed, step)

    def evaluations(self, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Write rows of an evaluation; the ``seconds`` that it took do not count as training."""
        self._time += seconds
        for row in rows:
            for name in ("loss", "accuracy"):
                tag = f"{row['task']}/{row['on']}/{row['weights']}/{name}"
                self._writer.add_scalar(tag, row[name], row["step"])

    def flush(self) -> None:
        """Bring everything to disk: what lies before a checkpoint is not written again."""
        self._writer.flush()

    def close(self) -> None:
        """Flush, and close the files."""
        self._writer.close()
