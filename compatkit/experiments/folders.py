"""Folders that runs are kept in: a note says what a folder holds, and runs that were interrupted go on from it.

Recipes, sweeps and studies keep runs in the same way: a folder is taken if it is empty or holds runs of that kind, a
record is read strictly and replaced atomically, and a folder in which nothing came to be goes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import attrs

from compatkit.contracts.codec import loads
from compatkit.errors import FormatError, UsageError
from compatkit.plugins.settings import fits
from compatkit.registry.os_errors import environment

Kept = TypeVar("Kept")


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


def structured(kind: type[Kept], value: Any, what: str, beside: Mapping[str, Any] | None = None) -> Kept:
    """Return an attrs object of the JSON object that holds its fields.

    Args:
        kind: Its annotations say which values are usable; fields with a default may be missing.
        value: As ``read_json`` returned it.
        what: Where the value stands, for messages.
        beside: Further keys that the object holds, with their values.

    Raises:
        FormatError: It is no object, a field is missing or unknown, or a value is of another type.
    """
    beside = beside or {}
    hints = get_type_hints(kind)
    needed = {one.name for one in attrs.fields(kind) if one.default is attrs.NOTHING}  # type: ignore[arg-type]
    if (
        not isinstance(value, dict)
        or not needed | beside.keys() <= value.keys() <= hints.keys() | beside.keys()
    ):
        raise FormatError(f"{what} does not hold just {', '.join((*beside, *hints))}.", subject=what)
    for name, one in value.items():
        if one != beside[name] if name in beside else not fits(one, hints[name]):
            raise FormatError(
                f"{what} holds a {name} that this version does not read: {one!r:.80}.", subject=what
            )
    return kind(**{name: one for name, one in value.items() if name in hints})
