"""HTTP requests to a container registry: authentication, redirects, and bounds on what is read."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import attrs

from compatkit.errors import IntegrityError, MissingDependency

from ._registry_login import Challenge, Credentials, read_challenge, stored_credentials
from ._repository_names import is_loopback

LONGEST_ERROR = 2**16
"""Bytes of an answer that are read where its content is not needed."""
LONGEST_SECONDS = 600
"""Time for the body of one answer."""
CONNECT_SECONDS, READ_SECONDS = 20, 120
TRIES = 3
"""Number of attempts at a request that changes nothing."""
REDIRECTS = 5
CONNECTIONS = 64
PIECE = 2**20
_BUSY = frozenset({429, 500, 502, 503, 504})
"""Statuses that may pass; Docker's registry answers 500 while another client replaces a tag."""
_MOVED = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[\x21-\x7e]+")

Body = bytes | Callable[[], Iterable[bytes]]
"""Bytes, or a function that returns them in pieces; called again where a request is repeated."""


class RegistryRefused(OSError):
    """A registry answered with a status that was not expected.

    Attributes:
        status: HTTP status.
    """

    status: int = 0


@attrs.frozen
class Answer:
    """Answer of a registry.

    Attributes:
        status: HTTP status.
        headers: Headers; names have no case.
        body: Content, cut at the limit for statuses that were not expected.
        url: Address after redirects.
    """

    status: int
    headers: Any = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    url: str = attrs.field(repr=False)

    def error(self, what: str) -> OSError:
        """Return the error for a status that was not expected; it names no address, which may hold secrets.

        Args:
            what: Object of the request, for messages.
        """
        try:
            first = json.loads(self.body)["errors"][0]
            reason = f" {first.get('code', '')}: {first.get('message', '')}"
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            reason = ""
        text = f"{what}: the registry answered {self.status}{reason:.200}"
        if self.status in (401, 403):
            return PermissionError(text)
        error = RegistryRefused(text)
        error.status = self.status
        return error


