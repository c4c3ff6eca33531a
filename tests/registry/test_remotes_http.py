"""Registries that a web server offers to read: Python's own server, and pages that no registry should be read from."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from far import content

from compatkit.errors import EnvironmentFailure, LayoutError, UsageError
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.store import Store

pytest.importorskip("requests", reason="requests is not installed: pip install 'compatkit[remotes]'")
pytestmark = pytest.mark.timeout(60)
MARKER = b'{"hash":"sha256","id":"x","layout":1,"min_reader":1,"min_writer":1}'
Answer = tuple[int, str, bytes]
Publish = Callable[..., Any]


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def answering(answers: dict[str, Answer], **headers: str) -> Iterator[Files]:
    """Serve status, type and content by path, and everything else as missing; give the remote."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *values: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            status, kind, data = answers.get(self.path, (404, "text/plain", b"no"))
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

    with serving(Handler) as host:
        remote = locate(f"http://{host}/parts")
        assert isinstance(remote, Files)
        yield remote
        remote.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""


def test_a_registry_is_cloned_from_pythons_own_server(tmp_path: Path, source: Store, publish: Publish):
    publish(source, "odd_name.v2-x", 7)
    with serving(partial(Quiet, directory=str(tmp_path))) as host:
        address = f"http://{host}/source"
        copy, report = clone(address, tmp_path / "copy")
        assert len(report.check().created) == 4 and report.signatures == 1
        assert content(copy.root) == content(source.root) and examine(copy).sound
        publish(source, "news", 9)
        with pytest.raises(EnvironmentFailure, match="can only be read"):
            push(source, f"http://{host}/copy")
        with pytest.raises(LayoutError):
            pull(copy, f"http://{host}/copy/refs")


def page(*links: str, title: str = "Index of /parts/refs/") -> Answer:
    anchors = "".join(f'<a href="{link}">{link}</a>' for link in links)
    return 200, "text/html; charset=utf-8", f"<html><title>{title}</title>{anchors}</html>".encode()


def test_links_are_names_once_unquoted_and_only_those_of_the_folder_itself():
    answers = {
        "/parts/refs/": page(
            "../",
            "/parts/",
            "?C=N;O=D",
            "%2540/",
            "a%20b",
            "/parts/refs/c",
            "http://elsewhere.invalid/parts/refs/d",
            "e/f",
            "../refs/g",
            "h#top",
            "mailto:somebody",
        ),
        "/parts/refs/%2540/": page("%40versions"),
        "/parts/refs/%2540/@versions": (200, "text/plain", b"12"),
        "/parts/refs/a%20b": (200, "text/plain", b"1"),
        "/parts/refs/c": (200, "text/plain", b""),
        "/parts/refs/g": (200, "text/plain", b"123"),
    }
    with answering(answers) as remote:
        assert remote.sizes("refs") == {"refs/%40/@versions": 2, "refs/a b": 1, "refs/c": 0, "refs/g": 3}
        assert remote.read("refs/%40/@versions", 0, 9) == b"12"


@pytest.mark.parametrize(
    "text",
    [
        '[{"name":"a","type":"directory"},{"name":"b","type":"file","size":7}]',
        '[{"name":"a/","is_dir":true,"size":4096},{"name":"b","is_dir":false,"size":7}]',
    ],
    ids=["nginx", "caddy"],
)
def test_a_listing_in_json_says_sizes(text: str):
    answers = {
        "/parts/refs/": (200, "application/json", text.encode()),
        "/parts/refs/a/": (200, "application/json", b"[]"),
    }
    with answering(answers) as remote:
        assert remote.sizes("refs") == {"refs/b": 7}


