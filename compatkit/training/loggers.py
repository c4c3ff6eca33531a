"""Pass the losses and accuracies of a run to its loggers: TensorBoard, CSV, and plugins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError
from compatkit.hooks import LoggerLike
from compatkit.plugins.discovery import find
from compatkit.plugins.isolation import Owner, described
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
    def of(cls, loggers: Mapping[str, Mapping[str, Any]], batch_size: int) -> RunLog:
        """Create the loggers of a run; nothing is written before ``begin``.

        Args:
            loggers: Settings of each, by name; see ``Trainer``.
            batch_size: Images of one step of a task.

        Raises:
            CompatkitError: A logger lacks a library, refuses a setting, or is broken.
        """
        bound = []
        for name, settings in loggers.items():
            offer = find("loggers", name)
            logger = offer.make(settings)
            lacking = [method for method in METHODS if not callable(getattr(logger, method, None))]
            if lacking:
                raise offer.owner.error(
                    f"the logger lacks {', '.join(lacking)}; it needs {', '.join(METHODS)}."
                )
            bound.append((offer.owner, Path(settings["folder"]), logger))
        return cls(bound, batch_size)

    def begin(self, step: int) -> None:
        """Begin to log a run with ``step`` completed steps."""
        self._step, self._time = step, time.perf_counter()
        for logger in self._loggers:
            _call(logger, "begin", step)
            self._begun.append(logger)

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
        self._call_all("log_metrics", metrics, step)

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
        self._call_all("log_metrics", metrics, rows[0]["step"])

    def flush(self) -> None:
        """Write everything to disk, since rows before a checkpoint are not logged again."""
        self._call_all("flush")

    def close(self) -> None:
        """Close the loggers."""
        self._call_all("close")

    def _call_all(self, method: str, *arguments: Any) -> None:
        for logger in self._begun:
            _call(logger, method, *arguments)


def _call(logger: BoundLogger, method: str, *arguments: Any) -> None:
    """Call a method of a logger; name the logger, or its folder, in errors."""
    owner, folder, instance = logger
    try:
        with environment("write", folder):
            getattr(instance, method)(*arguments)
    except CompatkitError:
        raise
    except Exception as error:
        raise owner.error(f"{method} failed: {described(error)}", "compatkit_loggers") from error
