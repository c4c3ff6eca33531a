"""Serve the catalogue of a registry on loopback, read-only.

A page of any other site that is open in the same browser can send requests here. So names other than those of this
machine are refused (DNS rebinding), data is refused to pages of other origins, and no answer can be framed or embedded.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Timer
from typing import Any, cast

from compatkit.components.catalogue.address import HOST, PORT
from compatkit.components.catalogue.live import LiveCatalogue
from compatkit.components.catalogue.texts import line
from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.foundation.cache import mirrored
from compatkit.registry.store import Store
from compatkit.reports.catalogue.pages import PAGES, SERVED_POLICY

MAX_CONNECTIONS, SECONDS, REQUEST_SECONDS, MAX_PATH = 64, 30, 10, 512
"""Limits: open connections, time to send an answer, time for a whole request to arrive, and length of its path."""
METHODS = ("GET", "HEAD")
_HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class CatalogueServer(ThreadingHTTPServer):
    """Server of one catalogue.

    Attributes:
        catalogue: The catalogue.
        public: Whether it listens to other machines.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, store: Store, *, host: str = HOST, port: int = PORT, public: bool = False, title: str = ""
    ) -> None:
        """Bind the port; ``serve_forever`` answers.

        Args:
            store: The registry.
            host: Address to listen on.
            port: Port; 0 for a free one.
            public: Whether ``host`` may be reached from other machines.
            title: Title; empty for the name of the registry's folder.

        Raises:
            UsageError: ``host`` is no address of this machine, or not loopback and ``public`` is False; or the registry
                is the copy of a remote.
            EnvironmentFailure: The port is in use or not allowed.
        """
        if (address := mirrored(store.root)) is not None:
            raise UsageError(
                f"{address} is a remote, of which only a copy could be served, and new versions would not show. Serve "
                "a clone, or write its catalogue with `compatkit site`.",
                subject=address,
            )
        family, where = _address(host, public)
        self.address_family = family
        self.catalogue, self.public = LiveCatalogue(store, title), public
        self._free = BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((where, port), _Handler)
        except (OSError, OverflowError) as error:
            raise EnvironmentFailure(
                f"{host} port {port} cannot be listened on: {getattr(error, 'strerror', None) or error}. Name another "
                "port, or 0 for a free one.",
                subject=port,
            ) from error

    @property
    def url(self) -> str:
        """Address of the front page."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in str(host) else host}:{port}/"

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this server; a page of another name could read what it answers."""
        name, port = _split(host.lower())
        if port != str(self.server_address[1]) and not (port == "" and self.server_address[1] == 80):
            return False
        if not self.public:
            return name in ("localhost", "127.0.0.1", "[::1]", str(self.server_address[0]))
        return (
            name in ("localhost", socket.gethostname().lower()) or _ip(name) is not None
        )  # rebinding needs a name

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break; errors of the registry were answered."""


def serve(
    store: Store,
    *,
    host: str = HOST,
    port: int = PORT,
    public: bool = False,
    title: str = "",
    started: Callable[[str], object] | None = None,
) -> None:
    """Serve a catalogue until interrupted.

    Args:
        store: The registry.
        host: As for ``CatalogueServer``.
        port: As for ``CatalogueServer``.
        public: As for ``CatalogueServer``.
        title: As for ``CatalogueServer``.
        started: Called with the address of the front page.
    """
    with CatalogueServer(store, host=host, port=port, public=public, title=title) as server:
        server.catalogue.refresh()
        if started is not None:
            started(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server_version, sys_version = "compatkit", ""

    def handle_one_request(self) -> None:
        """Read a request and answer it; one that comes byte by byte keeps its place for a limited time only."""
        self._arrival = Timer(REQUEST_SECONDS, self._hang_up)
        self._arrival.daemon = True
        self._arrival.start()
        try:
            super().handle_one_request()
        finally:
            self._arrival.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def parse_request(self) -> bool:
        """Read the request line and headers; answer what is refused."""
        if not super().parse_request():
            return False
        self._arrival.cancel()
        status = self._refusal()
        if status is not None:
            self.close_connection = True
            self.send_error(status)
            return False
        return True

    def _refusal(self) -> HTTPStatus | None:
        if self.command not in METHODS:
            return HTTPStatus.METHOD_NOT_ALLOWED
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not cast(CatalogueServer, self.server).knows(hosts[0].strip()):
            return HTTPStatus.MISDIRECTED_REQUEST
        if len(self.path) > MAX_PATH:
            return HTTPStatus.REQUEST_URI_TOO_LONG
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            return HTTPStatus.BAD_REQUEST
        return HTTPStatus.FORBIDDEN if _is_foreign(self.headers, self._path()) else None

    def _path(self) -> str:
        """Return the path as it was sent, without its query; nothing is decoded."""
        return self.path.partition("?")[0].removeprefix("/")

    def do_GET(self) -> None:
        """Answer."""
        if not self.path.startswith("/"):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            found = cast(CatalogueServer, self.server).catalogue.get(self._path())
        except CompatkitError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=line(str(error)))
            return
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, *found)

    def do_HEAD(self) -> None:
        """Answer without content."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a line of text."""
        status = HTTPStatus(code)
        self._answer(status, "text/plain; charset=utf-8", f"{explain or status.phrase}\n".encode())

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(METHODS))
        if status >= HTTPStatus.BAD_REQUEST:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _is_foreign(headers: Message, path: str) -> bool:
    """Return whether a browser asks for a page of another origin; following a link to a page is not refused."""
    site = headers.get("Sec-Fetch-Site", "none")
    if site in ("same-origin", "none"):
        return "Origin" in headers and headers["Origin"] != f"http://{headers['Host'].strip()}"
    visits = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return not (visits and path in ("", *PAGES))


def _split(host: str) -> tuple[str, str]:
    """Split name and port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        name, _, rest = host.partition("]")
        return f"{name}]", rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _address(host: str, public: bool) -> tuple[socket.AddressFamily, str]:
    """Return family and address to listen on.

    Raises:
        UsageError: It is no address, or not loopback and ``public`` is False.
    """
    ip = _ip("127.0.0.1" if host == "localhost" else host)
    if ip is None:
        raise UsageError(f"expected an address such as 127.0.0.1 or ::1, got {host!r:.80}.", subject=host)
    if not ip.is_loopback and not public:
        raise UsageError(
            f"{host} can be reached from other machines, and whoever reaches it reads the whole catalogue. Use "
            "127.0.0.1, or say so (--public, public=True).",
            subject=host,
        )
    return (socket.AF_INET6 if ip.version == 6 else socket.AF_INET), str(ip)
