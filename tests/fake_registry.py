"""A fake of a container registry: enough of the OCI Distribution Specification 1.1, in memory, and told to misbehave.

Real registries are in ``servers.py``; this one answers what they never do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs

INDEX = "application/vnd.oci.image.index.v1+json"
_PATH = re.compile(
    r"/v2/(?P<name>.+?)/(?P<kind>manifests|blobs/uploads|blobs|tags|referrers)/(?P<last>[^/]*)"
)


@attrs.frozen
class Reply:
    """An answer: status, content in one or more pieces, and headers."""

    status: int
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Request:
    """A request: method, path, parameters, headers, and content."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Any
    body: bytes


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@attrs.define(eq=False)
class FakeRegistry:
    """What the registry holds, and how it behaves.

    Attributes:
        blobs: Contents by repository and digest.
        manifests: Media types and contents by repository and digest.
        tags: Digests by repository and tag.
        uploads: What arrived of each upload.
        requests: Requests so far, as ``GET /v2/...``.
        override: Called first with each request; an answer replaces the registry's own.
        referrers: Whether it has the Referrers API.
        ranges: Whether it sends ranges of blobs.
        chunks: Whether it takes chunks.
        page: Number of entries of a page.
        login: ``USER:PASSWORD`` that it demands, or an empty text.
        bearer: Whether it demands a token that is bought with the login.
    """

    host: str = ""
    blobs: dict[tuple[str, str], bytes] = attrs.field(factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = attrs.field(factory=dict)
    tags: dict[tuple[str, str], str] = attrs.field(factory=dict)
    uploads: dict[str, bytes] = attrs.field(factory=dict)
    requests: list[str] = attrs.field(factory=list)
    override: Callable[[Request], Reply | None] = lambda request: None
    referrers: bool = True
    ranges: bool = True
    chunks: bool = True
    page: int = 1000
    login: str = ""
    bearer: bool = False
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def address(self) -> str:
        return f"oci://{self.host}/team"

    def answer(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(f"{request.method} {request.path}")
        if (reply := self.override(request)) is not None:
            return reply
        if request.path == "/token":
            return self._token(request)
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if request.path == "/v2/":
            return Reply(200, b"{}")
        if request.path == "/v2/_catalog":
            names = sorted({name for name, _ in self.manifests})
            return self._page(request, "repositories", names)
        match = _PATH.fullmatch(request.path)
        if match is None:
            return Reply(404, b"404 page not found")
        kind = match["kind"].replace("/", "_")
        with self.lock:
            return getattr(self, f"_{kind}")(request, match["name"], match["last"])

    def _refusal(self, request: Request) -> Reply | None:
        if not self.login:
            return None
        basic = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if request.headers.get("Authorization") == ("Bearer bought" if self.bearer else basic):
            return None
        challenge = 'Basic realm="fake"'
        if self.bearer:
            challenge = f'Bearer realm="http://{self.host}/token",service="fake",scope="registry:catalog:*"'
        return Reply(401, b"{}", {"WWW-Authenticate": challenge})

    def _token(self, request: Request) -> Reply:
        basic = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        bought = request.headers.get("Authorization") == basic or b"refresh_token=identity" in request.body
        return Reply(200, json.dumps({"token": "bought"}).encode()) if bought else Reply(401, b"{}")

    def _page(self, request: Request, key: str, names: list[str]) -> Reply:
        names = [name for name in names if name > request.query.get("last", "")]
        headers = {}
        if len(names) > self.page:
            headers = {"Link": f'<{request.path}?n={self.page}&last={names[self.page - 1]}>; rel="next"'}
        return Reply(200, json.dumps({key: names[: self.page]}).encode(), headers)

    def _tags(self, request: Request, name: str, last: str) -> Reply:
        if not any(name == repository for repository, _ in self.manifests):
            return Reply(404, b'{"errors":[{"code":"NAME_UNKNOWN","message":"no such repository"}]}')
        return self._page(request, "tags", sorted(tag for repository, tag in self.tags if repository == name))

    def _manifests(self, request: Request, name: str, last: str) -> Reply:
        if request.method == "PUT":
            own = digest(request.body)
            self.manifests[name, own] = request.headers["Content-Type"], request.body
            if ":" not in last:
                self.tags[name, last] = own
            subject = json.loads(request.body).get("subject")
            headers = {"OCI-Subject": subject["digest"]} if subject and self.referrers else {}
            return Reply(201, b"", headers)
        own = self.tags.get((name, last), last)
        if (name, own) not in self.manifests:
            return Reply(404, b"{}")
        media_type, data = self.manifests[name, own]
        return Reply(200, data, {"Content-Type": media_type, "Docker-Content-Digest": own})

    def _referrers(self, request: Request, name: str, last: str) -> Reply:
        if not self.referrers:
            return Reply(404, b"404 page not found")
        entries = []
        for (repository, own), (media_type, data) in self.manifests.items():
            value = json.loads(data)
            if repository == name and (value.get("subject") or {}).get("digest") == last:
                entry = {"mediaType": media_type, "digest": own, "size": len(data)}
                entries.append({**entry, "artifactType": value["artifactType"]})
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        return Reply(200, json.dumps(index).encode(), {"Content-Type": INDEX})

    def _blobs(self, request: Request, name: str, last: str) -> Reply:
        data = self.blobs.get((name, last))
        if data is None:
            return Reply(404, b"{}")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if wanted and self.ranges:
            return Reply(206, data[int(wanted[1]) : int(wanted[2]) + 1])
        return Reply(200, data)

    def _blobs_uploads(self, request: Request, name: str, last: str) -> Reply:
        if request.method == "POST":
            source, mounted = request.query.get("from", ""), request.query.get("mount", "")
            if (source, mounted) in self.blobs:
                self.blobs[name, mounted] = self.blobs[source, mounted]
                return Reply(201)
            last = str(len(self.uploads))
            self.uploads[last] = b""
            return Reply(202, b"", {"Location": f"{request.path}{last}?state=1"})
        if last not in self.uploads:
            return Reply(404, b"{}")
        if request.method == "PATCH" and not self.chunks:
            return Reply(405, b"{}")
        self.uploads[last] += request.body
        end = max(len(self.uploads[last]) - 1, 0)
        headers = {"Location": f"{request.path}?state={end}", "Range": f"0-{end}"}
        if request.method != "PUT":
            return Reply(202 if request.method == "PATCH" else 204, b"", headers)
        data = self.uploads.pop(last)
        self.uploads[f"done {last}"] = b""
        if digest(data) != request.query["digest"]:
            return Reply(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"another digest"}]}')
        self.blobs[name, digest(data)] = data
        return Reply(201)


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run a fake on a free port of 127.0.0.1."""
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = fake.answer(Request(self.command, parts.path, query, self.headers, body))
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            whole = isinstance(reply.body, bytes)
            if whole:
                self.send_header("Content-Length", str(len(reply.body)))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if self.command == "HEAD" or reply.status == 204:
                return
            try:
                for piece in [reply.body] if whole else reply.body:
                    self.wfile.write(piece)
            except OSError:  # the client has read enough
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = respond

        def log_message(self, format: str, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
