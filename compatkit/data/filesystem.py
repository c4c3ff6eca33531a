"""Files of data sets here or at a URL, listed and read by byte ranges: the door of ``fsspec`` in this room."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import attrs

from compatkit.errors import DataError, EnvironmentFailure, MissingDependency

SAMENESS = frozenset(
    {"mtime", "created", "ETag", "LastModified", "Last-Modified", "last_modified", "md5", "updated"}
)
"""What a file system may tell of a file that changes with its content."""


@attrs.frozen
class Address:
    """A file system, named by an address in it; each process makes its own.

    Attributes:
        address: A path or URL.
    """

    address: str

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        with self._talking(path) as system:
            return int(system.size(path) or 0)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        with self._talking(path) as system:
            return system.isfile(path)

    def names_in(self, folder: str) -> list[str]:
        """Return the paths of a folder's entries."""
        with self._talking(folder) as system:
            return sorted(map(str, system.ls(folder, detail=False)))

    def state(self, path: str) -> str | None:
        """Return a digest of what the file system reports about a file; None if that may miss a change."""
        with self._talking(path) as system:
            info: dict[str, Any] = system.info(path)
        if not SAMENESS & info.keys():
            return None
        return hashlib.sha256(repr((self.address, sorted(info.items(), key=str))).encode()).hexdigest()[:32]

    def whole(self, path: str) -> bytes:
        """Return the bytes of a small file."""
        with self._talking(path) as system:
            return system.cat_file(path)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a file.

        Args:
            path: Below the address.
            offset: First byte.
            size: Number of bytes.

        Raises:
            DataError: The file is gone, or shorter.
            EnvironmentFailure: It cannot be read.
        """
        with self._talking(path) as system:
            data = system.cat_file(path, start=offset, end=offset + size) if size else b""
        if len(data) != size:
            raise DataError(
                f"{path} has changed: it ends before byte {offset + size:,}. Load it again.", subject=path
            )
        return data

    @contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file to be read from its start on."""
        with self._talking(path) as system, system.open(path, "rb") as file:
            yield file

    @contextmanager
    def _talking(self, path: str) -> Iterator[Any]:
        """Give the file system; what goes wrong ends in an error that names the file."""
        try:
            yield _system(self.address)[0]
        except (DataError, EnvironmentFailure):
            raise
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DataError(f"{path} is gone, or no file; load it again.", subject=path) from error
        except Exception as error:  # of many libraries
            raise EnvironmentFailure(
                f"{path} cannot be read: {type(error).__name__}: {error}. Check rights and network.",
                subject=path,
            ) from error


def located(address: str, ending: str) -> tuple[Address, str, list[str]]:
    """Resolve an address: return the file system, the folder without a pattern, and the files.

    Args:
        address: A folder, a file, or a pattern.
        ending: Ending of the files.

    Raises:
        DataError: There are none, or no such protocol.
        EnvironmentFailure: They cannot be listed.
        MissingDependency: The library for this kind of URL is not installed.
    """
    if "::" in address:
        raise DataError(
            f"{address} joins file systems by '::'; name the one that holds the files.", subject=address
        )
    if re.search(r"://[^/]*@", address):
        raise DataError(
            "The address of a data set is remembered and shown, and this one holds a user or password before '@'. "
            "Leave them to the environment or to fsspec's configuration."
        )
    place = Address(address if "://" in address else os.path.abspath(os.path.expanduser(address)))
    with place._talking(address):
        system, path = _system(place.address)
        if any(character in path for character in "*?["):
            fixed = path[: min(path.find(character) for character in "*?[" if character in path)]
            root, matches = posixpath.dirname(fixed), system.glob(path)
        elif system.isdir(path):
            root, matches = path.rstrip("/"), system.glob(f"{path.rstrip('/')}/**/*{ending}")
        else:
            root, matches = posixpath.dirname(path), [path] if system.isfile(path) else []
    paths = sorted(str(match) for match in matches if str(match).endswith(ending))
    if not paths:
        braces = (
            " Braces are not expanded: write a pattern with * and ?, or the folder." if "{" in address else ""
        )
        raise DataError(f"There are no {ending} files at {address}.{braces}", subject=address)
    return place, root, paths


def _system(address: str) -> tuple[Any, str]:
    try:
        import fsspec

        return fsspec.url_to_fs(address)
    except ImportError as error:
        raise MissingDependency(
            f"{address} is reached through fsspec and a library for this kind of URL, one of which is not installed. "
            f"Run: pip install 'compatkit[remotes]' ({error})",
            subject=address,
        ) from error
    except ValueError as error:
        raise DataError(
            f"{address}: {error}. Expected a path, s3://bucket/folder, or another URL.", subject=address
        ) from error
