"""Pass the losses and accuracies of a run to its loggers: TensorBoard, CSV, MLflow, and other plugins."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, PluginError, UsageError
from compatkit.hooks import LoggerLike, RunInfo
from compatkit.plugins.discovery import find
from compatkit.plugins.implementations import signature_of
from compatkit.plugins.isolation import Owner, PluginWarning, described
from compatkit.registry.os_errors import environment

METHODS = ("begin", "log_metrics", "flush", "close")
UNPREFIXED = ("accuracy", "gradient_norm")
"""Entries of a row of the history that are not losses."""
BoundLogger = tuple[Owner, Path, LoggerLike]
"""A logger with its plugin and its folder, for messages."""


@attrs.define(eq=False)
class RunLog:
    """Loggers of a run, and the clock for its speed; without loggers it does nothing.

    Names of metrics begin with the task: ``<task>/losses/<name>``, ``<task>/accuracy``, ``<task>/gradient_norm``,
    ``<task>/learning_rate``, ``<task>/images_per_second``, ``<task>/<validation or test>/<trained or averages>/loss``
    and ``.../accuracy``.
    """

    _loggers: Sequence[BoundLogger] = ()
    _batch_size: int = 0
    _step: int = 0
    _time: float = 0.0
    _begun: list[BoundLogger] = attrs.field(factory=list)

    @classmethod
    def of(cls, loggers: Mapping[str, Mapping[str, Any]], batch_size: int, folder: Path | None) -> RunLog:
        """Create the loggers of a run; nothing is written before ``begin``.

        Args:
            loggers: Settings of each, by name; see ``Trainer``.
            batch_size: Images of one step of a task.
            folder: Folder of the run, for loggers without one of their own, or None.

        Raises:
            UsageError: A logger has no folder.
            CompatkitError: A logger lacks a library, refuses a setting, or is broken.
        """
        bound = []
        for name, settings in loggers.items():
            if (own := settings.get("folder", folder)) is None:
                raise UsageError(
                    f"Logger {name!r} needs a folder, such as loggers={{{name!r}: 'runs/digits'}}: the run has none of "
                    "its own without a checkpoint.",
                    subject=name,
                )
            offer = find("loggers", name)
            logger = offer.make({**settings, "folder": own})
            lacking = [method for method in METHODS if not callable(getattr(logger, method, None))]
            if lacking:
                raise offer.owner.error(
                    f"the logger lacks {', '.join(lacking)}; it needs {', '.join(METHODS)}."
                )
            bound.append((offer.owner, Path(own), logger))
        return cls(bound, batch_size)

    @contextmanager
    def open(self, step: int, run: RunInfo, manifest: Mapping[str, Any]) -> Iterator[RunLog]:
        """Begin to log a run, and close all loggers at the end of the block, after errors and interruptions too.

        Args:
            step: Completed steps.
            run: Name, folder and settings of the run.
            manifest: Manifest of the run.

        Raises:
            CompatkitError: A logger cannot begin; nothing is trained then.
        """
        failed = True
        try:
            self._step, self._time = step, time.perf_counter()
            for logger in self._loggers:
                _call(logger, "begin", {"step": step, "run": run, "manifest": manifest})
                self._begun.append(logger)
            yield self
            failed = False
        finally:
            while self._begun:
                self._try(self._begun.pop(), "close", {"failed": failed})

    def log_losses(self, rows: Sequence[Mapping[str, Any]], lr: float) -> None:
        """Log rows of the history that were closed at the same step.

        Args:
            rows: One row or more.
            lr: Learning rate at that step.
        """
        step, now = rows[0]["step"], time.perf_counter()
        speed = (step - self._step) * self._batch_size / max(now - self._time, 1e-9)
        self._step, self._time = step, now
        metrics: dict[str, float] = {}
        for row in rows:
            task = row["task"]
            for name, value in row["losses"].items():
                metrics[f"{task}/{name if name in UNPREFIXED else f'losses/{name}'}"] = value
            metrics |= {f"{task}/learning_rate": lr, f"{task}/images_per_second": speed}
        self._call_all("log_metrics", {"metrics": metrics, "step": step})

    def log_evaluations(self, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Log rows of an evaluation, whose time does not count as training.

        Args:
            rows: Rows of ``Evaluator.measure``.
            seconds: Time that the evaluation took.
        """
        self._time += seconds
        metrics = {
            f"{row['task']}/{row['on']}/{row['weights']}/{name}": row[name]
            for row in rows
            for name in ("loss", "accuracy")
        }
        self._call_all("log_metrics", {"metrics": metrics, "step": rows[0]["step"]})

    def flush(self) -> None:
        """Write everything to disk, since rows before a checkpoint are not logged again."""
        self._call_all("flush", {})

    def _call_all(self, method: str, arguments: Mapping[str, Any]) -> None:
        for logger in [*self._begun]:
            if not self._try(logger, method, arguments):
                self._begun.remove(logger)
                self._try(logger, "close", {"failed": True}, quiet=True)

    def _try(
        self, logger: BoundLogger, method: str, arguments: Mapping[str, Any], *, quiet: bool = False
    ) -> bool:
        """Call a method of a logger; if it fails, warn, as a run is worth more than its log, and return False."""
        try:
            _call(logger, method, arguments)
        except CompatkitError as error:
            ends = "Its last figures may be missing." if method == "close" else "The run goes on without it."
            if not quiet:
                text = str(error) if isinstance(error, PluginError) else f"{logger[0]}: {error}"
                warnings.warn(f"{text} {ends}", PluginWarning, stacklevel=2)
            return False
        return True


def _call(logger: BoundLogger, method: str, arguments: Mapping[str, Any]) -> None:
    """Call a method of a logger with those of the arguments that it takes; name logger or folder in errors."""
    owner, folder, instance = logger
    try:
        with environment("write", folder):
            function = getattr(instance, method)
            taken = signature_of(function).parameters
            function(**{name: value for name, value in arguments.items() if name in taken})
    except CompatkitError:
        raise
    except Exception as error:
        raise owner.error(f"{method} failed: {described(error)}", "compatkit_loggers") from error