REFUSED: dict[str, Answer] = {
    "a page of a site": page("a/", title="Our parts"),
    "a page that says nothing": (200, "text/html", b""),
    "text": (200, "text/plain", b"a\nb\n"),
    "an object": (200, "application/json", b'{"a": 1}'),
    "broken JSON": (200, "application/json", b"[{"),
    "deep JSON": (200, "application/json", b"[" * 100_000),
    "an entry of another kind": (200, "application/json", b'[{"name":"a","type":"other"}]'),
    "a size that is none": (200, "application/json", b'[{"name":"a","type":"file","size":"7"}]'),
    "a name that leaves": (200, "application/json", b'[{"name":"..","type":"directory"}]'),
    "a path for a name": (200, "application/json", b'[{"name":"../../a","type":"file","size":1}]'),
    "a link that leaves": page("..%2F..%2Fa"),
    "a file that is not there": page("gone"),
    "an empty listing": page(),
    "an empty list": (200, "application/json", b"[]"),
    "nobody's": (403, "text/html", b"no"),
    "nothing": (404, "text/html", b"no"),
    "a fault": (500, "text/html", b"no"),
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
def test_what_is_no_listing_is_an_error_and_no_empty_registry(store: Store, tmp_path: Path, answer: Answer):
    answers = {"/parts/compatkit.json": (200, "application/json", MARKER), "/parts/refs/": answer}
    with answering(answers) as remote, pytest.raises(EnvironmentFailure) as error:
        clone(remote, tmp_path / "copy")
    assert error.value.exit_code == 4 and "/parts/refs" in str(error.value)
    assert not (tmp_path / "copy").exists()


def test_folders_that_lead_into_each_other_without_end_are_refused():
    class Loop(dict[str, Answer]):
        def get(self, path: str, default: Any = None) -> Answer:
            return 200, "application/json", b'[{"name":"a","type":"directory"}]'

    with answering(Loop()) as remote, pytest.raises(EnvironmentFailure, match="deep"):
        remote.sizes("refs")


def test_a_server_that_sends_whole_files_only_is_told_apart_from_damage():
    with answering({"/parts/a": (200, "text/plain", b"0123456789")}) as remote:
        assert remote.read("a", 0, 4) == b"0123"
        with pytest.raises(EnvironmentFailure, match="cannot send parts"):
            remote.read("a", 4, 4)


@pytest.mark.parametrize("given", ["bytes 3-6/10", "bytes x-y/10", "7"])
def test_a_server_that_sends_another_part_than_asked_for_is_refused(given: str):
    with answering({"/parts/a": (206, "text/plain", b"4567")}, Content_Range=given) as remote:
        with pytest.raises(EnvironmentFailure):
            remote.read("a", 4, 4)


def test_a_file_in_place_of_a_folder_and_the_other_way_round_are_missing(tmp_path: Path):
    (tmp_path / "parts" / "folder").mkdir(parents=True)
    with serving(partial(Quiet, directory=str(tmp_path))) as host:
        remote = locate(f"http://{host}/parts")
        assert isinstance(remote, Files)
        assert remote.size("folder") is None and remote.read("folder", 0, 9) is None
        assert remote.sizes("folder") == {} and remote.sizes("none") == {}
        remote.close()


def test_headers_and_user_reach_the_server():
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *values: Any) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            seen.append(dict(self.headers))
            self.send_error(404)

    with serving(Handler) as host:
        for address, options in (
            (f"http://alice:s%40fe@{host}/parts", {}),
            (f"http://{host}/parts", {"headers": {"Authorization": "Bearer abc"}}),
        ):
            remote = locate(address, options)
            assert isinstance(remote, Files) and "s%40fe" not in remote.url
            assert remote.size("a") is None
            remote.close()
    assert [headers["Authorization"] for headers in seen] == ["Basic YWxpY2U6c0BmZQ==", "Bearer abc"]


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("http://host:99999/parts", {}),
        ("http://:80/parts", {}),
        ("http://host/parts?token=abc", {}),
        ("http://host/parts#here", {}),
        ("http://host/parts", {"headers": "Authorization: abc"}),
        ("http://host/parts", {"token": "abc"}),
        ("ftp://host/parts", {}),
        ("gs://bucket/parts", {}),
        ("smb://host/parts", {}),
        ("ssh://host/parts", {}),
    ],
)
def test_addresses_and_options_that_cannot_be_used_are_refused(
    store: Store, address: str, options: dict[str, Any]
):
    with pytest.raises(UsageError):
        pull(store, address, options=options)


@pytest.mark.parametrize("status", [301, 302, 303, 307])
def test_writing_to_the_page_of_a_login_is_no_success(source: Store, status: int):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *values: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Location", "/login")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_MKCOL = do_MOVE = do_PUT

    with serving(Handler) as host:
        remote = locate(f"webdav://{host}/parts")
        assert isinstance(remote, Files)
        with pytest.raises(EnvironmentFailure):
            remote.put("blobs/a", b"x")
        remote.close()


MULTISTATUS = '<d:multistatus xmlns:d="DAV:">{}</d:multistatus>'
ENTRY = "<d:response><d:href>{{}}</d:href><d:propstat><d:prop>{}</d:prop></d:propstat></d:response>"
FOLDER = ENTRY.format("<d:resourcetype><d:collection/></d:resourcetype>")
FILE = ENTRY.format("<d:getcontentlength>{}</d:getcontentlength>")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>Our parts</html>",
        "<multistatus/>",
        MULTISTATUS.format("<d:response/>"),
        MULTISTATUS.format(FILE.format("/parts/refs/a", "many")),
        MULTISTATUS.format(FILE.format("/elsewhere/a", 1)),
        MULTISTATUS.format(FILE.format("/parts/refs/a/b", 1)),
        MULTISTATUS.format(FOLDER.format("/parts/refs/../..")),
        MULTISTATUS.format(FILE.format("/parts/refs/..%2F..%2Fa", 1)),
        '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb">]><a>' + "&b;" * 10,
    ],
)
def test_an_answer_that_is_no_listing_of_the_folder_is_refused(text: str):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *values: Any) -> None:
            """Say nothing."""

        def do_PROPFIND(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(207)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    with serving(Handler) as host:
        remote = locate(f"webdav://{host}/parts")
        assert isinstance(remote, Files)
        with pytest.raises(EnvironmentFailure):
            remote.sizes("refs")
        remote.close()


def test_a_server_that_never_answers_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch):
    from compatkit_plugins.remotes import _web

    monkeypatch.setattr(_web, "PATIENCE", (0.5, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(EnvironmentFailure, match="check the network"):
            pull(store, f"http://127.0.0.1:{silent.getsockname()[1]}/parts")
