"""Folder of a sweep: ``sweep.json`` with its axes and runs, and a record of each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from compatkit.errors import CompatkitError, FormatError, UsageError
from compatkit.experiments.folders import contains_runs, parse_record, read_json
from compatkit.foundation.codec import dumps, unstructure
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment
from compatkit.reports.document import SCHEMA as MATRIX
from compatkit.reports.matrix import Matrix

SCHEMA = 1
NOTE = "sweep.json"
"""File of every sweep's folder with the axes, the launcher and the runs."""
OTHER_PLAN = "of another plan (recipe, data, plugins or versions changed)"
_RECORD_HEADER = {"schema": SCHEMA, "kind": "sweep-run"}
_NOTE_HEADER = {"schema": SCHEMA, "kind": "sweep"}


@attrs.frozen(kw_only=True)
class RunPlan:
    """Run in the note of a sweep.

    Attributes:
        run: Name of the run.
        values: Varied values, by path.
        plan: Digest of the plan, as in ``RunRecord``.
        seed: Seed of the trainer, varied or not.
    """

    run: str
    values: Mapping[str, Any]
    plan: str
    seed: int


@attrs.frozen(kw_only=True)
class SweepNote:
    """Content of ``sweep.json``.

    Attributes:
        recipe: Name of the recipe file.
        axes: Values of each axis, by path.
        choice: Requested launcher and used launcher.
        runs: Runs in the order of the recipe; empty in old folders.
    """

    recipe: str
    axes: Mapping[str, Any]
    choice: Mapping[str, Any]
    runs: tuple[RunPlan, ...] = ()


@attrs.frozen(kw_only=True)
class RunRecord:
    """Record of a run.

    Attributes:
        run: Name of the run.
        values: Varied values, by path.
        plan: Digest of all inputs that affect the result.
        state: State of the run: ``"begun"`` if it was interrupted or is under way, ``"planned"`` if it has no file.
        launcher: Name of the launcher.
        code: Code of the error, or empty.
        reason: Message of the error, or empty.
        fit: Digest of the trainer's plan, as in checkpoints.
        parts: Published references, by ``"<task>.extractor"`` and so on.
        losses: Losses in the last row of the history, by task and name.
        matrix: JSON of the matrix of its extractors and heads; None until measured.
        seconds: Wall-clock time.
        threads: Number of threads of operations, which may affect the last bits of sums.
    """

    run: str
    values: Mapping[str, Any]
    plan: str
    state: Literal["planned", "begun", "done", "failed"]
    launcher: str = attrs.field(default="", metadata={"key": "backend"})
    code: str = ""
    reason: str = ""
    fit: str = ""
    parts: Mapping[str, str] = attrs.field(factory=dict)
    losses: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    matrix: Mapping[str, Any] | None = None
    seconds: float = 0.0
    threads: int = 0

    def figures(self) -> Matrix | None:
        """Return the matrix of the run; None until measured."""
        return None if self.matrix is None else Matrix.from_json(dumps(self.matrix))

    def failed(self, error: BaseException) -> RunRecord:
        """Return the record of the run after an error."""
        if isinstance(error, CompatkitError):
            code, reason = error.code, str(error)
        elif isinstance(error, MemoryError):
            code, reason = "environment", "Out of memory. Use a smaller batch or fewer workers."
        else:
            code, reason = "defect", f"{type(error).__name__}: {error}"
        return attrs.evolve(self, state="failed", code=code, reason=reason)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {**_RECORD_HEADER, **unstructure(self)}

    @classmethod
    def from_json(cls, value: Any, what: str) -> RunRecord:
        """Read the output of ``to_json``.

        Args:
            value: JSON value.
            what: Origin of the value, for messages.

        Raises:
            FormatError: The value is not a record.
        """
        record = parse_record(cls, value, what, _RECORD_HEADER)
        if record.state == "done" and (record.matrix is None or record.matrix.get("schema") != MATRIX):
            raise FormatError(
                f"{what} is the record of a finished run, but has no matrix of schema {MATRIX}."
            )
        try:
            record.figures()
        except FormatError as error:
            raise FormatError(f"{what}: {error}", subject=what) from error
        return record


def checkpoint(folder: Path, run: str) -> Path:
    """Return the path of a run's checkpoint, which is deleted when the run is done.

    Args:
        folder: Folder of the sweep.
        run: Name of the run.
    """
    return folder / f"{run}.safetensors"


def write(folder: Path, record: RunRecord) -> None:
    """Write a record atomically.

    Args:
        folder: Folder of the sweep.
        record: Record of a run.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    replace_file(folder / f"{record.run}.json", dumps(record.to_json()))


def read(folder: Path, run: str) -> RunRecord | None:
    """Return the record of a run, or None if there is none.

    Args:
        folder: Folder of the sweep.
        run: Name of the run.

    Raises:
        FormatError: The file is not a record.
        EnvironmentFailure: The file cannot be read.
    """
    path = folder / f"{run}.json"
    value = read_json(path)
    if value is None:
        return None
    record = RunRecord.from_json(value, str(path))
    if record.run != run:
        raise FormatError(f"{path} describes the run {record.run!r:.80}, not {run!r}.", subject=path)
    return record


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a folder is empty, or contains a sweep to resume.

    Args:
        folder: Folder of the sweep.
        resume: Whether to resume an existing sweep.

    Raises:
        UsageError: The folder contains other files, or a sweep and ``resume`` is False.
        EnvironmentFailure: The folder cannot be read.
    """
    if contains_runs(folder, NOTE, "sweep") and not resume:
        text = f"{folder} holds a sweep already. Resume it (--resume), or name another folder (--out)."
        raise UsageError(text, subject=folder)


def write_note(folder: Path, note: SweepNote) -> None:
    """Create the folder of a sweep and write its note.

    Args:
        folder: Folder of the sweep.
        note: Content of ``sweep.json``.

    Raises:
        EnvironmentFailure: The folder cannot be created or written.
    """
    with environment("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / NOTE, dumps({**_NOTE_HEADER, **attrs.asdict(note)}))


def read_note(folder: Path) -> SweepNote:
    """Return the note of a sweep.

    Raises:
        UsageError: The folder contains no sweep.
        FormatError: ``sweep.json`` is damaged.
        EnvironmentFailure: ``sweep.json`` cannot be read.
    """
    value = read_json(folder / NOTE)
    if value is None:
        raise UsageError(
            f"{folder} holds no sweep: {NOTE} is missing. The default folder is <registry>-sweeps/<recipe>, below the "
            "folder in which the sweep was started.",
            subject=folder,
        )
    return parse_record(SweepNote, value, str(folder / NOTE), _NOTE_HEADER)


def recorded_names(folder: Path) -> list[str]:
    """Return the names of the runs with a record, in alphabetical order."""
    with environment("read", folder):
        return sorted(path.stem for path in folder.glob("*.json") if path.name != NOTE)
