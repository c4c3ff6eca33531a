"""Files of a remote through fsspec: one method for each call to the back end, with this library's errors.

``step`` is called before each call and does nothing; tests replace it to fail at any of them. The back end is asked for
ranges and never for whole files of unknown size.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Given = TypeVar("Given")
Found = TypeVar("Found")
WORKERS = 16
"""Small requests at once."""
FEW = 64
"""Up to so many folders or files are asked for one by one; beyond, everything is listed."""
_SECRET = re.compile(r"(?<=://)[^/@\s]*@")
_BEYOND = {errno.EINVAL, errno.ERANGE}
"""Errors of back ends for a range that begins behind the end, as in an empty file."""


def step(operation: str, path: str) -> None:
    """Do nothing; called before each call to the back end with its name and path.

    Args:
        operation: Such as ``"put"``.
        path: Relative to the remote.
    """


@attrs.frozen(eq=False)
class Files:
    """The files below one place.

    Attributes:
        system: The fsspec file system.
        root: Path of the place in it, without a slash at the end.
        url: What messages call the place, without secrets.
        atomic: Whether a file appears with its whole content or not at all, as in object stores; else files are
            written under another name first.
    """

    system: AbstractFileSystem
    root: str
    url: str
    atomic: bool

    def path(self, relative: str) -> str:
        """Return a path as the file system takes it."""
        return f"{self.root}/{relative}" if self.root else relative

    def listed(self, folder: str) -> dict[str, int]:
        """Return the size of every file below a folder by its path, relative to the place; none if it is not there."""
        above = self.path(folder)
        with self.talking("list", folder):
            step("list", folder)
            self.system.invalidate_cache()
            try:
                found: Any = self.system.find(above, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        sizes: dict[str, int] = {}
        for name, info in found.items():
            inside = self._relative(str(name), above)
            if inside and info.get("type") == "file":
                sizes[f"{folder}/{inside}"] = _size(info)
        return sizes

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        with self.talking("look at", path):
            step("size", path)
            try:
                info: Any = self.system.info(self.path(path))
            except FileNotFoundError:
                return None
        return _size(info) if info.get("type") == "file" else None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return at most so many bytes of a file from a place on; None if there is no such file.

        Args:
            path: Relative to the remote.
            start: First byte.
            count: Bytes at most.
        """
        with self.talking("read", path):
            step("read", path)
            try:
                data: Any = self.system.cat_file(self.path(path), start=start, end=start + count)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno in _BEYOND and (self.size(path) or 0) <= start:
                    return b""
                raise
        return bytes(data)[:count]  # a server may give more than it was asked for

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or put it in the place of another.

        Args:
            path: Relative to the remote.
            data: The content.
        """
        with self.talking("write", path), self._drafted(path) as draft:
            step("put", path)
            self.system.pipe_file(draft, data)

    def upload(self, path: str, local: Path, arrived: Callable[[int], None]) -> None:
        """Write a file from one of this machine, in parts where the back end takes parts.

        Args:
            path: Relative to the remote.
            local: File of this machine.
            arrived: Called with the size of each part.
        """
        from fsspec.callbacks import Callback

        seen = 0

        def count(size: int | None, value: int, **others: Any) -> None:
            nonlocal seen
            more, seen = value - seen, value
            arrived(more)

        counting: Any = Callback(hooks={"arrived": count})
        with self.talking("write", path), self._drafted(path) as draft:
            step("upload", path)
            self.system.put_file(str(local), draft, callback=counting)

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that must not exist; False if the name is taken.

        Where the back end has a conditional write, as S3 has, exactly one of several writers wins. Elsewhere it is
        asked first and the file is read back after: of two that write in between, both may believe that they won, and
        the last one's bytes stay.

        Args:
            path: Relative to the remote.
            data: The content.
        """
        with self.talking("create", path):
            step("create", path)
            if self.atomic and (made := self._conditionally(path, data)) is not None:
                return made and self.read(path, 0, len(data) + 1) == data
            if self.size(path) is not None:
                return False
            self.put(path, data)
        return self.read(path, 0, len(data) + 1) == data

    def create_all(self, notes: Sequence[tuple[str, bytes]]) -> set[str]:
        """Create many small files, each as ``create`` does; return the paths that were taken."""
        made = self.at_once(lambda note: self.create(*note), notes)
        return {path for (path, _), fresh in made if not fresh}

    def settle(self) -> None:
        """Make sure that what was put and uploaded is there; a back end that gathers changes makes them now."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with self.talking("remove", path):
            step("remove", path)
            with suppress(FileNotFoundError):
                self.system.rm_file(self.path(path))

    def at_once(
        self, work: Callable[[Given], Found], given: Sequence[Given]
    ) -> Iterator[tuple[Given, Found]]:
        """Yield what ``work`` makes of each, many at once, in order; the first error ends it.

        Args:
            work: Called in threads.
            given: Its arguments, one a call.
        """
        if not given:
            return
        with ThreadPoolExecutor(min(WORKERS, len(given))) as pool:
            running = [pool.submit(work, one) for one in given]
            try:
                for one, result in zip(given, running, strict=True):
                    yield one, result.result()
            finally:
                for result in running:
                    result.cancel()

    def _conditionally(self, path: str, data: bytes) -> bool | None:
        """Write a file that must not exist; False if it does, None if the back end has no conditional write."""
        try:
            self.system.pipe_file(self.path(path), data, mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, TypeError):
            return None
        except OSError as error:
            if error.errno == errno.ENOSYS:  # 501: a server of this kind without conditional writes
                return None
            raise
        return True

    @contextmanager
    def _drafted(self, path: str) -> Iterator[str]:
        """Give a path to write to; the file gets its own name when it is whole."""
        final = self.path(path)
        if self.atomic:
            yield final
            return
        draft = self.path(f"tmp/{uuid4().hex}")
        for one in (draft, final):
            self.system.makedirs(one.rpartition("/")[0], exist_ok=True)
        try:
            yield draft
            step("rename", path)
            self.system.mv(draft, final)
        except BaseException:
            with suppress(OSError):
                self.system.rm_file(draft)
            raise

    def _relative(self, name: str, above: str) -> str:
        """Return a listed name below a folder; empty if it is not there."""
        prefix = f"{above.strip('/')}/"
        bare = name.lstrip("/")
        return bare.removeprefix(prefix) if bare.startswith(prefix) else ""

    @contextmanager
    def talking(self, action: str, path: str) -> Iterator[None]:
        """Turn whatever a back end raises into an EnvironmentFailure that names action, place, cause and remedy.

        Args:
            action: What is tried, for the message.
            path: Relative to the remote.

        Raises:
            EnvironmentFailure: In place of any error that is not this library's.
        """
        try:
            yield
        except (CompatkitError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except Exception as error:  # back ends raise classes of their own, such as botocore's and httpx's
            if type(error).__module__.startswith("compatkit."):
                raise
            place = f"{self.url}/{path}" if path else self.url
            if isinstance(error, TypeError) and "keyword argument" in str(error):
                raise UsageError(
                    f"{self.url}: its file system refuses an option: {error}.", subject=self.url
                ) from error
            raise EnvironmentFailure(
                f"could not {action} {place}: {_cause(error)}; {_remedy(error)}. The same command goes on where it "
                "was.",
                subject=place,
            ) from error


def _size(info: Any) -> int:
    return int(info.get("size") or 0)


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
