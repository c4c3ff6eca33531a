"""The folder of a sweep: a note that describes it, and a record of each run."""

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
"""File that marks the folder of a sweep; it describes the axes and the chosen launcher."""
OTHER_PLAN = "of another plan (recipe, data, plugins or versions changed)"
_BESIDE = {"schema": SCHEMA, "kind": "sweep-run"}
_NOTE = {"schema": SCHEMA, "kind": "sweep"}


@attrs.frozen(kw_only=True)
class RunPlan:
    """One run in the note of a sweep.

    Attributes:
        run: Its name.
        values: The varied values, by path.
        plan: As in ``RunRecord``.
        seed: Of the trainer, whether or not it varies.
    """

    run: str
    values: Mapping[str, Any]
    plan: str
    seed: int


@attrs.frozen(kw_only=True)
class SweepNote:
    """The content of ``sweep.json``.

    Attributes:
        recipe: Name of its file.
        axes: Values of each axis, by its path.
        choice: The requested and the used launcher.
        runs: In the order of the recipe; empty in folders of versions before these were noted.
    """

    recipe: str
    axes: Mapping[str, Any]
    choice: Mapping[str, Any]
    runs: tuple[RunPlan, ...] = ()


@attrs.frozen(kw_only=True)
class RunRecord:
    """One run of a sweep.

    Attributes:
        run: Its name.
        values: The varied values, by path.
        plan: Digest of everything known before the run that affects its result.
        state: ``"begun"`` if it was interrupted or is under way; ``"planned"``, which no file has, if it has no record.
        launcher: What carried it out.
        code: Code of the error that ended it, or empty.
        reason: Why it failed, or empty.
        fit: Digest of the trainer's plan, which checkpoints belong to.
        parts: Published references, by ``"<task>.extractor"`` and so on.
        losses: Losses in the last row of the history, by task and name.
        matrix: JSON of the matrix of its own extractors and heads; None until measured.
        seconds: Wall-clock time.
        threads: Threads used by operations, which may affect the last bits of sums.
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
        """Return its matrix."""
        return None if self.matrix is None else Matrix.from_json(dumps(self.matrix))

    def failed(self, error: BaseException) -> RunRecord:
        """Return the record of the same run, ended by ``error``."""
        if isinstance(error, CompatkitError):
            code, reason = error.code, str(error)
        elif isinstance(error, MemoryError):
            code, reason = "environment", "The memory is used up. Use a smaller batch or fewer workers."
        else:
            code, reason = "defect", f"{type(error).__name__}: {error}"
        return attrs.evolve(self, state="failed", code=code, reason=reason)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {**_BESIDE, **unstructure(self)}

    @classmethod
    def from_json(cls, value: Any, what: str) -> RunRecord:
        """Read the output of ``to_json``.

        Args:
            value: JSON value.
            what: Its origin, for messages.

        Raises:
            FormatError: The value is not a record.
        """
        record = parse_record(cls, value, what, _BESIDE)
        if record.state == "done" and (record.matrix is None or record.matrix.get("schema") != MATRIX):
            raise FormatError(f"{what} describes a finished run, but has no matrix of schema {MATRIX}.")
        try:
            record.figures()
        except FormatError as error:
            raise FormatError(f"{what}: {error}", subject=what) from error
        return record


def checkpoint(folder: Path, run: str) -> Path:
    """Return the path of a run's checkpoint, which exists until the run is done.

    Args:
        folder: Of the sweep.
        run: Name of the run.
    """
    return folder / f"{run}.safetensors"


def write(folder: Path, record: RunRecord) -> None:
    """Write a record atomically.

    Args:
        folder: Of the sweep.
        record: Of one run.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    replace_file(folder / f"{record.run}.json", dumps(record.to_json()))


def read(folder: Path, run: str) -> RunRecord | None:
    """Return the record of a run, or None if there is none.

    Args:
        folder: Of the sweep.
        run: Name of the run.

    Raises:
        FormatError: The file is not a record.
        EnvironmentFailure: It cannot be read.
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
    """Raise if a folder contains anything but the sweep to resume.

    Args:
        folder: Where the sweep is to be.
        resume: Whether to go on with a sweep that is there.

    Raises:
        UsageError: It contains other files, or a sweep and ``resume`` is False.
        EnvironmentFailure: It cannot be read.
    """
    if contains_runs(folder, NOTE, "sweep") and not resume:
        text = f"{folder} holds a sweep already. Resume it (--resume), or name another folder (--out)."
        raise UsageError(text, subject=folder)


def write_note(folder: Path, note: SweepNote) -> None:
    """Create the folder and write the note that marks it.

    Args:
        folder: Of the sweep.
        note: Of the sweep.

    Raises:
        EnvironmentFailure: It cannot be created or written.
    """
    with environment("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / NOTE, dumps({**_NOTE, **attrs.asdict(note)}))


def read_note(folder: Path) -> SweepNote:
    """Return the note of a sweep.

    Raises:
        UsageError: The folder contains no sweep.
        FormatError: The note is damaged.
        EnvironmentFailure: It cannot be read.
    """
    value = read_json(folder / NOTE)
    if value is None:
        raise UsageError(
            f"{folder} holds no sweep: {NOTE} is missing. The default folder is <registry>-sweeps/<recipe>.",
            subject=folder,
        )
    return parse_record(SweepNote, value, str(folder / NOTE), _NOTE)


def names_of_records(folder: Path) -> list[str]:
    """Return the names of the runs that have a record, in alphabetical order."""
    with environment("read", folder):
        return sorted(path.stem for path in folder.glob("*.json") if path.name != NOTE)
