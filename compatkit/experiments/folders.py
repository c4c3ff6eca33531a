"""Folders of runs, shared by recipes, sweeps and studies.

A folder is accepted if it is empty or holds runs of the same kind, records are read strictly, and a folder in which
nothing was written is removed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from compatkit.errors import FormatError, UsageError
from compatkit.foundation.codec import loads, structure
from compatkit.registry.os_errors import environment

Kept = TypeVar("Kept")


def holds(folder: Path, note: str, kind: str) -> bool:
    """Return whether a folder contains runs; False if it is missing or empty.

    Args:
        folder: Folder for runs.
        note: Name of the file that marks a folder of such runs.
        kind: What it holds, for messages: ``"run"``, ``"sweep"``.

    Raises:
        UsageError: The path is a file, or the folder holds other files.
        EnvironmentFailure: It cannot be read.
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
def made(folder: Path) -> Iterator[None]:
    """Create a folder for the block; remove it afterwards if it stayed empty, with the parents that were created.

    Raises:
        EnvironmentFailure: It cannot be created.
    """
    with environment("make", folder):
        above = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty any more
            for parent in (folder, *folder.absolute().parents):
                if parent == above:
                    break
                parent.rmdir()


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, or None if the file does not exist.

    Raises:
        FormatError: The file is not strict JSON.
        EnvironmentFailure: It cannot be read.
    """
    with environment("read", path):
        data = path.read_bytes() if path.exists() else None
    return None if data is None else loads(data, what=str(path))


def structured(kind: type[Kept], value: Any, what: str, beside: Mapping[str, Any] | None = None) -> Kept:
    """Convert a JSON object to an attrs object.

    Args:
        kind: Attrs class; fields with a default may be missing.
        value: Result of ``read_json``.
        what: Name of the value, for messages.
        beside: Further keys and values that the object must contain: ``{"schema": 1}``.

    Raises:
        FormatError: The value is not an object, a field is missing or unknown, or has the wrong type.
    """
    beside = beside or {}
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object.", subject=what)
    for name, expected in beside.items():
        if value.get(name) != expected:
            text = f"{what}: {name} is {value.get(name)!r:.80}, and this version reads {expected!r}."
            raise FormatError(text, subject=what)
    return structure(kind, {name: expected for name, expected in value.items() if name not in beside}, what)
