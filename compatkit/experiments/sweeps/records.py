"""What is kept of each run beside the registry: one small file, replaced atomically, by which a sweep goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.codec import dumps, loads
from compatkit.errors import CompatkitError, FormatError
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment
from compatkit.reports.document import SCHEMA as MATRIX
from compatkit.reports.matrix import Matrix

SCHEMA = 1
State = Literal["begun", "done", "failed"]


@attrs.frozen(kw_only=True)
class Record:
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
    state: State
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

    def failed(self, error: BaseException) -> Record:
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
    def from_json(cls, value: Any, what: str) -> Record:
        """Read what ``to_json`` wrote.

        Raises:
            FormatError: It is something else.
        """
        names = {field.name: field for field in attrs.fields(cls)}
        if not isinstance(value, dict) or value.keys() != {"schema", "kind", *names}:
            raise FormatError(
                f"{what} is no record of a run: expected the fields schema, kind, {', '.join(names)}."
            )
        if value["schema"] != SCHEMA or value["kind"] != "sweep-run":
            raise FormatError(
                f"{what}: this version reads records of schema {SCHEMA}, got {value['schema']!r:.40}."
            )
        kept = {name: value[name] for name in names}
        texts = ("run", "plan", "state", "backend", "code", "reason", "fit")
        tables = ("values", "parts", "losses")
        if not all(isinstance(kept[name], str) for name in texts) or kept["state"] not in get_args(State):
            raise FormatError(f"{what} is no record of a run: a text is missing, or its state is none.")
        if not all(isinstance(kept[name], dict) for name in tables):
            raise FormatError(f"{what} is no record of a run: {', '.join(tables)} must be objects.")
        record = cls(**kept)
        if record.state == "done" and (record.matrix is None or record.matrix.get("schema") != MATRIX):
            raise FormatError(f"{what} says that its run is done, and holds no matrix of schema {MATRIX}.")
        return record


def place(folder: Path, run: str) -> Path:
    """Return where the record of a run is kept."""
    return folder / f"{run}.json"


def checkpoint(folder: Path, run: str) -> Path:
    """Return where the state of a run is kept until it is done."""
    return folder / f"{run}.safetensors"


def write(folder: Path, record: Record) -> None:
    """Keep a record.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    replace_file(place(folder, record.run), dumps(record.to_json()))


def read(folder: Path, run: str) -> Record | None:
    """Return the record of a run, None if there is none.

    Raises:
        FormatError: The file is no record.
        EnvironmentFailure: It cannot be read.
    """
    path = place(folder, run)
    with environment("read", path):
        if not path.exists():
            return None
        data = path.read_bytes()
    return Record.from_json(loads(data, what=str(path)), str(path))
