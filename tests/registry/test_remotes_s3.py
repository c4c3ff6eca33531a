"""push and pull through S3's own protocol: a server on loopback, spoken to by s3fs, and nothing else on the network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from far import EXTRACTOR, HEAD, Fault, content

from compatkit.contracts.manifest import Payload
from compatkit.errors import EnvironmentFailure, IntegrityError, LayoutError, VersionExists
from compatkit.registry.blobs import blob_path
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.names import Version
from compatkit.registry.remotes import files, named
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.remotes.reading import open_remote
from compatkit.registry.remotes.verifying import verify_remote
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signer import sign
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest
from compatkit_plugins.remotes._filesystem import FileSystemStore

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'compatkit[remotes]'")
server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'compatkit[dev]'")
pytestmark = pytest.mark.timeout(120)  # a server that hangs must not hang the tests

Publish = Callable[..., Any]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server in this process; it counts requests in ``werkzeug``'s log."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, Any]]]:
    """An address in a bucket of this test's own, and the options to reach it; no user's credentials are read."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint_url": endpoint, "key": "tester", "secret": "tester"}
    bucket = f"parts-{abs(hash(str(tmp_path))) % 10**12}"
    system = system_of(reach(f"s3://{bucket}", options))
    system.mkdir(bucket)
    yield f"s3://{bucket}/team", options
    system.rm(bucket, recursive=True)


def reach(address: str, options: dict[str, Any]) -> files.Files:
    remote = locate(address, options)
    assert isinstance(remote, files.Files)
    return remote


def system_of(result: files.Files) -> Any:
    assert isinstance(result.store, FileSystemStore)
    return result.store.system


