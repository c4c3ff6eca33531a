"""Interface of plugins that offer a remote as an object store: files by path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs


@attrs.frozen
class Site:
    """A site that shows the files of a store to people and to programs that do not know registries.

    Attributes:
        address: Address of the registry, without secrets, as others write it.
        timm_source: Name by which ``timm.create_model`` builds the network in ``config.json`` and
            ``model.safetensors``; empty if it cannot.
    """

    address: str
    timm_source: str = ""


SiteFiles = Mapping[str, bytes | Path | None]
"""Files of a site to be written or removed: contents or local files, and None for one to remove, by path."""


class ObjectStore(ABC):
    """The files of one remote, by relative path.

    Methods are called from several threads. They may raise any error: one that is not compatkit's becomes an
    ``EnvironmentFailure`` with action, file and cause. Their results are not trusted.

    Attributes:
        parallel: Maximum number of calls at a time; 1 if the store is not safe for threads.
        exclusive: Whether exactly one of several simultaneous writers can ``create`` a file. None if that depends on
            the server: a push then tries it, with one call of ``create`` for a file that exists.
    """

    parallel: int = 16
    exclusive: bool | None = None

    @abstractmethod
    def sizes(self, folder: str) -> Mapping[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path; empty if the folder is missing.

        Args:
            folder: Path without a slash at the end.
        """

    def fingerprint(self, data: bytes) -> str | None:
        """Return the fingerprint that ``fingerprints`` has for a file with some content; None if there are none.

        Args:
            data: The content.
        """
        return None

    def fingerprints(self, folder: str) -> Mapping[str, str]:
        """Return a fingerprint of the content of each file in a folder, at any depth, by path.

        A store whose listings have them (S3's ETag) implements both methods. Small files are then read from a copy of
        all of them in one file, as far as the fingerprints show that the copy holds.

        Args:
            folder: Path without a slash at the end.
        """
        return {}

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is no such file."""

    @abstractmethod
    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file from ``start`` on; None if the file is missing.

        Args:
            path: Path of the file.
            start: First byte; a range beyond the end is empty.
            count: Maximum number of bytes.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it; readers see all of the content or none of it.

        Args:
            path: Path of the file.
            data: New content.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file by a conditional write, of which exactly one of several simultaneous writers gets True.

        Returns:
            Whether the file was created; False if it exists; None if the back end has no conditional writes. Then
            compatkit checks before it writes, which leaves a race: the last content remains.

        Args:
            path: Path of the file.
            data: Content.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; do nothing if there is none."""

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Upload a large file; override this if the back end supports uploads in parts.

        Args:
            path: Path in the remote.
            file: Local file.
            progress: Called with the size of each written part in bytes.
        """
        data = file.read_bytes()
        self.put(path, data)
        progress(len(data))

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> set[str] | None:
        """Create several files in one change and return the paths that existed; None creates them one by one.

        Args:
            files: Paths and contents.
        """
        return None

    def settle(self) -> None:  # noqa: B027 - most back ends write at once
        """Ensure that written files can be read; override this if changes are collected before writing."""

    def present(self, changes: Callable[[Site], SiteFiles]) -> None:  # noqa: B027 - most back ends have no site
        """Write the files that the store's site shows, such as a model card; by default there is no site.

        It is called at the end of a push. A store with a site calls ``changes``, makes them all at once, and calls it
        again if somebody else wrote in between.

        Args:
            changes: Function that reads the registry in the store and returns the files to write or remove; empty if
                they are up to date.
        """

    def close(self) -> None:  # noqa: B027 - most back ends keep no connection
        """End connections; override this if there are any. The next call may make new ones."""

    def neighbors(self) -> Iterable[str]:
        """Return the names in the parent folder, to suggest one for a mistyped address; optional."""
        return ()
