"""Numbered logs: each entry is a small file that is created once; the entry with the highest number is the state.

The process that creates entry ``n`` by link(2) has made the change; one that saw an older state fails and reads again.
There is no pointer and no lock, and no entry is ever rewritten. Without hard links, a crash may leave an empty entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.names import ENTRY_NUMBER
from compatkit.registry.os_errors import environment

NUMBER = re.compile(ENTRY_NUMBER)
LIMIT = 2**16
"""Maximum size of an entry, and of any other small file of a registry, in bytes."""
BeforeChange = Callable[[str, bytes], object]
"""Function called before a file is created, with its path relative to the root, and its content; may raise to stop."""


@attrs.frozen
class Log:
    """One log: the files ``<folder>/<prefix><number>``.

    Attributes:
        root: Root folder of the registry.
        folder: Folder of the entries.
        prefix: Start of their file names, if several logs share a folder.
    """

    root: Path
    folder: Path
    prefix: str = ""

    def path(self, number: int) -> Path:
        """Return the path of an entry."""
        return self.folder / f"{self.prefix}{number}"

    def numbers(self) -> list[int]:
        """Return the numbers of all entries in ascending order; other files are ignored.

        Raises:
            IntegrityError: A folder of the path is a symbolic link.
        """
        names, prefix = names_in(self.folder, self.root), self.prefix
        if prefix:
            names = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def read(self, number: int) -> bytes | None:
        """Return an entry, cut one byte above the size limit; empty if writing was cut off, None if missing."""
        return durable.read_finished(self.path(number), self.root, limit=LIMIT + 1)

    def append(
        self, make: Callable[[list[int]], bytes | None], before: BeforeChange | None = None
    ) -> int | None:
        """Create the entry after the last one.

        Args:
            make: Returns the content of the entry that follows the given numbers, or None to leave the log as it is;
                called again if another process was faster.
            before: Called before the entry is created.

        Returns:
            The number of the new entry, or None.

        Raises:
            EnvironmentFailure: Disk full, no permission to write, ...; nothing changed.
            IntegrityError: A file has the last number that is read.
        """
        while True:
            numbers = self.numbers()
            data = make(numbers)
            if data is None:
                return None
            number = max(numbers, default=0) + 1
            path = self.path(number)
            if not NUMBER.fullmatch(str(number)):
                raise IntegrityError(
                    f"{path} cannot be added: {number - 1} is the last number of a log. Remove the file that "
                    "has it; it was written by hand.",
                    subject=path,
                )
            ready = None if before is None else partial(before, path.relative_to(self.root).as_posix(), data)
            with environment("create", path):
                if durable.create_once(path, data, self.root, ready):
                    return number


def names_in(folder: Path, root: Path) -> list[str]:
    """Return the file names in a folder; empty if there is no folder.

    Args:
        folder: Folder below ``root``.
        root: Root folder of the registry.

    Raises:
        IntegrityError: A folder between it and the root is a symbolic link.
    """
    durable.check_folders(folder, root)
    with environment("read", folder):
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
