"""Container registries as remotes: Debian's docker-registry, and skopeo as an outside reader."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from far import EXTRACTOR, HEAD, content, import_layout
from servers import Server, docker_registry, program

from compatkit.components.registry import Registry
from compatkit.errors import EnvironmentFailure, LayoutError, Unsigned, VersionExists
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store
from compatkit_plugins.remotes import _blob_uploads, _registry_session

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

Publish = Callable[..., Any]
VERSIONS = [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]
ALICE = "alice:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"
"""User and password for docker-registry: ``alice`` and ``secret``, by bcrypt."""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of whoever runs the tests, and a cache of this test."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    for variable in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with docker_registry(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def address(server: Server) -> str:
    return f"oci://{server.host}/team"


def change_settings(server: Server, **settings: Any) -> None:
    """Start a registry again with other settings."""
    file = Path(server.command[-1])
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    server.kill()
    server.start()


def skopeo(*words: str) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: apt-get install skopeo")
    done = subprocess.run(["skopeo", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_versions_go_there_and_come_back_bit_for_bit(
    tmp_path: Path, store: Store, source: Store, publish: Publish, address: str
):
    for number in range(3):
        publish(source, "other/part", 10 + number)
    report = push(source, address).check()
    assert len(report.created) == 5
    again = push(source, address, settings=TransferSettings(create=False)).check()
    assert (again.created, len(again.existing), again.blobs) == ([], 5, 0)
    pulled = pull(store, address).check()
    assert len(pulled.created) == 5 and pulled.signatures == 1
    assert content(store.root).items() <= content(source.root).items() and examine(store).sound
    assert [store.resolve(name) for name in source.names()] == [
        source.resolve(name) for name in source.names()
    ]
    assert pull(store, address).check().blobs == 0
    copy, cloned = clone(address, tmp_path / "copy")
    assert len(cloned.created) == 5 and content(copy.root) == content(store.root)
    one = Store.init(tmp_path / "one")
    assert [str(item) for item in pull(one, address, f"{HEAD}@^2").check().created] == VERSIONS[1:]


def test_signatures_are_required_and_travel_as_referrers(
    store: Store, source: Store, address: str, key: SigningKey, trusted: Trusted
):
    push(source, address).check()
    sign(source, f"{HEAD}@2.0.0", key)
    assert push(source, address).check().created == []
    pulled = pull(store, address, settings=TransferSettings().with_trust(trusted))
    assert [str(item) for item in pulled.created] == VERSIONS[1:] and store.names() == [HEAD]
    assert [type(refusal.error) for refusal in pulled.refused] == [Unsigned]
    sign(source, f"{EXTRACTOR}@1.0.0", key)
    push(source, address).check()
    pulled = pull(store, address, settings=TransferSettings().with_trust(trusted)).check()
    assert store.names() == [EXTRACTOR, HEAD] and examine(store).sound


def test_skopeo_reads_what_was_pushed_and_copies_it_to_a_layout(
    tmp_path: Path, store: Store, source: Store, server: Server, address: str
):
    push(source, address).check()
    for name, version in ((EXTRACTOR, "1.0.0"), (HEAD, "2.0.0")):
        place = f"docker://{server.host}/team/{name}:{version}"
        raw = json.loads(skopeo("inspect", "--tls-verify=false", "--raw", place))
        assert raw["artifactType"] == "application/vnd.compatkit.component.v1"
        assert raw["layers"][0]["digest"] == source.resolve(name).digest
        assert (
            version
            in json.loads(skopeo("list-tags", "--tls-verify=false", f"docker://{server.host}/team/{name}"))[
                "Tags"
            ]
        )
        skopeo("copy", "--src-tls-verify=false", place, f"oci:{tmp_path / 'there'}:{name}:{version}")
    import_layout(store, tmp_path / "there").check()
    assert [store.resolve(name) for name in (EXTRACTOR, HEAD)] == [
        source.resolve(name) for name in (EXTRACTOR, HEAD)
    ]
    assert examine(store).sound


def test_images_that_skopeo_copied_from_a_layout_are_pulled(
    tmp_path: Path, store: Store, source: Store, server: Server, address: str
):
    push(source, f"oci-layout://{tmp_path / 'layout'}").check()
    for name in (f"{EXTRACTOR}:1.0.0", f"{HEAD}:2.0.0"):
        target = f"docker://{server.host}/team/{name}"
        skopeo("copy", "--dest-tls-verify=false", f"oci:{tmp_path / 'layout'}:{name}", target)
    again = push(source, address).check()
    assert sorted(map(str, again.existing)) == VERSIONS and not again.created
    pulled = pull(store, address).check()
    assert sorted(map(str, pulled.created)) == VERSIONS and pulled.signatures == 1 and examine(store).sound


def test_a_password_is_taken_from_the_login_and_a_wrong_one_refused(
    tmp_path: Path, store: Store, source: Store, server: Server, address: str
):
    (tmp_path / "registry" / "users").write_text(ALICE)
    change_settings(
        server, auth={"htpasswd": {"realm": "test", "path": str(tmp_path / "registry" / "users")}}
    )
    file = tmp_path / "docker" / "config.json"
    file.parent.mkdir()
    for login in (None, "alice:wr0ng"):
        if login is not None:
            auth = base64.b64encode(login.encode()).decode()
            file.write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
        for act in (lambda: push(source, address), lambda: pull(store, address)):
            with pytest.raises(EnvironmentFailure) as error:
                act()
            assert (error.value.code, error.value.subject) == ("environment", address)
            assert "wr0ng" not in str(error.value)
    file.unlink()
    skopeo("login", "--tls-verify=false", "-u", "alice", "-p", "secret", "--authfile", str(file), server.host)
    push(source, address).check()
    assert len(pull(store, address).check().created) == 2


def test_encryption_is_required_and_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store, source: Store, server: Server, address: str
):
    openssl = program("openssl", "apt-get install openssl")
    files = {"key": str(tmp_path / "key.pem"), "certificate": str(tmp_path / "certificate.pem")}
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=registry",
    ]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        files["key"],
        "-out",
        files["certificate"],
    ]
    subprocess.run(command, check=True, capture_output=True)
    http = json.loads(Path(server.command[-1]).read_text())["http"]
    change_settings(server, http={**http, "tls": files})
    for options in ({}, {"plain_http": False}):  # without encryption; a certificate that nobody trusts
        with pytest.raises((EnvironmentFailure, LayoutError)) as error:
            push(source, address, options=options)
        assert error.value.exit_code in (2, 4)
    monkeypatch.setenv("SSL_CERT_FILE", files["certificate"])
    push(source, address, options={"plain_http": False}).check()
    assert len(pull(store, address, options={"plain_http": False}).check().created) == 2


def test_a_registry_that_is_killed_takes_the_rest_of_an_upload_later(
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
    source: Store,
    publish: Publish,
    server: Server,
    address: str,
):
    """Chunks that arrived are not sent again, as the registry's settings let it know its own uploads."""
    http = json.loads(Path(server.command[-1]).read_text())["http"]
    change_settings(server, http={**http, "secret": "of the registry"})
    monkeypatch.setattr(_blob_uploads, "CHUNK", 2**20)
    monkeypatch.setattr(_registry_session.time, "sleep", lambda seconds: None)
    large = source.put_blob(os.urandom(20 * 2**20))
    publish(source, "large", 7, training={"run": {"blob": large.blob, "bytes": large.bytes}})
    sent: list[str] = []
    request = _registry_session.RegistrySession.request

    def counted(self: Any, method: str, url: str, **others: Any) -> Any:
        if method == "PATCH":
            sent.append(url)
            if len(sent) == 12:
                server.kill()
        return request(self, method, url, **others)

    monkeypatch.setattr(_registry_session.RegistrySession, "request", counted)
    with pytest.raises(EnvironmentFailure) as error:
        push(source, address, ["large"])
    assert error.value.exit_code == 4 and "_state" not in str(error.value)
    server.start()
    sent.clear()
    push(source, address, ["large"]).check()
    assert 9 <= len(sent) <= 10, "of 20 chunks, those that arrived are not sent again"
    pull(store, address).check()
    assert store.objects.read(large.blob) == source.objects.read(large.blob) and examine(store).sound


