"""The served catalogue, attacked: other methods, names, origins and paths; and fresh after each change."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import hostile
import pytest

import compatkit as ck
from compatkit.components.catalogue import server as module
from compatkit.components.catalogue.server import CatalogueServer
from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.registry.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return hostile.build(tmp_path / "parts")


@contextmanager
def serving(store: Store) -> Iterator[CatalogueServer]:
    """Serve a registry in a thread."""
    with CatalogueServer(store, port=0) as running:
        thread = Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogueServer]:
    """A server of a registry that no test changes."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", str(folder / "cache"))
        store = hostile.build(folder / "parts")
    with serving(store) as running:
        yield running


def ask(
    server: CatalogueServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer


def raw(server: CatalogueServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20) as link:
        link.sendall(request)
        return link.recv(100)


def test_pages_data_and_assets_are_served_with_a_policy(server: CatalogueServer) -> None:
    kinds = {
        "/": "text/html",
        "/component.html": "text/html",
        "/assets/table.js": "text/javascript",
        "/assets/catalogue.css": "text/css",
        "/data/index.js": "text/javascript",
        "/data/c/team/one/0.js": "text/javascript",
        "/data/state.js?x": "text/javascript",
    }
    for path, kind in kinds.items():
        status, body, answer = ask(server, path)
        assert status == 200 and body and answer.headers["Content-Type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "http:" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        status, head, again = ask(server, path, "HEAD")
        assert (status, head) == (200, b"") and again.headers["Content-Length"] == str(len(body))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "X"])
def test_other_methods_are_refused(server: CatalogueServer, method: str) -> None:
    status, _, answer = ask(server, "/", method)
    assert status == 405 and answer.headers["Allow"] == "GET, HEAD"


PATHS = (
    "/../compatkit.json",
    "/%2e%2e/compatkit.json",
    "/assets/../../compatkit.json",
    "/assets/%2e%2e%2fcompatkit.json",
    "/data/c/../../refs/0.js",
    "/data/c/team/one/../one/0.js",
    "/data/c/team/one/99.js",
    "/data/c/team/one/-1.js",
    "/data/c//etc/passwd/0.js",
    "/data/c/team/one%00/0.js",
    "/compatkit.json",
    "/refs/team/one/@versions/2.0.0",
    "//evil.example/",
    "/assets/",
    "/index.html/",
    "/INDEX.HTML",
    "/\\..\\compatkit.json",
)


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_path_leaves_the_catalogue(server: CatalogueServer, path: str) -> None:
    status, body, _ = ask(server, path)
    assert status == 404 and body == b"Not Found\n"


def test_a_link_in_the_registry_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (store.root / "refs/team/linked").symlink_to(tmp_path)
    (store.root / "assets").symlink_to(tmp_path)
    with serving(store) as server:
        for path in ("/assets/secret", "/data/c/team/linked/0.js"):
            assert ask(server, path)[0] == 404


def test_malformed_requests_are_refused(server: CatalogueServer) -> None:
    host = f"127.0.0.1:{server.server_address[1]}".encode()
    assert ask(server, "/" + "a" * 600)[0] == 414
    for request, status in (
        (b"GET /\0 HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", b"404"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nHost: " + host + b"\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 5\r\n\r\nhello", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", b"414"),
        (b"\x16\x03\x01\r\n\r\n", b"Bad Request"),
        (b"GET /\r\n\r\n", b"Misdirected Request"),  # HTTP/0.9, answered without a status line
    ):
        assert status in raw(server, request).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::ffff:7f00:1]", ""]
)
def test_names_of_others_are_refused(server: CatalogueServer, host: str) -> None:
    port = server.server_address[1]
    for text in (host, f"{host}:{port}"):
        assert ask(server, "/data/index.js", Host=text)[0] == 421
    assert ask(server, "/data/index.js", Host="127.0.0.1:1")[0] == 421
    assert ask(server, "/data/index.js", Host=f"LOCALHOST:{port}")[0] == 200


def test_pages_of_other_origins_get_no_data(server: CatalogueServer) -> None:
    visit = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    for site in ("cross-site", "same-site"):
        assert ask(server, "/data/index.js", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0] == 403
        assert ask(server, "/data/index.js", Sec_Fetch_Site=site, **visit)[0] == 403
        assert (
            ask(server, "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")[0]
            == 403
        )
        assert ask(server, "/component.html", Sec_Fetch_Site=site, **visit)[0] == 200
    assert ask(server, "/data/index.js", Origin="http://evil.example")[0] == 403
    assert ask(server, "/data/index.js", Sec_Fetch_Site="same-origin")[0] == 200


def test_requests_that_come_byte_by_byte_lose_their_places(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.5)
    with serving(store) as server, ExitStack() as links:
        address = ("127.0.0.1", server.server_address[1])
        slow = [links.enter_context(socket.create_connection(address, timeout=20)) for _ in range(3)]
        for link in slow:
            link.sendall(b"GET / HTTP/1.1\r\nHost: ")
        with pytest.raises(OSError):  # no place is left
            ask(server, "/")
        end = time.monotonic() + 20
        while slow and time.monotonic() < end:
            for link in list(slow):
                try:
                    link.sendall(b"x")
                except OSError:
                    slow.remove(link)
            time.sleep(0.05)
        assert not slow and ask(server, "/")[0] == 200


def test_a_change_shows_on_the_next_request(store: Store) -> None:
    with serving(store) as server:
        state = ask(server, "/data/state.js")[1]
        assert (
            b"1 component" not in ask(server, "/data/index.js")[1]
            and state == ask(server, "/data/state.js")[1]
        )
        store.publish("team/two", store.manifest(hostile.NAME))
        assert b"team/two" in ask(server, "/data/index.js")[1]
        assert ask(server, "/data/c/team/two/0.js")[0] == 200
        after = ask(server, "/data/state.js")[1]
        assert after != state
        store.set_alias("team/two", "prod", "1.0.0")
        assert ask(server, "/data/state.js")[1] != after
        assert b'["prod","1.0.0"]' in ask(server, "/data/c/team/two/0.js")[1]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1:80", ""])
def test_other_addresses_are_refused_unless_asked_for(store: Store, host: str) -> None:
    with pytest.raises(UsageError) as refused:
        CatalogueServer(store, host=host, port=0)
    assert refused.value.subject == host


def test_a_public_server_answers_addresses_and_no_names(store: Store) -> None:
    with CatalogueServer(store, host="0.0.0.0", port=0, public=True) as server:
        port = server.server_address[1]
        assert server.knows(f"192.168.1.5:{port}") and server.knows(f"localhost:{port}")
        assert not server.knows(f"evil.example:{port}")


def test_a_used_port_is_an_error(server: CatalogueServer, store: Store) -> None:
    with pytest.raises(EnvironmentFailure) as refused:
        ck.Registry(store).serve(port=server.server_address[1])
    assert refused.value.subject == server.server_address[1]
