"""CSV: figures of a run as rows of ``metrics.csv``, one a figure: step, name, value."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from compatkit import hookimpl
from compatkit.hooks import Register

compatkit_api = 1
HEADER = ["step", "name", "value"]


@hookimpl
def compatkit_loggers(register: Register) -> None:
    """Offer ``csv``."""
    register("csv", CSV)


class CSV:
    """Writes ``metrics.csv`` in a folder.

    Args:
        folder: Made where there is none.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / "metrics.csv"

    def begin(self, step: int) -> None:
        """Open the file; keep rows up to ``step`` that an earlier part of the run wrote."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        resumed = []
        if step and self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as earlier:
                rows = [row for row in csv.reader(earlier) if len(row) == 3 and row != HEADER]
            resumed = [row for row in rows if int(row[0]) <= step]
        self.file = self.path.open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file)
        self.writer.writerows([HEADER, *resumed])

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write rows, which can be read at once.

        Args:
            metrics: Figures by name.
            step: Steps of each task that are done.
        """
        self.writer.writerows((step, name, value) for name, value in metrics.items())
        self.file.flush()

    def flush(self) -> None:
        """Write everything to disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()
