"""Numbered logs: each entry is a small file that is created once, and the highest number is the state.

Whoever creates entry ``n`` by link(2) has made the change; whoever saw an older state fails and looks again. No pointer
is needed, no lock, and no entry is ever rewritten. Where there are no hard links, a crash may leave an empty entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT

NUMBER = re.compile("[1-9][0-9]{0,8}")


@attrs.frozen
class Log:
    """One log: the files ``<folder>/<prefix><number>``.

    Attributes:
        root: Of the registry.
        folder: Where the entries lie.
        prefix: Begins their names, where several logs share a folder.
    """

    root: Path
    folder: Path
    prefix: str = ""

    def path(self, number: int) -> Path:
        """Return where an entry belongs."""
        return self.folder / f"{self.prefix}{number}"

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, rising; other files are ignored.

        Raises:
            IntegrityError: A folder on the way is a symbolic link.
        """
        names, prefix = names_in(self.folder, self.root), self.prefix
        if prefix:
            names = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def read(self, number: int) -> bytes | None:
        """Return an entry, at most one byte more than it may have; empty if it was cut off, None if it is gone."""
        return durable.read_finished(self.path(number), self.root, limit=LIMIT + 1)

    def append(self, make: Callable[[list[int]], bytes | None]) -> int | None:
        """Create the entry after the last one.

        Args:
            make: Returns the content of the entry that follows the given numbers, or None to leave the log as it is;
                called again where another process was faster.

        Returns:
            The number of the new entry, None if there is none.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing changed.
        """
        while True:
            numbers = self.numbers()
            data = make(numbers)
            if data is None:
                return None
            number = max(numbers, default=0) + 1
            with environment("create", self.path(number)):
                if durable.create_once(self.path(number), data, self.root):
                    return number


def names_in(folder: Path, root: Path) -> list[str]:
    """Return the names of the files in a folder; none where there is no folder.

    Args:
        folder: Below ``root``.
        root: Of the registry.

    Raises:
        IntegrityError: A folder between it and the root is a symbolic link.
    """
    durable.check_folders(folder, root)
    with environment("read", folder):
        try:
            return os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
