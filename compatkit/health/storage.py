"""Storage: folders that compatkit writes to, free space, what the file system of the registry can do."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from compatkit.errors import CompatkitError
from compatkit.foundation import cache, mounts
from compatkit.foundation.configuration import configuration
from compatkit.health.observation import Observation

LOW_SPACE = 2**30
"""Bytes of free space below which publishing may fail."""


def storage() -> Iterator[Observation]:
    """Yield what is found about the folders of the user."""
    folders: dict[str, tuple[Callable[[], Path], str]] = {
        "cache": (cache.above, f"Set {cache.VARIABLE} to a writable folder; searches need an index there."),
        "configuration": (
            configuration,
            "Set XDG_CONFIG_HOME to a writable folder; keys and remotes are saved there.",
        ),
        "temporary files": (lambda: Path(tempfile.gettempdir()), "Set TMPDIR to a writable folder."),
    }
    for subject, (find, remedy) in folders.items():
        try:
            folder = find()
        except (CompatkitError, RuntimeError, OSError) as error:  # no home, or no folder for temporary files
            yield Observation("storage", subject, "problem", f"there is none: {error}", remedy)
            continue
        yield folder_observation(subject, folder, remedy)


def folder_observation(subject: str, folder: Path, remedy: str) -> Observation:
    """Return whether a folder, or the one in which it would be made, can be written, and its free space.

    Args:
        subject: What it is for.
        folder: The folder.
        remedy: What to do if it cannot be written.
    """
    place = nearest(folder)
    where = f"{folder}" if place == folder else f"{folder}, to be made in {place}"
    if (why := why_not_written(place)) is not None:
        return Observation("storage", subject, "problem", f"{where}: {why}", remedy)
    free = shutil.disk_usage(place).free
    found = f"{where}: writable, {free / 2**30:.1f} GB free, {kind_of(place)}"
    if free < LOW_SPACE:
        return Observation("storage", subject, "warning", found, "Free space on this disk.")
    return Observation("storage", subject, "ok", found)


def file_system(root: Path) -> Iterator[Observation]:
    """Yield what the file system of a registry can do.

    Args:
        root: Root of the registry.
    """
    kind = kind_of(root)
    local = mounts.is_local(root.stat().st_dev)
    found = f"{kind}; weights are {'mapped into' if local else 'read to'} memory"
    yield Observation("storage", "registry's file system", "ok", found)
    if (why := why_not_written(root)) is not None:
        remedy = "You can read it; to publish, ask its owner or clone it."
        yield Observation("storage", "registry's folder", "warning", f"{root}: {why}", remedy)
        return
    if (why := _no_hard_link(root)) is not None:
        remedy = "Two writers could overwrite each other: let one publish at a time, or use another disk."
        yield Observation("storage", "hard links", "warning", why, remedy)
    else:
        yield Observation("storage", "hard links", "ok", "made; no locks are needed")
    free = shutil.disk_usage(root).free
    low = free < LOW_SPACE
    found = f"{free / 2**30:.1f} GB free on the registry's disk"
    remedy = "Free space; `compatkit gc` lists what nothing refers to." if low else ""
    yield Observation("storage", "free space", "warning" if low else "ok", found, remedy)


def why_not_written(folder: Path) -> str | None:
    """Return why no file can be made in a folder; None if one was, and removed again."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".compatkit-doctor-"):
            return None
    except OSError as error:
        return f"cannot be written: {error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'OSError')})"


def nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    absolute = folder.expanduser().absolute()
    return next(place for place in (absolute, *absolute.parents) if place.exists())


def kind_of(path: Path) -> str:
    """Return the kind of a mounted file system, such as ``ext4``."""
    with suppress(OSError):
        return mounts.kind(path.stat().st_dev) or "unknown file system"
    return "unknown file system"


def _no_hard_link(root: Path) -> str | None:
    """Return why no hard link can be made below a registry; None if one was, and removed again."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".compatkit-doctor-") as folder:
        file = Path(folder) / "file"
        file.write_bytes(b"")
        try:
            os.link(file, file.with_name("link"))
        except OSError as error:
            return f"not made: {error.strerror or error}"
    return None
