"""Files of a remote: one method for each call to its object store; errors become compatkit's.

``step`` runs before each call and does nothing; tests replace it to make any call fail. Files of unknown size are only
read in ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.foundation.credentials import safe_cause
from compatkit.registry.remotes import failures
from compatkit.registry.remotes.objectstore import ObjectStore, Site, SiteFiles

Item = TypeVar("Item")
Result = TypeVar("Result")
WORKERS = 16
"""Number of small requests in parallel."""
MAX_REQUESTS = 64
"""Maximum number of files or folders requested one by one; for more, everything is listed."""
_VERBS = {"size": "look at", "put": "write", "upload": "write", "commit": "commit to"}
"""Verbs for messages, where they differ from the operation."""


def step(operation: str, path: str) -> None:
    """Do nothing; called before each call to the store with its name and path.

    Args:
        operation: Name of the operation, such as ``"put"``.
        path: Path relative to the remote.
    """


@attrs.define(eq=False)
class Files:
    """Files of a remote.

    Attributes:
        store: Object store that a plugin opened.
        url: Address for messages, without secrets.
        exclusive: Whether exactly one of several simultaneous writers can create a file; None if not known yet.
    """

    store: ObjectStore = attrs.field(repr=False)
    url: str
    exclusive: bool | None = attrs.field(init=False)
    _slots: threading.Semaphore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.exclusive, self._slots = self.store.exclusive, threading.Semaphore(self.store.parallel)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path; empty if the folder is missing."""
        with self._convert_errors("list", folder):
            sizes = self.store.sizes(folder)
        return {path: size for path, size in sizes.items() if path.startswith(f"{folder}/")}

    def fingerprints(self, folder: str) -> dict[str, str]:
        """Return the fingerprints of all files in a folder, at any depth, by path; empty if the folder is missing."""
        with self._convert_errors("list", folder):
            fingerprints = self.store.fingerprints(folder)
        return {path: value for path, value in fingerprints.items() if path.startswith(f"{folder}/")}

    def fingerprint(self, data: bytes) -> str | None:
        """Return the fingerprint of a file with some content; None if the store has no fingerprints."""
        return self.store.fingerprint(data)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None."""
        with self._convert_errors("size", path):
            return self.store.size(path)

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file, from the byte ``start`` on, or None."""
        with self._convert_errors("read", path):
            data = self.store.read(path, start, count)
        return None if data is None else data[:count]  # a server may send more than requested

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file."""
        with self._convert_errors("put", path):
            self.store.put(path, data)

    def upload(self, path: str, local: Path, progress: Callable[[int], None]) -> None:
        """Upload a local file, in parts if the store supports that.

        Args:
            path: Path in the remote.
            local: Local file.
            progress: Function called with the number of bytes of each part.
        """
        with self._convert_errors("upload", path):
            self.store.upload(path, local, progress)

    def create(self, path: str, data: bytes) -> bool:
        """Create a small file; return False if it exists, or another writer was faster."""
        if self.exclusive is False and self.size(path) is not None:
            return False
        with self._convert_errors("create", path):
            created = self.store.create(path, data)
        if created is None:
            if self.exclusive is not False and self.size(path) is not None:
                return False
            self.put(path, data)
        if created and self.exclusive:
            return True
        return created is not False and self.read(path, 0, len(data) + 1) == data

    def try_exclusive(self, path: str, data: bytes) -> None:
        """Find out whether files are created exclusively, once, by creating a file that exists.

        Args:
            path: Path of a file that exists.
            data: Its content, which a store that ignores the condition writes again.
        """
        if self.exclusive is not None:
            return
        with suppress(EnvironmentFailure), self._convert_errors("try", path):  # it may be protected
            self.exclusive = self.store.create(path, data) is False

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> set[str]:
        """Create small files, given as paths and contents; return the paths that existed."""
        if not files:
            return set()
        with self._convert_errors("commit", files[0][0]):
            taken = self.store.create_all(files)
        if taken is not None:
            return taken
        return {
            path
            for (path, _), created in self.in_parallel(lambda file: self.create(*file), files)
            if not created
        }

    def settle(self) -> None:
        """Ensure that written files can be read."""
        with self._convert_errors("commit", ""):
            self.store.settle()

    def present(self, changes: Callable[[Site], SiteFiles]) -> None:
        """Write the files that the store's site shows; ``changes`` reads other files meanwhile."""
        with convert_errors(self.url, "commit", ""):
            self.store.present(changes)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with self._convert_errors("remove", path):
            self.store.remove(path)

    def close(self) -> None:
        """End connections."""
        with (
            suppress(EnvironmentFailure),
            convert_errors(self.url, "close", ""),
        ):  # nothing is left to be sent
            self.store.close()

    def neighbors(self) -> list[str]:
        """Return the names in the parent folder of the remote."""
        with self._convert_errors("list", ".."):
            return list(self.store.neighbors())

    def in_parallel(
        self, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with the result of ``work``, in order, computed in threads; raise the first error.

        Args:
            work: Function of an item.
            items: Items.
        """
        if not items:
            return
        with ThreadPoolExecutor(min(WORKERS, len(items))) as pool:
            yield from zip(items, pool.map(work, items), strict=True)

    @contextmanager
    def _convert_errors(self, operation: str, path: str) -> Iterator[None]:
        with self._slots, convert_errors(self.url, operation, path):
            yield


@contextmanager
def convert_errors(url: str, operation: str, path: str) -> Iterator[None]:
    """Convert errors of a plugin's store in the block to EnvironmentFailure, with action, file, cause and remedy.

    Args:
        url: Address of the remote.
        operation: Name of the operation, such as ``"put"``.
        path: Path relative to the remote.

    Raises:
        EnvironmentFailure: The store raised an error that is not compatkit's.
        UsageError: The store refuses an option.
    """
    try:
        step(operation, path)
        yield
    except (CompatkitError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:  # back ends raise their own classes, such as botocore's and httpx's
        if type(error).__module__.startswith("compatkit."):
            raise
        if isinstance(error, TypeError) and "keyword argument" in str(error):
            raise UsageError(
                f"{url}: its file system does not accept an option: {error}.", subject=url
            ) from safe_cause(error)
        address = f"{url}/{path}" if path else url
        action = f"{_VERBS.get(operation, operation)} {address}"
        raise EnvironmentFailure(
            f"could not {action}: {failures.described(error)}; {failures.remedy(error)}. Repeat the command to "
            "continue.",
            subject=address,
        ) from safe_cause(error)
