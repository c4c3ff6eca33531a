"""Remotes that a web server offers to read: ``https://HOST/FOLDER``.

HTTP has no listing of folders. The server must show one: nginx (``autoindex on``), Apache (``Options +Indexes``), Caddy
(``browse``) and ``python -m http.server`` do. A page that is no listing of exactly the folder that was asked for is an
error, never an empty folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin, urlsplit

import attrs

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure
from compatkit.hooks import Register
from compatkit.registry.remotes.objectstore import ObjectStore

from ._folders import Entry, files_below
from ._web import CONNECTIONS, MISSING, OK, WebFolder, whole

compatkit_api = 1
REGISTRY = "refs"
"""Folder that every registry with components has."""
_ACCEPT = {"Accept": "application/json, text/html;q=0.9"}
_HEADING = re.compile(r"\s*(?:Index of|Directory listing for)\s", re.IGNORECASE)


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``http`` and ``https``."""
    register("http", open_remote)
    register("https", open_remote)


def open_remote(
    address: str, *, headers: Mapping[str, str] | None = None, verify: bool | str = True
) -> HttpStore:
    """Return the files in a folder of a web server.

    Args:
        address: ``https://[USER[:PASSWORD]@]HOST[:PORT]/FOLDER``; without a user, ``~/.netrc`` is read.
        headers: Headers of each request, such as ``{"Authorization": "Bearer ..."}``.
        verify: Whether certificates are checked, or a file with certificate authorities.

    Raises:
        UsageError: The address or the headers are malformed.
        MissingDependency: requests is not installed.
    """
    return HttpStore(WebFolder.open(address, address.partition("://")[0], headers, verify))


@attrs.frozen(eq=False)
class HttpStore(ObjectStore):
    """The files in a folder of a web server, which are only read.

    Attributes:
        web: The folder.
    """

    web: WebFolder

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path."""
        listed = files_below(folder, self._entries, CONNECTIONS)
        if not listed and folder == REGISTRY:
            raise EnvironmentFailure(
                f"{self.web.address(folder)}/ lists nothing: the registry is empty, or the server lists no folders. "
                "Let it list them (nginx: autoindex on), or copy the registry to another kind of remote.",
                subject=folder,
            )
        return self._with_sizes(listed)

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        return self.web.size(path)

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file; None if it is missing."""
        return self.web.read(path, start, count)

    def put(self, path: str, data: bytes) -> NoReturn:
        """Refuse to write.

        Raises:
            EnvironmentFailure: Always.
        """
        raise EnvironmentFailure(
            f"{self.web.url} can only be read: HTTP has no way to write files. Push to another address of the "
            "registry, such as its folder, sftp:// or webdavs://.",
            subject=self.web.url,
        )

    def create(self, path: str, data: bytes) -> NoReturn:
        """Refuse to write.

        Raises:
            EnvironmentFailure: Always.
        """
        self.put(path, data)

    def remove(self, path: str) -> NoReturn:
        """Refuse to write.

        Raises:
            EnvironmentFailure: Always.
        """
        self.put(path, b"")

    def close(self) -> None:
        """End the connections."""
        self.web.close()

    def _with_sizes(self, listed: dict[str, int | None]) -> dict[str, int]:
        """Return sizes by path; those that a listing does not tell are asked for one by one."""
        unknown = [path for path, size in listed.items() if size is None]
        sizes = {path: size for path, size in listed.items() if size is not None}
        for path, size in self.web.in_parallel(self.size, unknown):
            if size is None:
                raise EnvironmentFailure(
                    f"{self.web.address(path)} is listed, and the server does not have it.", subject=path
                )
            sizes[path] = size
        return sizes

    def _entries(self, folder: str) -> dict[str, Entry]:
        """Return the entries of a folder; none if it is missing."""
        address = f"{self.web.address(folder)}/"
        with self.web.send("GET", f"{folder}/", {OK, *MISSING}, headers=_ACCEPT) as response:
            if response.status_code in MISSING:
                return {}
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            text = whole(response, address).decode("utf-8", "replace")
            url = response.url
        if kind == "application/json":
            return _json_entries(text, address)
        if kind in ("text/html", "application/xhtml+xml"):
            return _page_entries(text, url, address)
        raise _unreadable(address, f"content of type {kind or 'unknown'!r:.60}")


class _Page(HTMLParser):
    """The heading and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.links: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, or the begin of a heading."""
        if tag in ("title", "h1"):
            self._in_heading = True
            self.headings.append("")
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a heading."""
        if tag in ("title", "h1"):
            self._in_heading = False

    def handle_data(self, data: str) -> None:
        """Note the text of a heading."""
        if self._in_heading:
            self.headings[-1] += data


def _page_entries(text: str, url: str, address: str) -> dict[str, Entry]:
    """Return the entries of a page that a server shows for a folder.

    Args:
        text: The page.
        url: Address of the page, after redirections.
        address: Address of the folder, for messages.

    Raises:
        EnvironmentFailure: The page is not a listing.
    """
    page = _Page()
    page.feed(text)
    if not any(_HEADING.match(heading) for heading in page.headings):
        raise _unreadable(address, f"the page {' '.join(page.headings).strip()!r:.100}")
    here = urlsplit(url)
    entries: dict[str, Entry] = {}
    for link in page.links:
        target = urlsplit(urljoin(url, link))
        is_child = (target.scheme, target.netloc) == (here.scheme, here.netloc) and target.path.startswith(
            here.path
        )
        name = target.path.removeprefix(here.path)
        if not is_child or target.query or target.fragment or not name.strip("/") or "/" in name[:-1]:
            continue  # the parent folder, and links that sort the listing
        entries[unquote(name.rstrip("/"), errors="strict")] = Entry(name.endswith("/"))
    return entries


def _json_entries(text: str, address: str) -> dict[str, Entry]:
    """Return the entries of a listing in JSON, as nginx (``autoindex_format json``) and Caddy write it.

    Raises:
        EnvironmentFailure: It is something else.
    """
    entries: dict[str, Entry] = {}
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise _unreadable(address, f"{text!r:.100}")
    for item in listed:
        entry = _json_entry(item)
        if entry is None:
            raise _unreadable(address, f"the entry {item!r:.100}")
        entries[item["name"].rstrip("/")] = entry
    return entries


def _json_entry(item: Any) -> Entry | None:
    """Return an entry of a listing in JSON; None if it is malformed."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return None
    kind, size = item.get("type"), item.get("size")
    if item.get("is_dir") is True or kind == "directory":
        return Entry(True)
    is_file = item.get("is_dir") is False or kind == "file"
    return Entry(False, size) if is_file and type(size) is int and size >= 0 else None


def _unreadable(address: str, what: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{address}: expected the listing of a folder, by nginx, Apache, Caddy or python -m http.server, got {what}.",
        subject=address,
    )
