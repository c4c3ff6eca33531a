"""The folder of a sweep: a note of what it is, and a record of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, FormatError, UsageError
from compatkit.experiments.folders import holds, read_json, structured
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment
from compatkit.reports.document import SCHEMA as MATRIX
from compatkit.reports.matrix import Matrix

SCHEMA = 1
NOTE = "sweep.json"
"""Says of a folder that a sweep is kept in it, and what was chosen for it."""
RunState = Literal["begun", "done", "failed"]


@attrs.frozen(kw_only=True)
class RunRecord:
    """One run of a sweep.

    Attributes:
        run: Its name.
        values: By path, the values that vary.
        plan: Digest of everything that was known before it began and that decides its result.
        state: ``"begun"`` where it was interrupted.
        backend: What ran it.
        code: Of the error that ended it, else empty.
        reason: Why it failed, else empty.
        fit: Digest of the plan as the trainer knows it, which checkpoints belong to.
        parts: Published references, by ``"<task>.extractor"`` and so on.
        losses: Of the last row of the history, by task and name.
        matrix: Its own extractors with its own heads, as a matrix keeps itself; None until it is measured.
        seconds: From begin to end, on the clock.
        threads: That its operations were spread over; sums may depend on it in their last bits.
    """

    run: str
    values: Mapping[str, Any]
    plan: str
    state: RunState
    backend: str = ""
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
        return {"schema": SCHEMA, "kind": "sweep-run", **attrs.asdict(self, recurse=False)}

    @classmethod
    def from_json(cls, value: Any, what: str) -> RunRecord:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: It is something else.
        """
        record = structured(cls, value, what, {"schema": SCHEMA, "kind": "sweep-run"})
        if record.state == "done" and (record.matrix is None or record.matrix.get("schema") != MATRIX):
            raise FormatError(f"{what} says that its run is done, and holds no matrix of schema {MATRIX}.")
        return record


def place(folder: Path, run: str) -> Path:
    """Return where the record of a run is kept."""
    return folder / f"{run}.json"


def checkpoint(folder: Path, run: str) -> Path:
    """Return where the state of a run is kept until it is done."""
    return folder / f"{run}.safetensors"


def write(folder: Path, record: RunRecord) -> None:
    """Keep a record.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    replace_file(place(folder, record.run), dumps(record.to_json()))


def read(folder: Path, run: str) -> RunRecord | None:
    """Return the record of a run, None if there is none.

    Raises:
        FormatError: The file is no record.
        EnvironmentFailure: It cannot be read.
    """
    path = place(folder, run)
    value = read_json(path)
    return None if value is None else RunRecord.from_json(value, str(path))


def beside(registry: Path, recipe: Path) -> Path:
    """Return the folder of a recipe's sweep where none is named: next to the registry."""
    return registry.with_name(f"{registry.name}-sweeps") / recipe.stem


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but the sweep that is to go on.

    Raises:
        UsageError: It holds other files, or a sweep and ``resume`` is False.
        EnvironmentFailure: It cannot be read.
    """
    if holds(folder, NOTE, "sweep") and not resume:
        raise UsageError(
            f"{folder} holds a sweep already. Go on with it (--resume), or name another folder (--out).",
            subject=folder,
        )


def write_note(
    folder: Path, recipe: Path, axes: Mapping[str, Sequence[Any]], choice: Mapping[str, Any]
) -> None:
    """Make the folder and say what is kept in it.

    Raises:
        EnvironmentFailure: It cannot be made or written.
    """
    with environment("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept = {"schema": 1, "kind": "sweep", "recipe": recipe.name, "axes": dict(axes), "choice": dict(choice)}
    replace_file(folder / NOTE, dumps(kept))
