"""The log of a study: one line per finished run, so that an interrupted study continues with the others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.experiments.folders import parse_record
from compatkit.foundation.codec import key_of
from compatkit.registry.os_errors import environment

FILE = "runs.jsonl"


@attrs.frozen(kw_only=True)
class StudyRecord:
    """A finished run.

    Attributes:
        study: Number of the study.
        values: Measured values by the measure's name.
        figure_data: JSON values for figures.
        notes: Sentences for the reader.
        seconds: Wall-clock time.
        versions: Versions of the packages that affect the figures.
        machine: Processor, device, threads.
        data: Digests of the data by split.
    """

    study: str
    size: str
    arm: str
    seed: int
    settings: Mapping[str, Any]
    values: Mapping[str, float | None]
    figure_data: Mapping[str, Any] = attrs.field(metadata={"key": "kept"})
    notes: Sequence[str]
    seconds: float
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    data: Mapping[str, str]

    @property
    def measured(self) -> bool:
        """Whether the run measured anything; False if it was skipped for lack of data."""
        return any(value is not None for value in self.values.values())

    @property
    def plan(self) -> dict[str, Any]:
        """Settings common to all runs of a table."""
        return {"study": self.study, "size": self.size, **self.settings}


RENAMED = {
    "optimiser": "optimizer",
    "adapt_optimiser": "adapt_optimizer",
    "backbone": "model",
    "split": "cut",
}
"""Former names of settings, as older records have them, and today's."""


def read(folder: Path) -> list[StudyRecord]:
    """Return the runs recorded in a folder; an incomplete last line, left by a killed run, is removed.

    Raises:
        FormatError: Another line is not a run.
        EnvironmentFailure: The file cannot be read, or not be truncated.
    """
    path = folder / FILE
    with environment("read", path):
        if not path.exists():
            return []
        data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with environment("write", path):
            os.truncate(path, len(whole))
    return [_parsed(line, number, path) for number, line in enumerate(whole.splitlines(), 1)]


def append(folder: Path, record: StudyRecord) -> None:
    """Append a finished run durably.

    Args:
        folder: Of the study's runs.
        record: The finished run.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    path = folder / FILE
    with environment("write", path), path.open("a", encoding="utf-8") as file:
        file.write(_line(record))
        file.flush()
        os.fsync(file.fileno())


def _line(record: StudyRecord) -> str:
    fields = attrs.fields(StudyRecord)
    values = {key_of(field): getattr(record, field.name) for field in fields}
    return json.dumps(values, allow_nan=False) + "\n"


def _parsed(line: bytes, number: int, path: Path) -> StudyRecord:
    try:
        record = parse_record(StudyRecord, json.loads(line), f"{path}: line {number}")
        settings = {RENAMED.get(name, name): value for name, value in record.settings.items()}
        return attrs.evolve(record, settings=settings)
    except (ValueError, FormatError) as error:
        raise FormatError(
            f"{path}: line {number} is not a run of a study: {error} Name another folder, or move the file away.",
            subject=path,
        ) from error
