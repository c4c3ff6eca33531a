"""Remotes over WebDAV: ``webdavs://HOST/FOLDER``, or ``webdav://`` without TLS.

A file is written beside its place and moved there. The protocol does not promise that exactly one of several
simultaneous moves to one place succeeds.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import attrs

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure
from compatkit.hooks import Register
from compatkit.registry.remotes.objectstore import ObjectStore

from ._folders import Entry, files_below
from ._web import CONNECTIONS, CREATED, MISSING, MULTI, NO_CONTENT, OK, WebFolder, whole

compatkit_api = 1
SCHEMES = {"webdav": "http", "webdavs": "https"}
PIECE = 2**20
"""Number of bytes of a large file sent at a time."""
_DONE = {OK, CREATED, NO_CONTENT}
_FORBIDDEN, _NOT_ALLOWED, _NO_PARENT, _EXISTS, _FAULT = 403, 405, 409, 412, 500
_NO_FOLDER = {_NO_PARENT, _FAULT, *MISSING}
"""Statuses for a file whose folder is missing; 500 is Apache's for a move."""
_DAV = "{DAV:}"
_PROPERTIES = (
    b'<?xml version="1.0"?><propfind xmlns="DAV:"><prop><resourcetype/><getcontentlength/></prop></propfind>'
)


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``webdav`` and ``webdavs``."""
    for scheme in SCHEMES:
        register(scheme, open_remote)


def open_remote(
    address: str, *, headers: Mapping[str, str] | None = None, verify: bool | str = True
) -> WebDavStore:
    """Return the files in a folder of a WebDAV server.

    Args:
        address: ``webdavs://[USER[:PASSWORD]@]HOST[:PORT]/FOLDER``; without a user, ``~/.netrc`` is read.
        headers: Headers of each request, such as ``{"Authorization": "Bearer ..."}``.
        verify: Whether certificates are checked, or a file with certificate authorities.

    Raises:
        UsageError: The address or the headers are malformed.
        MissingDependency: requests is not installed.
    """
    return WebDavStore(WebFolder.open(address, SCHEMES[address.partition("://")[0]], headers, verify))


@attrs.frozen(eq=False)
class WebDavStore(ObjectStore):
    """The files in a folder of a WebDAV server.

    Attributes:
        web: The folder.
    """

    exclusive = False
    web: WebFolder

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path."""
        listed = files_below(folder, self._entries, CONNECTIONS)
        return {path: size or 0 for path, size in listed.items()}

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        entry = next(iter(self._properties(path, "0").values()), None)
        return None if entry is None else entry.size

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file; None if it is missing."""
        return self.web.read(path, start, count)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it."""
        with self._draft(data) as draft:
            self._move(draft, path, overwrite=True)

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Upload a local file."""
        with file.open("rb") as source, self._draft(_Reported(source, progress)) as draft:
            self._move(draft, path, overwrite=True)

    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file by a move that fails where the name is taken."""
        with self._draft(data) as draft:
            created = self._move(draft, path, overwrite=False)
            if not created:
                self._delete(draft)
        return created

    def remove(self, path: str) -> None:
        """Remove a file, if there is one."""
        self._delete(path)

    def close(self) -> None:
        """End the connections."""
        self.web.close()

    def _entries(self, folder: str) -> dict[str, Entry]:
        """Return the entries of a folder; none if it is missing."""
        address = f"{self.web.address(folder)}/"
        listed = self._properties(f"{folder}/", "1")
        top = unquote(urlsplit(address).path)
        entries: dict[str, Entry] = {}
        for path, entry in listed.items():
            if path.rstrip("/") != top.rstrip("/"):
                if not path.startswith(top):
                    raise EnvironmentFailure(
                        f"{address}: the server lists {path!r:.100} there.", subject=folder
                    )
                entries[path.removeprefix(top).rstrip("/")] = entry
        return entries

    def _properties(self, path: str, depth: str) -> dict[str, Entry]:
        """Return what is at a path, and for the depth 1 below it, by path on the server; nothing if it is missing."""
        headers, address = {"Depth": depth, "Content-Type": "application/xml"}, self.web.address(path)
        settings = {"headers": headers, "data": _PROPERTIES}
        with self.web.send("PROPFIND", path, {MULTI, *MISSING}, **settings) as response:
            if response.status_code in MISSING:
                return {}
            data = whole(response, address)
        try:
            return dict(_read_properties(ElementTree.fromstring(data)))
        except (ElementTree.ParseError, ValueError) as error:
            raise EnvironmentFailure(
                f"{address}: malformed answer to PROPFIND: {error}.", subject=path
            ) from None

    @contextmanager
    def _draft(self, data: Any) -> Iterator[str]:
        """Write a file in ``tmp`` and yield its path; an error removes it."""
        draft = f"tmp/{uuid4().hex}"
        with self.web.send("PUT", draft, {*_DONE, *_NO_FOLDER}, data=data) as response:
            written = response.status_code in _DONE
        if not written:
            self._make_parents(draft)
            if isinstance(data, _Reported):
                data.seek(0)
            self.web.send("PUT", draft, _DONE, data=data).close()
        try:
            yield draft
        except BaseException:
            with suppress(OSError):
                self._delete(draft)
            raise

    def _move(self, draft: str, path: str, *, overwrite: bool) -> bool:
        """Move a draft to its place, whose folder is made where it is missing; return False if it is taken."""
        headers = {"Destination": self.web.address(path), "Overwrite": "T" if overwrite else "F"}
        expected = {*_DONE, *_NO_FOLDER, _EXISTS}
        with self.web.send("MOVE", draft, expected, headers=headers) as response:
            status = response.status_code
        if status in _NO_FOLDER:
            self._make_parents(path)
            with self.web.send("MOVE", draft, {*_DONE, _EXISTS}, headers=headers) as response:
                status = response.status_code
        return status != _EXISTS

    def _make_parents(self, path: str) -> None:
        """Make the folders above a file, and the remote's own; those that exist are not allowed to be made again."""
        parts = path.split("/")[:-1]
        folders = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        if self._make(folders[0]) == _NO_PARENT:
            self._make_root()
            self._make(folders[0])
        for folder in folders[1:]:
            self._make(folder)

    def _make(self, folder: str) -> int:
        """Make a folder of the remote; return the status."""
        answers = {*_DONE, _NOT_ALLOWED, _NO_PARENT}
        with self.web.send("MKCOL", f"{folder}/", {*answers, _FORBIDDEN, _FAULT}) as response:
            status = response.status_code
        if (
            status not in answers
        ):  # so Apache and WsgiDAV answer where another request makes it at the same time
            with self.web.send("MKCOL", f"{folder}/", answers) as response:
                status = response.status_code
        return status

    def _make_root(self) -> None:
        """Make the folder of the remote, and those above it that the user may make."""
        start = urlsplit(self.web.url)
        parts = start.path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            above = attrs.evolve(self.web, url=f"{start.scheme}://{start.netloc}/{'/'.join(parts[:depth])}")
            with suppress(OSError):
                above.send("MKCOL", "", {*_DONE, _NOT_ALLOWED}).close()

    def _delete(self, path: str) -> None:
        self.web.send("DELETE", path, {*_DONE, *MISSING}).close()


