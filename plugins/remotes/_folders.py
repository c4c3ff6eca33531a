"""Listing of folders at any depth, where a server lists one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import attrs

MAX_DEPTH = 64
"""Maximum depth of folders below a listed one."""


@attrs.frozen
class Entry:
    """An entry of a folder.

    Attributes:
        is_folder: Whether it is a folder.
        size: Size of a file in bytes; None if the listing does not tell.
    """

    is_folder: bool
    size: int | None = None


def files_below(
    folder: str, entries: Callable[[str], Mapping[str, Entry]], threads: int
) -> dict[str, int | None]:
    """Return the sizes of all files in a folder, at any depth, by path.

    Args:
        folder: Path of the folder.
        entries: Function that returns the entries of a folder by name.
        threads: Number of folders listed at a time.

    Raises:
        OSError: A name is not that of a file, or folders are nested too deeply.
    """
    sizes: dict[str, int | None] = {}
    level = [folder]
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(MAX_DEPTH):
            deeper: list[str] = []
            for parent, listed in zip(level, pool.map(entries, level), strict=True):
                for name, entry in listed.items():
                    if not name or "/" in name or "\0" in name or name in (".", ".."):
                        raise OSError(f"{parent} has an entry with the impossible name {name!r:.100}")
                    if entry.is_folder:
                        deeper.append(f"{parent}/{name}")
                    else:
                        sizes[f"{parent}/{name}"] = entry.size
            level = deeper
            if not level:
                return sizes
    raise OSError(f"{folder} has folders nested more than {MAX_DEPTH} deep")
