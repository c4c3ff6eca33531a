"""Requests to a web server, each answered in a size that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import attrs

from compatkit.errors import EnvironmentFailure, MissingDependency, UsageError

from ._urls import Location

if TYPE_CHECKING:
    from requests import Response, Session

Item = TypeVar("Item")
Result = TypeVar("Result")
CONNECTIONS = 16
"""Number of connections that are kept, and of requests at a time."""
PATIENCE = (20.0, 60.0)
"""Seconds to wait for a connection, and for an answer."""
ATTEMPTS = 4
"""Number of attempts to connect, or to be answered by a busy server."""
REPEATED = frozenset({"GET", "HEAD", "PROPFIND", "PUT", "MKCOL", "DELETE"})
"""Methods of requests that are sent again, as a second one changes nothing."""
READING = frozenset({"GET", "HEAD", "PROPFIND"})
"""Methods that follow a redirection; writing to the page of a login would look like success."""
BUSY = frozenset({429, 503})
LONGEST_LISTING = 2**26
"""Maximum size of the listing of a folder in bytes."""
OK, CREATED, NO_CONTENT, PARTIAL, MULTI = 200, 201, 204, 206, 207
MISSING = {404, 410}
_BEYOND = 416
_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
_PLAIN = {"Accept-Encoding": "identity"}
"""A file as it is: a compressed one has other ranges and another size."""


@attrs.frozen(eq=False)
class WebFolder:
    """A folder of a web server.

    Attributes:
        url: Address of the folder, without user, password and slash at the end.
        session: Connections of requests.
        verify: Whether certificates are checked, or a file with certificate authorities.
    """

    url: str
    session: Session
    verify: bool | str

    @classmethod
    def open(
        cls, address: str, scheme: str, headers: Mapping[str, str] | None, verify: bool | str
    ) -> WebFolder:
        """Return the folder at an address; nothing is requested yet.

        Args:
            address: ``scheme://[USER[:PASSWORD]@]HOST[:PORT]/FOLDER``.
            scheme: ``http`` or ``https``.
            headers: Headers of each request, such as ``{"Authorization": "Bearer ..."}``.
            verify: Whether certificates are checked, or a file with certificate authorities.

        Raises:
            UsageError: The address or the headers are malformed.
            MissingDependency: requests is not installed.
        """
        try:
            import requests
            from requests.adapters import HTTPAdapter
            from urllib3 import Retry
        except ImportError as error:
            raise MissingDependency(
                f"{scheme}:// needs requests, which is not installed. Run: pip install 'compatkit[remotes]' ({error})",
                subject="requests",
            ) from error
        location = Location.parse(address)
        if not isinstance(headers, Mapping | None):
            raise UsageError(f"Expected headers as a JSON object, got {type(headers).__name__}.")
        session = requests.Session()
        retries = Retry(
            total=ATTEMPTS - 1,
            read=1,
            backoff_factor=0.2,
            status_forcelist=BUSY,
            allowed_methods=REPEATED,
            raise_on_status=False,
        )
        adapter = HTTPAdapter(pool_maxsize=CONNECTIONS, pool_block=True, max_retries=retries)
        session.mount(f"{scheme}://", adapter)
        session.headers.update(headers or {})
        if location.user is not None:
            session.auth = (location.user, location.password or "")
        path = quote(location.path.rstrip("/"), safe="/@")
        return cls(f"{scheme}://{location.netloc}{path}", session, verify)

    def send(self, method: str, path: str, expected: Iterable[int] = (OK,), **settings: Any) -> Response:
        """Send a request, and return the answer; its content is not read yet.

        Args:
            method: HTTP method.
            path: Path in the folder.
            expected: Statuses that are no error.
            **settings: Further arguments of ``requests.Session.request``.

        Raises:
            requests.RequestException: No answer, or one with another status.
        """
        from requests import HTTPError

        response = self.session.request(
            method,
            self.address(path),
            timeout=PATIENCE,
            stream=True,
            verify=self.verify,
            allow_redirects=method in READING,
            **settings,
        )
        if response.status_code not in expected:
            response.close()
            raise HTTPError(f"{response.status_code} {response.reason}", response=response)
        return response

    def address(self, path: str) -> str:
        """Return the address of a path in the folder."""
        return f"{self.url}/{quote(path, safe='/@')}"

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        with self.send("HEAD", path, {OK, *MISSING}, headers=_PLAIN) as response:
            if response.status_code in MISSING or response.url.endswith("/"):  # a folder
                return None
            length = response.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,18}", length):
            raise EnvironmentFailure(
                f"{self.address(path)}: the server does not say how long the file is.", subject=path
            )
        return int(length)

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file; None if it is missing."""
        if count <= 0:
            return b""
        headers = {**_PLAIN, "Range": f"bytes={start}-{start + count - 1}"}
        with self.send("GET", path, {OK, PARTIAL, _BEYOND, *MISSING}, headers=headers) as response:
            if response.status_code in MISSING or response.url.endswith("/"):
                return None
            if response.status_code == _BEYOND:
                return b""
            if response.status_code == PARTIAL:
                match = _RANGE.match(response.headers.get("Content-Range", ""))
                begins = int(match[1]) if match else -1
            else:
                begins = 0  # the server sends whole files only
            if begins != start:
                raise EnvironmentFailure(
                    f"{self.address(path)}: expected the bytes from {start} on, got those from {begins}. The server "
                    "cannot send parts of files, which compatkit needs for files above 8 MiB; use another one.",
                    subject=path,
                )
            return content(response, count)

    def in_parallel(
        self, work: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with the result of ``work``, in order."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            yield from zip(items, pool.map(work, items), strict=True)

    def close(self) -> None:
        """End the connections."""
        self.session.close()


def content(response: Response, limit: int) -> bytes:
    """Return at most ``limit`` bytes of an answer.

    Raises:
        requests.ConnectionError: The answer was cut off.
    """
    pieces: list[bytes] = []
    left = limit
    for piece in response.iter_content(2**16):
        pieces.append(piece[:left])
        left -= len(pieces[-1])
        if left <= 0:
            break
    return b"".join(pieces)


def whole(response: Response, what: str) -> bytes:
    """Return the listing of a folder.

    Args:
        response: The answer.
        what: Address of the folder, for messages.

    Raises:
        EnvironmentFailure: It is too long.
    """
    data = content(response, LONGEST_LISTING + 1)
    if len(data) > LONGEST_LISTING:
        raise EnvironmentFailure(
            f"{what}: expected a listing of at most {LONGEST_LISTING:,} bytes.", subject=what
        )
    return data