def test_a_push_that_is_killed_leaves_whole_versions_and_goes_on(
    tmp_path: Path, source: Store, publish: Publish, server: Server, address: str
):
    for number in range(6):
        large = source.put_blob(os.urandom(2**22))
        publish(
            source, f"large/part{number}", 7, training={"run": {"blob": large.blob, "bytes": large.bytes}}
        )
    script = (
        "import sys\n"
        "from compatkit_plugins.remotes import _blob_uploads\n"
        "from compatkit.registry.remotes.pushpull import push\n"
        "from compatkit.registry.store import Store\n"
        "_blob_uploads.CHUNK = 2**20\n"
        "store = Store.open(sys.argv[1])\n"
        "print('begins', flush=True)\n"
        "push(store, sys.argv[2]).check()\n"
    )
    seen: list[int] = []
    for delay in (0.02, 0.06, 0.1, 0.15, 0.2, 0.3, 30):
        pusher = subprocess.Popen(
            [sys.executable, "-c", script, str(source.root), address], stdout=subprocess.PIPE
        )
        with pusher:
            assert pusher.stdout is not None and pusher.stdout.readline() == b"begins\n"
            with suppress(subprocess.TimeoutExpired):
                pusher.wait(delay)
            pusher.kill()
        here = Store.init(tmp_path / f"here{delay}")
        try:
            report = pull(here, address).check()
        except LayoutError:
            seen.append(0)
            continue
        assert examine(here).sound and content(here.root).items() <= content(source.root).items()
        seen.append(len(report.created))
    assert seen[-1] == 8 and seen == sorted(seen)


