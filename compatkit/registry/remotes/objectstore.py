"""What a plugin implements to offer a remote: files by path, as an object store has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


class ObjectStore(ABC):
    """The files of one remote, by path relative to it.

    Methods are called from several threads. They may raise anything: an error that is not compatkit's becomes an
    ``EnvironmentFailure`` that names the action, the file and the cause. Nothing that they return is trusted.
    """

    @abstractmethod
    def sizes(self, folder: str) -> Mapping[str, int]:
        """Return the size of every file below a folder, at any depth, by path; empty if there is no such folder.

        Args:
            folder: Path without a slash at the end.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is no such file."""

    @abstractmethod
    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a file from ``start`` on; None if there is no such file.

        Args:
            path: Of the file.
            start: First byte; a range beyond the end is empty.
            count: Most bytes.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it; readers see all of the content or none of it.

        Args:
            path: Of the file.
            data: The content.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist; return False if it does.

        Of several writers exactly one should get True; where the back end has no conditional write, checking before
        writing leaves a race, in which the last one's bytes stay.

        Args:
            path: Of the file.
            data: The content.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; do nothing if there is none."""

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Write a large file; override it where the back end takes parts.

        Args:
            path: Of the file in the remote.
            file: On this machine.
            progress: Called with the number of bytes of each part that was written.
        """
        data = file.read_bytes()
        self.put(path, data)
        progress(len(data))

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> set[str] | None:
        """Create several files in one change and return the paths that existed; None: create them one by one.

        Args:
            files: Paths and contents.
        """
        return None

    def settle(self) -> None:  # noqa: B027 - most back ends gather nothing
        """Make sure that files of ``put`` and ``upload`` can be read; override it where changes are gathered."""

    def neighbors(self) -> Iterable[str]:
        """Return names of what lies beside this place, to suggest one for a mistyped address; optional."""
        return ()
