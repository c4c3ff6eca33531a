"""Weights & Biases: figures of a run as one run of a project, online or offline."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit import RunInfo, hookimpl
from compatkit.errors import MissingDependency
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_loggers(register: Register) -> None:
    """Offer ``wandb``."""
    register("wandb", WandB)


class WandB:
    """Writes to a run of Weights & Biases with the run's name; a resumed run goes on in it.

    Args:
        folder: Folder for the files of wandb; made where there is none.
        project: Project that the run belongs to.
        settings: Further arguments of ``wandb.init``, such as ``mode="offline"`` or ``entity``.

    Raises:
        MissingDependency: wandb is not installed.
    """

    one_folder = True  # runs of a sweep share it

    def __init__(self, folder: str | os.PathLike[str], project: str = "compatkit", **settings: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingDependency(
                "The logger 'wandb' needs Weights & Biases, which is not installed. Run: pip install "
                f"'compatkit[wandb]' ({error})",
                subject="wandb",
            ) from error
        self.wandb, self.settings = wandb, {"dir": os.fspath(folder), "project": project, **settings}

    def begin(self, run: RunInfo, manifest: Mapping[str, Any]) -> None:
        """Begin a run, or go on with that of the run that is resumed, whose name and folder give its id."""
        Path(self.settings["dir"]).mkdir(parents=True, exist_ok=True)
        own: dict[str, Any] = {"name": run.name, "config": dict(manifest), "reinit": "create_new"}
        if run.name is not None:
            key = f"{self.settings['project']}/{run.folder}/{run.name}"
            own |= {"id": hashlib.sha256(key.encode()).hexdigest()[:16], "resume": "allow"}
        self.run = self.wandb.init(**{**own, **self.settings})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics; wandb leaves out steps that it has.

        Args:
            metrics: Figures by name.
            step: Steps of each task that are done.
        """
        self.run.log(dict(metrics), step=step)

    def flush(self) -> None:
        """Do nothing: wandb writes in a process of its own."""

    def close(self, failed: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=int(failed))