class _Reported:
    """A file whose reading is reported; requests sends it in parts, and from the start where it tries again."""

    def __init__(self, file: Any, progress: Callable[[int], None]) -> None:
        self._file, self._progress, self._size = file, progress, file.seek(0, 2)
        file.seek(0)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(PIECE), b"")

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data: bytes = self._file.read(size)
        self._progress(len(data))
        return data

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seek(self, position: int) -> None:
        """Go back to a position."""
        self._progress(position - self._file.tell())
        self._file.seek(position)


def _read_properties(answer: ElementTree.Element) -> Iterator[tuple[str, Entry]]:
    """Yield paths and entries of an answer to PROPFIND.

    Raises:
        ValueError: The answer is malformed.
    """
    if answer.tag != f"{_DAV}multistatus":
        raise ValueError(f"expected multistatus, got {answer.tag!r:.60}")
    for item in answer.iter(f"{_DAV}response"):
        path = unquote(urlsplit(item.findtext(f"{_DAV}href", "").strip()).path, errors="strict")
        if item.find(f".//{_DAV}resourcetype/{_DAV}collection") is not None:
            yield path, Entry(True)
            continue
        length = item.findtext(f".//{_DAV}getcontentlength", "").strip()
        if not re.fullmatch(r"\d{1,18}", length):
            raise ValueError(f"expected the size of {path!r:.100}, got {length!r:.30}")
        yield path, Entry(False, int(length))