@attrs.define(eq=False)
class RegistrySession:
    """Requests to one registry.

    Credentials go to the registry and to the token service that it names, and nowhere else. Redirects are followed to
    HTTPS addresses only, or within the registry.

    Attributes:
        host: Host, with its port if it has one.
        plain_http: Whether to use HTTP without encryption.
    """

    host: str
    plain_http: bool
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _basic: str | None = attrs.field(init=False, default=None, repr=False)
    _tokens: dict[tuple[str, ...], str] = attrs.field(init=False, factory=dict, repr=False)
    _pool: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            import urllib3
        except ImportError as error:
            raise MissingDependency(
                f"oci:// needs urllib3: pip install 'compatkit[remotes]' ({error}).", subject="urllib3"
            ) from None
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        settings: dict[str, Any] = {"maxsize": CONNECTIONS, "timeout": timeout, "retries": False}
        proxy = None if proxy_bypass(self.host) else getproxies().get(self.scheme)
        self._pool = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)

    def close(self) -> None:
        """Close idle connections; later requests open new ones."""
        self._pool.clear()

    @property
    def scheme(self) -> str:
        """Return the scheme of the registry's addresses."""
        return "http" if self.plain_http else "https"

    def url(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return the address of a path of the registry.

        Args:
            path: Path from ``/v2/`` on.
            query: Parameters.
        """
        return f"{self.scheme}://{self.host}{path}{'?' if query else ''}{urlencode(query or {})}"

    def resolve(self, base: str, location: str) -> str:
        """Return the address that an answer names, if requests may go there.

        Args:
            base: Address of the request.
            location: Value of ``Location`` or ``Link``.

        Raises:
            IntegrityError: It is neither of the registry nor encrypted.
        """
        url = urljoin(base, location)
        parts = urlsplit(url)
        if not parts.hostname or (parts.scheme != "https" and not self._is_own(url)):
            raise IntegrityError(
                f"{self.host} sends requests on to {parts.scheme}://{parts.hostname}: expected an address of its own, "
                "or one with https://. Check the address, and the registry's settings.",
                subject=self.host,
            )
        return url

    def request(
        self,
        method: str,
        url: str,
        *,
        scopes: tuple[str, ...] = (),
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        limit: int = LONGEST_ERROR,
        statuses: frozenset[int] = frozenset({200}),
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Return the answer to a request.

        Args:
            method: HTTP method. Only GET and HEAD are repeated, and follow redirects.
            url: Address.
            scopes: Rights that a token needs.
            headers: Headers.
            body: Content to send.
            limit: Maximum size of the content of an expected answer.
            statuses: Statuses whose content is read up to ``limit``.
            sink: File that receives the content of an expected answer.

        Raises:
            IntegrityError: The answer is longer, or leads elsewhere.
            PermissionError: The registry knows neither the user nor an anonymous one.
            OSError: The registry cannot be reached.
        """
        safe = method in ("GET", "HEAD")
        for redirects in range(REDIRECTS + 1):
            response = self._authorized(method, url, scopes, headers or {}, body, TRIES if safe else 1)
            location = response.headers.get("Location")
            if not (safe and response.status in _MOVED and location):
                return self._read(response, url, limit, statuses, sink)
            self._drain(response, url)
            url = self.resolve(url, location)
            if redirects == REDIRECTS:
                break
        raise IntegrityError(
            f"{self.host}: expected at most {REDIRECTS} redirects, got more.", subject=self.host
        )

    def _is_own(self, url: str) -> bool:
        parts = urlsplit(url)
        return (parts.scheme, parts.netloc.lower()) == (self.scheme, self.host.lower())

    def _authorized(
        self,
        method: str,
        url: str,
        scopes: tuple[str, ...],
        headers: Mapping[str, str],
        body: Body | None,
        tries: int,
    ) -> Any:
        """Return an open response to a request with credentials, which only the registry gets."""
        if not self._is_own(url):
            return self._send(method, url, headers, body, tries)
        sent = self._authorization(scopes)
        response = self._send(method, url, _with(headers, sent), body, tries)
        if response.status != 401:
            return response
        challenge = read_challenge(response.headers.getlist("WWW-Authenticate"))
        self._drain(response, url)
        with self._lock:
            if self._authorization(scopes) == sent:  # no other thread was faster
                self._log_in(challenge, scopes, sent)
        return self._send(method, url, _with(headers, self._authorization(scopes)), body, tries)

    def _authorization(self, scopes: tuple[str, ...]) -> str | None:
        return self._tokens.get(scopes) or self._basic

    def _log_in(self, challenge: Challenge | None, scopes: tuple[str, ...], sent: str | None) -> None:
        """Get what a challenge demands.

        Raises:
            PermissionError: There are no credentials for it, or they were refused.
        """
        credentials = stored_credentials(self.host)
        login = f"`docker login {self.host}` or `skopeo login {self.host}`"
        if challenge is None:
            raise PermissionError(f"{self.host} answers 401 and does not say how to log in")
        if challenge.scheme == "bearer":
            self._tokens[scopes] = f"Bearer {self._token(challenge, scopes, credentials)}"
        elif credentials is None or not credentials.password:
            raise PermissionError(f"{self.host} demands a user and a password; run {login}")
        elif sent == credentials.basic():
            raise PermissionError(
                f"{self.host} refuses the user and the password that are stored; run {login} again"
            )
        else:
            self._basic = credentials.basic()

    def _token(self, challenge: Challenge, scopes: tuple[str, ...], credentials: Credentials | None) -> str:
        """Return an access token of the service that a challenge names.

        Raises:
            IntegrityError: The service is not encrypted, or its answer is malformed.
            PermissionError: It refuses the user.
        """
        realm = urlsplit(challenge.parameters.get("realm", ""))
        name = (realm.hostname or "").lower()
        near = is_loopback(name) or name == urlsplit(f"//{self.host}").hostname
        if realm.scheme != "https" and not (realm.scheme == "http" and self.plain_http and near):
            raise IntegrityError(
                f"{self.host} names {realm.scheme}://{name} as its token service: expected https://, so that no "
                "password is sent without encryption.",
                subject=self.host,
            )
        wanted = scopes or tuple(filter(None, [challenge.parameters.get("scope")]))
        fields = [("scope", scope) for scope in wanted]
        if service := challenge.parameters.get("service"):
            fields.append(("service", service))
        url, headers = realm.geturl(), {}
        if credentials is not None and credentials.identity_token:
            fields += [
                ("grant_type", "refresh_token"),
                ("refresh_token", credentials.identity_token),
                ("client_id", "compatkit"),
            ]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = self._send("POST", url, headers, urlencode(fields).encode(), 1)
        else:
            url = f"{url}{'&' if realm.query else '?'}{urlencode(fields)}"
            headers = {} if credentials is None else {"Authorization": credentials.basic()}
            response = self._send("GET", url, headers, None, TRIES)
        answer = self._read(response, url, LONGEST_ERROR, frozenset({200}), None)
        if answer.status != 200:
            raise answer.error(f"{name}: a token for {self.host}")
        try:
            body = json.loads(answer.body)
            token = body.get("token") or body.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise IntegrityError(
                f"{name}: expected a token for {self.host} in the answer.", subject=self.host
            )
        return token

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Body | None, tries: int) -> Any:
        """Return an open response; a busy registry is asked again."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "compatkit", **headers}
        for attempt in range(tries):
            if attempt:
                time.sleep(2**attempt / 4)
            try:
                with self._reaching(url):
                    response = self._pool.request(
                        method,
                        url,
                        headers=headers,
                        body=body() if callable(body) else body,
                        redirect=False,
                        preload_content=False,
                        decode_content=False,
                    )
            except OSError:
                if attempt == tries - 1:
                    raise
                continue
            if response.status not in _BUSY or attempt == tries - 1:
                return response
            self._drain(response, url)
        raise AssertionError("unreachable")

    def _read(
        self, response: Any, url: str, limit: int, statuses: frozenset[int], sink: BinaryIO | None
    ) -> Answer:
        """Read the content of an answer, at most its limit."""
        expected = response.status in statuses
        limit = limit if expected else LONGEST_ERROR
        pieces: list[bytes] = []
        size, end = 0, time.monotonic() + LONGEST_SECONDS
        try:
            while size <= limit:
                with self._reaching(url):
                    piece = response.read1(min(PIECE, limit + 1 - size))
                if not piece:
                    break
                size += len(piece)
                if sink is not None and expected:
                    sink.write(piece)
                else:
                    pieces.append(piece)
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.host} took longer than {LONGEST_SECONDS} s for an answer")
        finally:
            if size > limit or not response.isclosed():
                response.close()
            response.release_conn()
        if size > limit and expected:
            raise IntegrityError(
                f"{self.host}: expected an answer of at most {limit} bytes, got more. It was not read.",
                subject=self.host,
            )
        return Answer(response.status, response.headers, b"".join(pieces)[:limit], url)

    def _drain(self, response: Any, url: str) -> None:
        """Read what a response still holds, if it is short, so that its connection can be used again."""
        self._read(response, url, 0, frozenset(), None)

    @contextmanager
    def _reaching(self, url: str) -> Iterator[None]:
        """Raise errors of the network without addresses, which may hold secrets.

        Raises:
            OSError: In place of any error of urllib3 and of the system.
        """
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (HTTPError, OSError) as error:
            cause: BaseException = error
            while isinstance(inner := getattr(cause, "reason", None), BaseException) or (
                inner := cause.__cause__ or cause.__context__
            ):
                cause = inner
            text = getattr(cause, "strerror", None) or type(cause).__name__
            late = "Timeout" in type(error).__name__ + type(cause).__name__
            kind = TimeoutError if late else ConnectionError
            known = cause if isinstance(cause, OSError) else None
            raise kind(f"{urlsplit(url).hostname}: {text}") from known


def _with(headers: Mapping[str, str], authorization: str | None) -> Mapping[str, str]:
    return headers if authorization is None else {**headers, "Authorization": authorization}