def test_two_pushers_of_a_number_leave_one_component(
    tmp_path: Path, store: Store, source: Store, publish: Publish, address: str
):
    """Registries have no conditional write: both may believe that they won, but there is one version, whole."""
    other = Store.init(tmp_path / "other")
    publish(other, EXTRACTOR, 77)
    publish(source, "shared", 5)
    publish(other, "shared", 5)
    reports: dict[str, TransferReport] = {}
    start = threading.Barrier(2)

    def work(name: str, registry: Store) -> None:
        start.wait()
        reports[name] = push(registry, address, [EXTRACTOR, "shared"])

    threads = [threading.Thread(target=work, args=item) for item in (("source", source), ("other", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [refusal.error for report in reports.values() for refusal in report.refused]
    assert all(isinstance(error, VersionExists) for error in refused) and len(refused) <= 1
    pull(store, address).check()
    winner = str(store.resolve(EXTRACTOR).digest)
    mine, theirs = (str(item.resolve(EXTRACTOR).digest) for item in (source, other))
    assert winner in (mine, theirs) and examine(store).sound
    assert not refused or {mine, theirs} - {winner} == {
        str(registry.resolve(EXTRACTOR).digest)
        for name, registry in (("source", source), ("other", other))
        if reports[name].refused
    }
    late = push(other if winner == mine else source, address, [EXTRACTOR])
    assert [type(refusal.error) for refusal in late.refused] == [VersionExists]


def test_signatures_of_two_pushers_are_both_there(
    tmp_path: Path, store: Store, source: Store, address: str, key: SigningKey
):
    push(source, address).check()
    other = Store.init(tmp_path / "other")
    pull(other, address).check()
    for registry, signer in ((source, key), (other, SigningKey.new("bob"))):
        sign(registry, [f"{HEAD}@2.0.0", f"{EXTRACTOR}@1.0.0"], signer)
    threads = [threading.Thread(target=push, args=(registry, address)) for registry in (source, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for registry in (source, other):
        push(registry, address).check()  # whoever's index was replaced at the same time writes it again
    assert pull(store, address).check().signatures == 5


def test_it_is_a_remote_of_the_interface_in_python(tmp_path: Path, source: Store, address: str):
    registry = Registry(source)
    pushed = registry.push(address, HEAD, create=True, options={"plain_http": True})
    assert [str(item) for item in pushed.created] == VERSIONS[1:]
    Registry.clone(address, tmp_path / "copy")
    assert Store.open(tmp_path / "copy").names() == [HEAD], "its parent comes without a name"
