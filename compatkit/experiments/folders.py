"""Check and create folders of runs and parse their records, for recipes, sweeps and studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from compatkit.errors import FormatError, UsageError
from compatkit.foundation.codec import loads, structure
from compatkit.registry.os_errors import environment

Record = TypeVar("Record")


def default_location(registry: Path, what: str) -> Path:
    """Return the default folder for the output of experiments: in the current folder, named after the registry.

    Not beside the registry: the folder above a shared registry usually belongs to somebody else.

    Args:
        registry: Root of the registry.
        what: Kind of the output: ``"runs"``, ``"sweeps"``.

    Raises:
        UsageError: The current folder is in the registry.
    """
    current = Path.cwd()
    if current.resolve().is_relative_to(registry.resolve()):
        raise UsageError(
            f"The current folder {current} is in the registry {registry}, which holds nothing but components. Name a "
            f"folder elsewhere for the {what} (--out), or start in another folder.",
            subject=current,
        )
    return current / f"{registry.name}-{what}"


def contains_runs(folder: Path, note: str, kind: str) -> bool:
    """Return whether a folder contains runs; False if it is missing or empty.

    Args:
        folder: Folder for runs.
        note: Name of the file that every folder of such runs contains.
        kind: Kind of the runs, for messages: ``"run"``, ``"sweep"``.

    Raises:
        UsageError: The path is a file, or the folder contains other files only.
        EnvironmentFailure: The folder cannot be read.
    """
    with environment("read", folder):
        if not folder.exists():
            return False
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder (--out).", subject=folder)
        if (folder / note).exists():
            return True
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} holds other files and no {kind}; name another folder (--out).", subject=folder
            )
    return False


@contextmanager
def created_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; on exit remove those that are empty.

    Raises:
        EnvironmentFailure: The folder cannot be created.
    """
    with environment("make", folder):
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty any more
            for parent in (folder, *folder.absolute().parents):
                if parent == existing:
                    break
                parent.rmdir()


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, or None if the file does not exist.

    Raises:
        FormatError: The file is not strict JSON.
        EnvironmentFailure: The file cannot be read.
    """
    with environment("read", path):
        data = path.read_bytes() if path.exists() else None
    return None if data is None else loads(data, what=str(path))


def parse_record(
    kind: type[Record], value: Any, what: str, header: Mapping[str, Any] | None = None
) -> Record:
    """Convert a JSON object to an attrs object.

    Args:
        kind: Attrs class; fields with a default may be missing.
        value: Result of ``read_json``.
        what: Name of the value, for messages.
        header: Required keys and values besides the fields, such as ``{"schema": 1}``.

    Raises:
        FormatError: The value is not an object, a field is missing or unknown, or has the wrong type.
    """
    header = header or {}
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object.", subject=what)
    for name, expected in header.items():
        if value.get(name) != expected:
            text = f"{what}: {name} is {value.get(name)!r:.80}, but this version reads {expected!r}."
            raise FormatError(text, subject=what)
    return structure(kind, {name: field for name, field in value.items() if name not in header}, what)