def test_what_is_pushed_cut_off_resumed_and_pulled_is_the_same_byte_by_byte(
    store: Store, source: Store, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    remote, options = s3
    fault = Fault(monkeypatch, at=14)
    with pytest.raises(EnvironmentFailure, match="Repeat the command"):
        push(source, remote, options=options)
    fault.mend()
    target = set(reach(remote, options).sizes("blobs"))
    assert 0 < len(target) < 8 and not reach(remote, options).sizes("refs")
    fault.mend()
    assert len(push(source, remote, options=options).check().created) == 3
    assert not target & set(fault.written(("put", "upload"))), "moved twice"
    fault.at = 20
    with pytest.raises(EnvironmentFailure):
        pull(store, remote, options=options)
    fault.mend()
    pulled = pull(store, remote, options=options).check()
    assert (pulled.results, pulled.signatures) == (1, 1)
    assert content(store.root) == content(source.root) and examine(store).sound


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_push_and_a_pull_that_are_cut_off_at_every_request_go_on(
    tmp_path: Path, source: Store, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    remote, options = s3
    whole, fault, at = content(source.root), Fault(monkeypatch), 0

    def went_through(move: Callable[[], TransferReport]) -> bool:
        fault.calls.clear()
        fault.at = at
        try:
            move().check()
        except EnvironmentFailure:
            fault.mend()
            move().check()
            return False
        finally:
            fault.mend()
        return True

    ended = False
    while not ended:
        here, target = Store.init(tmp_path / f"here{at}"), f"{remote}/{at}"
        sent = went_through(partial(push, source, target, options=options))
        pulled = went_through(partial(pull, here, target, options=options))
        ended = sent and pulled
        assert content(here.root) == whole
        at += 1
    assert at > 40


def test_a_version_is_created_by_a_conditional_write_which_one_of_many_wins(s3: tuple[str, dict[str, Any]]):
    remote = reach(*s3)
    won: list[int] = []
    start = threading.Barrier(6)

    def write(number: int) -> None:
        start.wait()
        if remote.create("refs/a/@versions/1.0.0", f"{number}\n".encode()):
            won.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for item in writers:
        item.start()
    for item in writers:
        item.join()
    assert len(won) == 1 and remote.read("refs/a/@versions/1.0.0", 0, 99) == f"{won[0]}\n".encode()


def test_of_two_pushers_of_one_number_one_is_refused(
    tmp_path: Path, source: Store, s3: tuple[str, dict[str, Any]], publish: Publish
):
    remote, options = s3
    rival = Store.init(tmp_path / "rival")
    publish(rival, HEAD, 50, version="2.0.0")
    moved: dict[str, Any] = {}

    def send(store: Store) -> None:
        moved[store.root.name] = push(store, remote, options=options)

    pushers = [threading.Thread(target=send, args=(item,)) for item in (source, rival)]
    for item in pushers:
        item.start()
    for item in pushers:
        item.join()
    refused = [refusal for item in moved.values() for refusal in item.refused]
    assert [(item.what, type(item.error)) for item in refused] == [(f"{HEAD}@2.0.0", VersionExists)]
    here = Store.init(tmp_path / "here")
    pull(here, remote, options=options).check()
    assert examine(here).sound and EXTRACTOR in here.names()


def test_a_server_without_conditional_writes_is_asked_first(
    source: Store, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    remote, calls = reach(*s3), list[str]()
    original = system_of(remote).pipe_file

    def pipe_file(path: str, data: bytes, **others: Any) -> Any:
        calls.append(others.get("mode", "plain"))
        if others.get("mode") == "create":
            raise OSError(38, "A header you provided implies functionality that is not implemented")
        return original(path, data, **others)

    monkeypatch.setattr(system_of(remote), "pipe_file", pipe_file)
    assert remote.create("refs/a/@versions/1.0.0", b"1") and calls == ["create", "plain"]
    assert (
        not remote.create("refs/a/@versions/1.0.0", b"2")
        and remote.read("refs/a/@versions/1.0.0", 0, 9) == b"1"
    )


def test_a_large_blob_goes_in_parts_and_comes_in_pieces(
    store: Store,
    source: Store,
    s3: tuple[str, dict[str, Any]],
    manifest_of: Callable[..., Any],
    make_file: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
):
    remote, options = s3
    size = 20 * 2**20  # above the 8 MiB that are read at once and written in one request
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    data = make_file({"weight": entry}, bytes(range(256)) * (size // 256))
    edge = source.put_blob(data)
    source.publish("large", manifest_of(Payload(edge, tensor_digest(data), 1, size)))
    fault = Fault(monkeypatch)
    push(source, remote, ["large"], options=options).check()
    assert fault.written(("upload",)) == [blob_path(edge.blob)]
    fault.calls.clear()
    pull(store, remote, ["large"], options=options).check()
    assert [path for operation, path in fault.calls if operation == "read"].count(blob_path(edge.blob)) == 3
    assert store.read_blob(edge.blob, verify="always") == data


def test_an_interrupted_upload_goes_on(
    store: Store,
    source: Store,
    s3: tuple[str, dict[str, Any]],
    manifest_of: Callable[..., Any],
    make_file: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
):
    remote, options = s3
    size = 20 * 2**20
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    data = make_file({"weight": entry}, bytes(range(256)) * (size // 256))
    edge = source.put_blob(data)
    source.publish("large", manifest_of(Payload(edge, tensor_digest(data), 1, size)))
    original, sent, cut = type(system_of(reach(remote, options))).call_s3, list[int](), True

    def call(self: Any, operation: str, *words: Any, **arguments: Any) -> Any:
        if operation == "upload_part":
            if arguments["PartNumber"] == 3 and cut:
                raise ConnectionResetError(104, "Connection reset by peer")
            sent.append(arguments["PartNumber"])
        return original(self, operation, *words, **arguments)

    monkeypatch.setattr(type(system_of(reach(remote, options))), "call_s3", call)
    with pytest.raises(EnvironmentFailure):
        push(source, remote, ["large"], options=options)
    assert reach(remote, options).size(blob_path(edge.blob)) is None
    first, cut = sorted(sent), False
    assert set(first) <= {1, 2}
    push(source, remote, ["large"], options=options).check()
    assert sorted(sent) == [1, 2, 3]
    pull(store, remote, ["large"], options=options).check()
    assert store.read_blob(edge.blob, verify="always") == data


def test_names_are_read_from_one_file_as_the_tags_of_s3_show_that_it_holds(
    store: Store, source: Store, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    remote, options = s3
    push(source, remote, options=options).check()
    target = reach(remote, options)
    tags = target.fingerprints("refs")
    assert tags.keys() == target.sizes("refs").keys() and len(tags) > 8
    assert all(target.fingerprint(target.read(path, 0, 9999) or b"") == tag for path, tag in tags.items())
    fault = Fault(monkeypatch)
    pull(store, remote, options=options).check()
    assert not [path for operation, path in fault.calls if operation == "read" and path.startswith("refs/")]
    assert ("read", "refs.json") in fault.calls and content(store.root) == content(source.root)


def test_an_object_that_was_tampered_with_is_refused_and_named(
    store: Store, source: Store, s3: tuple[str, dict[str, Any]]
):
    remote, options = s3
    push(source, remote, options=options)
    digest = source.manifest(HEAD).payload.file.blob
    target = reach(remote, options)
    target.put(blob_path(digest), (target.read(blob_path(digest), 0, 999) or b"")[:-1] + b"?")
    pulled = pull(store, remote, options=options)
    assert [refusal.what for refusal in pulled.refused] == [f"{HEAD}@2.0.0"]
    assert isinstance(pulled.refused[0].error, IntegrityError)
    assert f"{remote}/{blob_path(digest)}" in str(pulled.refused[0].error) and digest in str(
        pulled.refused[0].error
    )
    assert sorted(map(str, pulled.created)) == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@1.0.0"]


def test_what_is_wrong_with_an_address_is_told(store: Store, source: Store, s3: tuple[str, dict[str, Any]]):
    remote, options = s3
    with pytest.raises(LayoutError, match="is not a registry"):
        pull(store, remote, options=options)
    with pytest.raises(EnvironmentFailure, match="the bucket, repository or folder does not exist"):
        push(source, "s3://no-such-bucket-here/x", options=options)
    closed = {
        **options,
        "endpoint_url": "http://127.0.0.1:9",
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    with pytest.raises(EnvironmentFailure, match=r"could not read s3://.*/compatkit\.json"):
        pull(store, remote, options=closed)


def test_an_empty_object_is_read_as_nothing(s3: tuple[str, dict[str, Any]]):
    remote = reach(*s3)
    remote.put("empty", b"")
    assert remote.read("empty", 0, 10) == b"" and remote.size("empty") == 0
    assert remote.read("missing", 0, 10) is None and remote.size("missing") is None


def test_where_signatures_are_required_nothing_else_comes(
    store: Store, source: Store, s3: tuple[str, dict[str, Any]]
):
    remote, options = s3
    key = SigningKey.new("alice")
    settings = TransferSettings().with_trust(key.public.id)
    push(source, remote, options=options).check()
    pulled = pull(store, remote, options=options, settings=settings)
    assert {refusal.what: refusal.error.code for refusal in pulled.refused} == {
        f"{EXTRACTOR}@1.0.0": "unsigned",
        f"{HEAD}@2.0.0": "unknown-signer",
    }
    assert not content(store.root)
    withdrawn = str(source.references.digest(HEAD, Version.parse("1.0.0")))
    sign(source, [EXTRACTOR, HEAD, withdrawn], key)
    assert push(source, remote, options=options).check().signatures == 3
    pull(store, remote, options=options, settings=settings).check()
    kept = content(store.root)
    assert kept.items() <= content(source.root).items() and examine(store).sound
    assert {str(version) for version in store.references.versions(HEAD)} == {"2.0.0"}, "1.0.0 is withdrawn"


def test_a_named_remote_is_read_and_cloned_without_weights(
    tmp_path: Path, source: Store, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    address, options = s3
    push(source, address, options=options)
    for variable, option in (("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(variable, options[option])
    named.add("team", SavedRemote.of(address, {"endpoint_url": options["endpoint_url"]}))
    read, mine = (
        open_remote("team:"),
        clone("team:", tmp_path / "mine", settings=TransferSettings(weights=False))[0],
    )
    for store in (read, mine):
        digest = store.manifest(EXTRACTOR).payload.file.blob
        assert store.names() == source.names() and store.objects.size(digest) is None
        assert store.load_state(store.manifest(EXTRACTOR)).keys() == {"weight"}
        assert store.objects.size(digest) is not None
    assert verify_remote(named.get("team")).sound
