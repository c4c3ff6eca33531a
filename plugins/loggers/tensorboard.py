"""TensorBoard: figures of a run as event files, through torch's ``SummaryWriter``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from compatkit import hookimpl
from compatkit.errors import MissingDependency
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_loggers(register: Register) -> None:
    """Offer ``tensorboard``."""
    register("tensorboard", TensorBoard)


class TensorBoard:
    """Writes event files to a folder; each figure is a scalar by its name.

    Args:
        folder: Made where there is none.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise MissingDependency(
                "The logger 'tensorboard' needs TensorBoard, which is not installed. Run: "
                f"pip install 'compatkit[tensorboard]' ({error})",
                subject="tensorboard",
            ) from error
        self.open = partial(SummaryWriter, os.fspath(folder))

    def begin(self, step: int) -> None:
        """Open an event file; TensorBoard hides points after ``step`` that an ended run left there."""
        self.writer = self.open(purge_step=step + 1)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write scalars.

        Args:
            metrics: Figures by name.
            step: Steps of each task that are done.
        """
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write everything to disk."""
        self.writer.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        self.writer.close()
