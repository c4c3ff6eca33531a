"""Looking into files one by one, where whoever asks has seen that no folder above is a link: a tenth of the cost."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable

LINE_BYTES = 72
"""Size of a reference: ``sha256:``, 64 digits, a newline."""
SMALL = 2**16
"""Bytes; larger files in ``quarantine`` are damaged weights, which name nothing."""
LOOSE = re.compile(rb"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])")
"""What may be the digits of a digest, wherever they stand."""
_CHUNK = 2**20
_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder, sorted by name; nothing where there is no folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def opened(path: str) -> tuple[int, int] | None:
    """Return descriptor and size of a plain file whose folders were looked at before; None if it is not there.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError:
        descriptor = durable.open_plain(Path(path), Path(path).parent)  # again, to be told what stands there
        if descriptor is None:
            return None
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode):
        return descriptor, state.st_size
    os.close(descriptor)
    raise IntegrityError(
        f"{path} is a pipe, folder or device where the registry keeps a plain file; remove it, and restore the file "
        "from a copy of the registry.",
        subject=Path(path),
    )


def is_small(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a file of at most ``SMALL`` bytes."""
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size <= SMALL


def head(path: str) -> bytes | None:
    """Return the beginning of a plain file, longer than any reference; None if it is not there."""
    file = opened(path)
    if file is None:
        return None
    try:
        return os.read(file[0], 4 * LINE_BYTES)
    finally:
        os.close(file[0])


def digits(path: str) -> Iterator[bytes]:
    """Yield every run of 64 hexadecimal digits in a file."""
    found = opened(path)
    if found is None:
        return
    with os.fdopen(found[0], "rb", buffering=0) as file:
        kept = b""
        while piece := file.read(_CHUNK):
            yield from LOOSE.findall(kept + piece)
            kept = (kept + piece)[-2 * LINE_BYTES :]
