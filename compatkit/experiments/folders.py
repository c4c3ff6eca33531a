"""Folders that runs are kept in: a note says what a folder holds, and runs that were interrupted go on from it.

Recipes, sweeps and studies keep runs in the same way: a folder is taken if it is empty or holds runs of that kind, a
record is read strictly and replaced atomically, and a folder in which nothing came to be goes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from compatkit.contracts.codec import loads
from compatkit.errors import UsageError
from compatkit.registry.os_errors import environment


def holds(folder: Path, note: str, kind: str) -> bool:
    """Return whether a folder holds runs; False where it is missing or empty.

    Args:
        folder: Where runs are to be kept.
        note: Name of the file that every folder of such runs has.
        kind: What is kept, for messages: ``"run"``, ``"sweep"``.

    Raises:
        UsageError: It is a file, or holds other files.
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
    """Make a folder for the body; where it is empty afterwards it goes again, with those made above it.

    Raises:
        EnvironmentFailure: It cannot be made.
    """
    with environment("make", folder):
        above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it holds something by now
            for one in (folder, *folder.absolute().parents):
                if one == above:
                    break
                one.rmdir()


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, None where there is none.

    Raises:
        FormatError: It is no JSON, or not strictly so.
        EnvironmentFailure: It cannot be read.
    """
    with environment("read", path):
        data = path.read_bytes() if path.exists() else None
    return None if data is None else loads(data, what=str(path))
