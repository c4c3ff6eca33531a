"""Files of data sets on a local disk or at a URL, listed and read by byte ranges through ``fsspec``."""

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
from compatkit.foundation.credentials import has_secret

CHANGE_KEYS = frozenset(
    {"mtime", "created", "ETag", "LastModified", "Last-Modified", "last_modified", "md5", "updated"}
)
"""Entries of a file system's ``info`` that change with the content of a file."""


@attrs.frozen
class FileSystem:
    """The ``fsspec`` file system of an address; each process opens its own.

    Attributes:
        address: A path or URL in the file system.
    """

    address: str

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        with self._opened(path) as system:
            return int(system.size(path) or 0)

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        with self._opened(path) as system:
            return system.isfile(path)

    def list_folder(self, folder: str) -> list[str]:
        """Return the paths of a folder's entries, sorted."""
        with self._opened(folder) as system:
            return sorted(map(str, system.ls(folder, detail=False)))

    def state(self, path: str) -> str | None:
        """Return a digest of what the file system reports about a file; None if that may miss a change."""
        with self._opened(path) as system:
            info: dict[str, Any] = system.info(path)
        if not CHANGE_KEYS & info.keys():
            return None
        return hashlib.sha256(repr((self.address, sorted(info.items(), key=str))).encode()).hexdigest()[:32]

    def read_all(self, path: str) -> bytes:
        """Return all bytes of a small file."""
        with self._opened(path) as system:
            return system.cat_file(path)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return a range of bytes of a file.

        Args:
            path: Path in the file system.
            offset: First byte.
            size: Number of bytes.

        Raises:
            DataError: The file is missing or shorter.
            EnvironmentFailure: It cannot be read.
        """
        with self._opened(path) as system:
            data = system.cat_file(path, start=offset, end=offset + size) if size else b""
        if len(data) != size:
            raise DataError(
                f"{path} has changed: it ends before byte {offset + size:,}. Load it again.", subject=path
            )
        return data

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for sequential reading."""
        with self._opened(path) as system, system.open(path, "rb") as file:
            yield file

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """Yield the file system; errors inside become errors that name the file."""
        try:
            yield _open(self.address)[0]
        except (DataError, EnvironmentFailure):
            raise
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DataError(f"{path} is missing or not a file. Load the data again.", subject=path) from error
        except Exception as error:  # each file system raises errors of its own library
            raise EnvironmentFailure(
                f"{path} cannot be read: {type(error).__name__}: {error}. Check permissions and network.",
                subject=path,
            ) from error


def is_pattern(address: str) -> bool:
    """Return whether an address contains a wildcard."""
    return any(character in address for character in "*?[")


def find_files(address: str, extension: str) -> tuple[FileSystem, str, list[str]]:
    """Find files with an extension; return the file system, the folder that contains them, and their paths.

    Args:
        address: A folder, a file, or a pattern.
        extension: Extension of the files.

    Raises:
        DataError: No file matches, or the protocol is unknown.
        EnvironmentFailure: The files cannot be listed.
        MissingDependency: The library for this kind of URL is not installed.
    """
    if "::" in address:
        raise DataError(f"{address}: chained URLs ('::') are not supported.", subject=address)
    if re.search(r"://[^/]*@", address) or has_secret(address):
        raise DataError(
            "The address of a data set is stored and shown, so it must not contain credentials. Set them in the "
            "environment or in fsspec's configuration."
        )
    files = FileSystem(address if "://" in address else os.path.abspath(os.path.expanduser(address)))
    with files._opened(address):
        system, path = _open(files.address)
        root = posixpath.dirname(re.split(r"[*?[]", path, maxsplit=1)[0])
        if is_pattern(path):
            matches = system.glob(path)
        elif system.isdir(path):
            root = path.rstrip("/")
            matches = system.glob(f"{root}/**/*{extension}")
        else:
            matches = [path] if system.isfile(path) else []
    paths = sorted(str(match) for match in matches if str(match).endswith(extension))
    if not paths:
        hint = " Braces are not expanded; use * and ?." if "{" in address else ""
        raise DataError(f"There are no {extension} files at {address}.{hint}", subject=address)
    return files, root, paths


def _open(address: str) -> tuple[Any, str]:
    try:
        import fsspec

        return fsspec.url_to_fs(address)
    except ImportError as error:
        raise MissingDependency(
            f"{address} needs fsspec and the library for its protocol. Run: pip install 'compatkit[remotes]' ({error})",
            subject=address,
        ) from error
    except ValueError as error:
        raise DataError(
            f"{address}: {error}. Expected a path or a URL such as s3://bucket/folder.", subject=address
        ) from error
