"""MLflow: figures of a run as one run of an experiment, in a folder or on a tracking server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compatkit import RunInfo, hookimpl
from compatkit.errors import MissingDependency
from compatkit.hooks import Register

compatkit_api = 1
TAG = "compatkit.run"
"""Tag with which a resumed run finds its MLflow run: folder and name."""
LONGEST = 500
"""Characters of a parameter at most."""


@hookimpl
def compatkit_loggers(register: Register) -> None:
    """Offer ``mlflow``."""
    register("mlflow", MLflow)


def store(folder: Path) -> str:
    """Return the address of the tracking store in a folder: a database, or files where mlflow-skinny has no database.

    Args:
        folder: Absolute path; made where there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if find_spec("sqlalchemy") is not None and find_spec("alembic") is not None:
        return f"sqlite:///{folder / 'mlflow.db'}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without it MLflow refuses files
    return folder.as_uri()


class MLflow:
    """Writes to an MLflow run with the run's name; a resumed run goes on in it.

    Args:
        folder: Folder of the tracking store; made where there is none, unused with ``uri``.
        experiment: Experiment that the run belongs to; made where there is none.
        uri: Tracking server, such as ``"http://127.0.0.1:5000"``.

    Raises:
        MissingDependency: MLflow is not installed.
    """

    one_folder = True  # runs of a sweep share it

    def __init__(
        self, folder: str | os.PathLike[str], experiment: str = "compatkit", uri: str | None = None
    ) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingDependency(
                "The logger 'mlflow' needs MLflow, which is not installed. Run: pip install 'compatkit[mlflow]' "
                f"({error})",
                subject="mlflow",
            ) from error
        self.mlflow, self.experiment = mlflow, experiment
        self.folder, self.uri = Path(folder).absolute(), uri

    def begin(self, step: int, run: RunInfo, manifest: Mapping[str, Any]) -> None:
        """Create an MLflow run, or find that of the run that is resumed."""
        self.client = self.mlflow.MlflowClient(tracking_uri=self.uri or store(self.folder))
        known = self.client.get_experiment_by_name(self.experiment)
        number = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        key = f"{run.folder}/{run.name}"
        self.logged: dict[str, int] = {}
        if step:
            for earlier in self.client.search_runs([number], max_results=1000):
                if earlier.data.tags.get(TAG) == key:
                    self._go_on(earlier)
                    return
        self.run = self.client.create_run(number, run_name=run.name, tags={TAG: key}).info.run_id
        values = {"tasks": [task["name"] for task in manifest["tasks"]]}
        values["plugins"] = [plugin["as"] for plugin in manifest["plugins"]]
        entity = self.mlflow.entities.Param
        params = [
            entity(name, str(value)[:LONGEST]) for name, value in {**manifest["trainer"], **values}.items()
        ]
        self.client.log_batch(self.run, params=params)

    def _go_on(self, earlier: Any) -> None:
        """Go on with an MLflow run, whose points cannot be deleted; those that it has are not logged again."""
        self.run = earlier.info.run_id
        for name in earlier.data.metrics:
            self.logged[name] = max(point.step for point in self.client.get_metric_history(self.run, name))
        self.client.update_run(self.run, status="RUNNING")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics.

        Args:
            metrics: Figures by name.
            step: Steps of each task that are done.
        """
        now, entity = int(1000 * time.time()), self.mlflow.entities.Metric
        new = [
            entity(name, value, now, step)
            for name, value in metrics.items()
            if step > self.logged.get(name, 0)
        ]
        self.client.log_batch(self.run, metrics=new)

    def flush(self) -> None:
        """Do nothing: all is written."""

    def close(self, failed: bool) -> None:
        """End the MLflow run."""
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")
