"""Files of a remote, accessed through a file system of fsspec."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compatkit.errors import MissingDependency
from compatkit.registry.remotes.failures import chain, http_status
from compatkit.registry.remotes.objectstore import ObjectStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Result = TypeVar("Result")
LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub"}
_BEYOND = {errno.EINVAL, errno.ERANGE}
"""Errors of back ends for a range that begins after the end, as in an empty file."""
ATTEMPTS = 6
"""Number of conditional writes of one file while the server says that others write it too."""
PAUSE = 0.1
"""Seconds before the second of them; each further pause is twice as long."""
_EXISTS, _CONFLICT = 412, 409
_UNSUPPORTED = {400, 405, 501}
"""HTTP statuses with which servers refuse a condition that they do not know."""


def filesystem_class(protocol: str) -> Any:
    """Return fsspec's class for a protocol.

    Raises:
        MissingDependency: The required library is not installed.
    """
    try:
        import fsspec

        return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        package = LIBRARIES.get(protocol, "fsspec")
        raise MissingDependency(
            f"{protocol}:// needs fsspec and {package}, one of which is not installed. Run: pip install "
            f"'compatkit[remotes]' ({error})",
            subject=package,
        ) from error


def open_system(address: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a file system for an address, and the path of the address in it.

    Args:
        address: Address with a protocol that fsspec knows.
        options: Options of the file system.

    Raises:
        MissingDependency: The required library is not installed.
    """
    system = filesystem_class(address.partition("://")[0])
    settings = {**system._get_kwargs_from_urls(address), "use_listings_cache": False, **options}
    root = str(system._strip_protocol(address)).rstrip("/")
    return system(skip_instance_cache=True, **settings), root


@attrs.frozen(eq=False)
class FileSystemStore(ObjectStore):
    """The files in one folder of an object store, in which a file appears with its complete content or not at all.

    Attributes:
        system: The fsspec file system.
        root: Path of the folder, without a slash at the end.
    """

    system: AbstractFileSystem
    root: str

    def path(self, relative: str) -> str:
        """Return a path in the file system."""
        return f"{self.root}/{relative}" if self.root else relative

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path."""
        top = self.path(folder)
        self.system.invalidate_cache()
        try:
            listing: Any = self.system.find(top, detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            return unless_bucket_missing(error, {})
        prefix, sizes = f"{top.strip('/')}/", dict[str, int]()
        for name, info in listing.items():
            path = str(name).lstrip("/")
            if path.startswith(prefix) and info.get("type") == "file":
                sizes[f"{folder}/{path.removeprefix(prefix)}"] = _size(info)
        return sizes

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        try:
            info: Any = self.system.info(self.path(path))
        except FileNotFoundError as error:
            return unless_bucket_missing(error, None)
        return _size(info) if info.get("type") == "file" else None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file; None if it is missing."""
        try:
            data: Any = self.system.cat_file(self.path(path), start=start, end=start + count)
        except FileNotFoundError as error:
            return unless_bucket_missing(error, None)
        except OSError as error:
            if error.errno in _BEYOND and (self.size(path) or 0) <= start:
                return b""
            raise
        return bytes(data)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it."""
        self.system.pipe_file(self.path(path), data)

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Upload a local file, in parts if the back end supports that."""
        from fsspec.callbacks import Callback

        reported = 0

        def count(size: int | None, value: int, **others: Any) -> None:
            nonlocal reported
            more, reported = value - reported, value
            progress(more)

        callback: Any = Callback(hooks={"arrived": count})
        self.system.put_file(str(file), self.path(path), callback=callback)

    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file by a conditional write; None if the back end has none."""
        pauses = [PAUSE * 2**attempt for attempt in range(ATTEMPTS - 1)]
        while True:
            try:
                self.system.pipe_file(self.path(path), data, mode="create")
                return True
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError):
                return None
            except Exception as error:
                status = http_status(error)
                if status == _EXISTS:  # Ceph does not name the condition, by which s3fs recognizes it
                    return False
                if status in _UNSUPPORTED or getattr(error, "errno", None) == errno.ENOSYS:
                    return None
                if status != _CONFLICT or not pauses:
                    raise
            if self.size(path) is not None:  # of two simultaneous writers, none may have won yet
                return False
            time.sleep(pauses.pop(0))

    def remove(self, path: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError):
            self.system.rm_file(self.path(path))

    def neighbors(self) -> list[str]:
        """Return the names in the parent folder."""
        listing = self.system.ls(self.root.rpartition("/")[0], detail=False)
        return [str(path).rstrip("/").rpartition("/")[2] for path in listing]


def unless_bucket_missing(error: OSError, value: Result) -> Result:
    """Return a value for a file that is missing; raise the error if its bucket is.

    Args:
        error: Error about a missing file.
        value: Result where only the file is missing.
    """
    if any(type(cause).__name__ == "NoSuchBucket" for cause in chain(error)):
        raise error
    return value


def _size(info: Any) -> int:
    return int(info.get("size") or 0)
