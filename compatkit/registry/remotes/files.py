"""Files of a remote: one method for each call to its object store, with this library's errors.

``step`` is called before each call and does nothing; tests replace it to fail at any of them. The store is asked for
ranges and never for whole files of unknown size.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.registry.remotes.objectstore import ObjectStore

Item = TypeVar("Item")
Result = TypeVar("Result")
WORKERS = 16
"""Small requests at once."""
FEW = 64
"""Most folders or files that are requested one by one; for more, everything is listed."""
_SECRET = re.compile(r"(?<=://)[^/@\s]*@")
_VERBS = {"size": "look at", "put": "write", "upload": "write", "commit": "commit to"}
"""Operations whose messages use another word."""


def step(operation: str, path: str) -> None:
    """Do nothing; called before each call to the store with its name and path.

    Args:
        operation: Such as ``"put"``.
        path: Relative to the remote.
    """


@attrs.frozen(eq=False)
class Files:
    """The files of a remote.

    Attributes:
        store: What a plugin made for the address.
        url: Address for messages, without secrets.
    """

    store: ObjectStore
    url: str

    def listed(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder by path; empty if there is no such folder."""
        with self._calling("list", folder):
            sizes = self.store.sizes(folder)
        return {path: size for path, size in sizes.items() if path.startswith(f"{folder}/")}

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None."""
        with self._calling("size", path):
            return self.store.size(path)

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a file, or None.

        Args:
            path: Relative to the remote.
            start: First byte.
            count: Most bytes.
        """
        with self._calling("read", path):
            data = self.store.read(path, start, count)
        return None if data is None else data[:count]  # a server may send more than requested

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it.

        Args:
            path: Relative to the remote.
            data: The content.
        """
        with self._calling("put", path):
            self.store.put(path, data)

    def upload(self, path: str, local: Path, arrived: Callable[[int], None]) -> None:
        """Write a file from one of this machine, in parts where the store takes parts.

        Args:
            path: Relative to the remote.
            local: File of this machine.
            arrived: Called with the size of each part.
        """
        with self._calling("upload", path):
            self.store.upload(path, local, arrived)

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that must not exist; False if it exists, or another writer's bytes remain.

        Args:
            path: Relative to the remote.
            data: The content.
        """
        with self._calling("create", path):
            created = self.store.create(path, data)
        return created and self.read(path, 0, len(data) + 1) == data

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> set[str]:
        """Create small files that must not exist; return the paths that existed.

        Args:
            files: Paths and contents.
        """
        if not files:
            return set()
        with self._calling("commit", files[0][0]):
            taken = self.store.create_all(files)
        if taken is not None:
            return taken
        return {
            path for (path, _), created in self.at_once(lambda file: self.create(*file), files) if not created
        }

    def settle(self) -> None:
        """Make sure that files that were put and uploaded can be read."""
        with self._calling("commit", ""):
            self.store.settle()

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with self._calling("remove", path):
            self.store.remove(path)

    def neighbors(self) -> list[str]:
        """Return the names of what lies beside the remote."""
        with self._calling("list", ".."):
            return list(self.store.neighbors())

    def at_once(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order, computed in threads; the first error is raised.

        Args:
            work: Called with one item.
            items: Arguments of the calls.
        """
        if not items:
            return
        with ThreadPoolExecutor(min(WORKERS, len(items))) as pool:
            yield from zip(items, pool.map(work, items), strict=True)

    def _calling(self, operation: str, path: str) -> AbstractContextManager[None]:
        return calling(self.url, operation, path)


@contextmanager
def calling(url: str, operation: str, path: str) -> Iterator[None]:
    """Turn any error of a plugin's store into an EnvironmentFailure that names action, file, cause and remedy.

    Args:
        url: Address of the remote.
        operation: Such as ``"put"``.
        path: Relative to the remote.

    Raises:
        EnvironmentFailure: In place of any error that is not compatkit's.
        UsageError: The store refuses an option.
    """
    try:
        step(operation, path)
        yield
    except (CompatkitError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:  # back ends raise classes of their own, such as botocore's and httpx's
        if type(error).__module__.startswith("compatkit."):
            raise
        if isinstance(error, TypeError) and "keyword argument" in str(error):
            raise UsageError(f"{url}: its file system refuses an option: {error}.", subject=url) from error
        address = f"{url}/{path}" if path else url
        raise EnvironmentFailure(
            f"could not {_VERBS.get(operation, operation)} {address}: {_cause(error)}; {_remedy(error)}. The same "
            "command goes on where it was.",
            subject=address,
        ) from error


def _cause(error: Exception) -> str:
    text = _SECRET.sub("", str(error).strip()) or type(error).__name__
    return f"{text:.300} ({type(error).__name__})"


def _remedy(error: Exception) -> str:
    if isinstance(error, PermissionError) or "credential" in type(error).__name__.lower():
        return "no right to do so; check the credentials, whom they belong to, and what they allow"
    if isinstance(error, FileNotFoundError):
        return "the bucket or repository does not exist; make it first, or name another"
    if isinstance(error, TimeoutError | asyncio.TimeoutError | ConnectionError):
        return "check the network and the address, then try again"
    return "check the address, the credentials and the network, then try again"
