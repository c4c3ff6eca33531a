"""Log of a study with a line per finished run, from which an interrupted study resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.experiments.folders import parse_record
from compatkit.foundation.json_fields import key_of
from compatkit.registry.os_errors import environment

FILE = "runs.jsonl"


@attrs.frozen(kw_only=True)
class StudyRecord:
    """Finished run of a study.

    Attributes:
        study: Number of the study.
        size: Size of the study.
        arm: Arm of the study.
        seed: Seed of the run.
        settings: Settings of the run.
        values: Measured values by measure.
        figure_data: JSON values for figures.
        notes: Notes for the reader.
        seconds: Wall-clock time.
        versions: Versions of the packages that affect the results.
        machine: Processor, device, threads.
        data: Digests of the data by split.
        added: Regularizers of an arm of the user as tables, with their versions; empty for arms of the study.
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
    added: Sequence[Mapping[str, Any]] = ()

    @property
    def measured(self) -> bool:
        """Whether the run measured a value; False if it was skipped because data is missing."""
        return any(value is not None for value in self.values.values())

    @property
    def plan(self) -> dict[str, Any]:
        """Study, size and settings, which all runs of a folder share."""
        return {"study": self.study, "size": self.size, **self.settings}


RENAMED = {
    "optimiser": "optimizer",
    "adapt_optimiser": "adapt_optimizer",
    "backbone": "model",
    "split": "cut",
}
"""Current name of a setting by its former name in old records."""


def read(folder: Path) -> list[StudyRecord]:
    """Return the runs recorded in a folder; an incomplete last line of a killed run is removed.

    Raises:
        FormatError: Another line is not a run.
        EnvironmentFailure: The file cannot be read or truncated.
    """
    path = folder / FILE
    with environment("read", path):
        if not path.exists():
            return []
        data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        with environment("write", path):
            os.truncate(path, len(complete))
    return [from_line(line, number, path) for number, line in enumerate(complete.splitlines(), 1)]


def append(folder: Path, record: StudyRecord) -> None:
    """Append a finished run and sync the file to disk.

    Args:
        folder: Folder of the study's runs.
        record: Finished run.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    path = folder / FILE
    with environment("write", path), path.open("a", encoding="utf-8") as file:
        file.write(to_line(record))
        file.flush()
        os.fsync(file.fileno())


def to_line(record: StudyRecord) -> str:
    """Return a record as one line of JSON."""
    fields = attrs.fields(StudyRecord)
    values = {key_of(field): getattr(record, field.name) for field in fields}
    if not record.added:  # as in every record of an arm of the study
        del values["added"]
    return json.dumps(values, allow_nan=False) + "\n"


def from_line(line: bytes, number: int, path: Path) -> StudyRecord:
    """Read the output of ``to_line``.

    Args:
        line: The line.
        number: Its number, for messages.
        path: Its file, for messages.

    Raises:
        FormatError: It is not a run.
    """
    try:
        record = parse_record(StudyRecord, json.loads(line), f"{path}: line {number}")
        settings = {RENAMED.get(name, name): value for name, value in record.settings.items()}
        return attrs.evolve(record, settings=settings)
    except (ValueError, FormatError) as error:
        raise FormatError(
            f"{path}: line {number} is not a run of a study: {error} Name another folder, or move the file away.",
            subject=path,
        ) from error
