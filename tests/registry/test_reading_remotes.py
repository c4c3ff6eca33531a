"""Remotes that are only read: a copy of their small files, brought up to date at each use, and their verification."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from far import EXTRACTOR, HEAD, Fault, content

import compatkit as ck
from compatkit.errors import (
    EnvironmentFailure,
    IntegrityError,
    LayoutError,
    NotFound,
    SignatureError,
    UsageError,
)
from compatkit.foundation import cache
from compatkit.foundation.codec import dumps
from compatkit.registry.blobs import blob_path
from compatkit.registry.dropping import drop
from compatkit.registry.history import log
from compatkit.registry.index.query import Query
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes import named
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.pushpull import import_components, push
from compatkit.registry.remotes.reading import is_path, open_remote
from compatkit.registry.remotes.verifying import verify_remote
from compatkit.registry.second_names import copy
from compatkit.registry.signing.signer import sign
from compatkit.registry.store import Store

SYSTEM = fsspec.filesystem("memory")


@pytest.fixture
def team(source: Store, memory: str) -> str:
    """A remote with everything of ``source``."""
    push(source, memory)
    return memory


def uploaded(source: Store, address: str) -> None:
    """Make a remote the same as a registry's folder, as other tools do: also its policies."""
    if SYSTEM.exists(address):
        SYSTEM.rm(address, recursive=True)
    SYSTEM.put(str(source.root), address, recursive=True)


def test_what_is_read_is_the_same_as_in_the_registry(source: Store, memory: str):
    ck.Registry(source).change_settings(revoked=(f"ed25519:{'cd' * 32}",))
    uploaded(source, memory)
    store = open_remote(memory)
    assert store.rules.settings == source.rules.settings
    assert store.names() == source.names() and store.id == source.id
    assert store.aliases(HEAD) == source.aliases(HEAD)
    assert store.manifest(f"{HEAD}:prod") == source.manifest(f"{HEAD}:prod")
    assert store.index.search(Query()) == source.index.search(Query())
    assert [line.to_json() for line in store.index.listing()] == [
        line.to_json() for line in source.index.listing()
    ]
    seen = [
        [(entry.what, entry.version, entry.detail) for entry in log(each, HEAD)] for each in (store, source)
    ]
    assert sorted(seen[0]) == sorted(seen[1])
    assert store.policies.all() == source.policies.all()
    digest = str(source.resolve(HEAD).digest)
    assert store.signatures.of(digest) == source.signatures.of(digest)
    functions = [str(source.function_of(str(source.resolve(name).digest))) for name in (EXTRACTOR, HEAD)]
    assert [found.figures for found in store.evidence.results(*([name] for name in functions))] == [
        found.figures for found in source.evidence.results(*([name] for name in functions))
    ]
    weights = {blob_path(store.manifest(name).payload.file.blob) for name in (EXTRACTOR, f"{HEAD}@2.0.0")}
    assert not weights & content(store.root).keys()


def test_weights_are_fetched_when_they_are_loaded_also_by_other_processes(team: str, source: Store):
    store = pickle.loads(pickle.dumps(open_remote(team)))
    state = store.load_state(store.manifest(EXTRACTOR))
    assert torch.equal(state["weight"], source.load_state(source.manifest(EXTRACTOR))["weight"])


def test_each_use_follows_the_remote_whatever_changed(
    source: Store, memory: str, publish: Callable[..., Any]
):
    uploaded(source, memory)
    open_remote(memory)
    source.withdraw(HEAD, "2.0.0", "wrong data")
    source.set_alias(HEAD, "prod", None)
    source.set_policy("digits/*", None)
    publish(source, "new/part.extractor", 7)
    uploaded(source, memory)
    store = open_remote(memory)
    assert store.tombstone(HEAD, "2.0.0") is not None and store.aliases(HEAD) == source.aliases(HEAD)
    assert store.names() == source.names() and store.policies.all() == []
    publish(source, "new/part.extractor", 8, version="3.0.0")
    copy(source, "new/part.extractor@1.0.0", "old/part.extractor")
    drop(source, "new/part.extractor@1.0.0", "another number")
    uploaded(source, memory)
    assert list(map(str, open_remote(memory).versions("new/part.extractor"))) == ["3.0.0"]
    for name in (EXTRACTOR, HEAD):
        shutil.rmtree(source.root / "refs" / name)
    uploaded(source, memory)
    assert open_remote(memory).names() == ["new/part.extractor", "old/part.extractor"]


def test_another_registry_at_the_address_replaces_it(
    tmp_path: Path, source: Store, memory: str, publish: Callable[..., Any]
):
    uploaded(source, memory)
    open_remote(memory)
    other = Store.init(tmp_path / "other")
    publish(other, EXTRACTOR, 9)
    uploaded(other, memory)
    store = open_remote(memory)
    assert store.names() == [EXTRACTOR] and store.id == other.id
    assert store.resolve(EXTRACTOR) == other.resolve(EXTRACTOR)


def test_a_second_use_reads_no_document_again(team: str, monkeypatch: pytest.MonkeyPatch):
    open_remote(team)
    fault = Fault(monkeypatch)
    open_remote(team)
    assert not [path for operation, path in fault.calls if operation == "read" and path.startswith("blobs")]


def test_without_network_there_is_an_error_and_no_stale_answer(team: str, monkeypatch: pytest.MonkeyPatch):
    open_remote(team)
    fault = Fault(monkeypatch, at=0)
    with pytest.raises(EnvironmentFailure, match=team):
        open_remote(team)
    fault.mend()
    assert open_remote(team).names()


@pytest.mark.parametrize("at", [1, 3, 8, 15])
def test_an_interrupted_update_is_completed_by_the_next(
    source: Store, memory: str, at: int, monkeypatch: pytest.MonkeyPatch
):
    uploaded(source, memory)
    fault = Fault(monkeypatch, at=at)
    with pytest.raises(EnvironmentFailure):
        open_remote(memory)
    fault.mend()
    store = open_remote(memory)
    report = examine(store)
    assert report.sound, str(report)


def test_simultaneous_uses_succeed(team: str):
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda number: open_remote(team), range(4)))
    assert {tuple(store.names()) for store in stores} == {(EXTRACTOR, HEAD)}


def test_there_must_be_a_registry(memory: str, tmp_path: Path):
    with pytest.raises(LayoutError, match=memory):
        open_remote(memory)
    with pytest.raises(UsageError):
        open_remote(f"oci-layout://{tmp_path}")
    with pytest.raises(UsageError):
        open_remote("s3://KEY:SECRET@bucket/x")


def test_a_folder_with_a_name_is_an_ordinary_registry(source: Store):
    named.add("near", SavedRemote.of(str(source.root)))
    assert open_remote("near:").root == source.root
    assert ck.Registry("near:").store.root == source.root


# --- writing is refused

WRITES: dict[str, Callable[[Store, Any], object]] = {
    "publish": lambda store, key: store.publish("a/b", store.manifest(EXTRACTOR)),
    "put_blob": lambda store, key: store.put_blob(b"x"),
    "put_state": lambda store, key: store.put_state({"w": torch.zeros(2)}, parameters=2),
    "alias": lambda store, key: store.set_alias(HEAD, "prod", None),
    "withdraw": lambda store, key: store.withdraw(HEAD, "2.0.0", "wrong"),
    "policy": lambda store, key: store.set_policy("a/b", None),
    "settings": lambda store, key: ck.Registry(store).change_settings(protected_aliases=("prod",)),
    "purge": lambda store, key: ck.Registry(store).maintenance.purge().apply(),
    "drop": lambda store, key: drop(store, f"{HEAD}@2.0.0", "wrong"),
    "sign": lambda store, key: sign(store, EXTRACTOR, key),
    "gc": lambda store, key: plan(store, grace=timedelta(0), alone=True).apply(),
    "evidence": lambda store, key: store.evidence.record(
        f"value:sha256:{'0' * 64}", f"value:sha256:{'1' * 64}", {"a": 1}, b"{}\n"
    ),
    "pull": lambda store, key: ck.Registry(store).pull(store.root.parent / "other"),
    "copy": lambda store, key: ck.Registry(store).copy(EXTRACTOR, "other/name"),
    "repair": lambda store, key: ck.Registry(store).maintenance.repair(
        ck.Registry(store).maintenance.verify()
    ),
}


@pytest.mark.parametrize("act", WRITES)
def test_writing_is_refused_with_the_way_that_works(team: str, source: Store, key: ck.SigningKey, act: str):
    store = open_remote(team)
    push(source, store.root.parent / "other")
    before = content(store.root)
    with pytest.raises(UsageError, match=f"{team}.*[Cc]lone"):
        WRITES[act](store, key)
    assert content(store.root) == before


def test_a_copy_is_a_source_of_imports_and_pushes(tmp_path: Path, team: str, source: Store, store: Store):
    import_components(open_remote(team), store)
    push(open_remote(team), tmp_path / "goal").check()
    for target in (store, Store.open(tmp_path / "goal")):
        assert examine(target).sound and target.load_state(target.manifest(EXTRACTOR))


def test_in_python_by_address_and_by_name(team: str, monkeypatch: pytest.MonkeyPatch):
    named.add("team", SavedRemote.of(team))
    for registry in (ck.Registry(team), ck.Registry("team:"), ck.Registry.open("team:")):
        assert list(registry) == [EXTRACTOR, HEAD]
    monkeypatch.setenv("COMPATKIT_REGISTRY", "team:")
    assert list(ck.Registry()) == [EXTRACTOR, HEAD]
    with pytest.raises(UsageError):
        ck.Registry(team, create=True)


def test_signatures_are_required_of_a_remote_too(team: str, source: Store, key: ck.SigningKey):
    registry = ck.Registry.open(team, require_signature=[key.public.id])
    with pytest.raises(SignatureError):
        registry.load(EXTRACTOR)


# --- hostile remotes


@pytest.mark.parametrize(
    "path",
    ["evidence/../../x", "policies//x", "signatures/.x", "evidence/./x", "policies/a\\b", "/etc/passwd", "x"],
)
def test_paths_that_lead_elsewhere_are_none(path: str):
    assert not is_path(path) or path == "x"


def test_listings_that_lead_elsewhere_write_nothing_there(
    tmp_path: Path, team: str, monkeypatch: pytest.MonkeyPatch
):
    sizes = Files.sizes

    def hostile(self: Files, folder: str) -> dict[str, int]:
        evil = (
            "../../evil",
            "../../../../evil",
            "x/../../../evil",
            ".hidden",
            "a\\..\\evil",
            "nul\0",
            "x" * 300,
        )
        return {**sizes(self, folder), **{f"{folder}/{path}": 8 for path in evil}}

    monkeypatch.setattr(Files, "sizes", hostile)
    monkeypatch.setattr(
        Files,
        "read",
        lambda self, path, start, count, read=Files.read: read(self, path, start, count) or b"evil",
    )
    before = {path for path in tmp_path.rglob("*") if "mirrors" not in path.parts}
    store = open_remote(team)
    verify_remote(remote(team))
    after = {path for path in tmp_path.rglob("*") if "mirrors" not in path.parts}
    assert not [path for path in after - before if "evil" in path.name or path.name == ".hidden"]
    assert not [path for path in store.root.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]
    assert not list(store.root.parent.rglob("*evil*"))


def test_a_damaged_document_is_shown_as_damaged(team: str, source: Store):
    digest = str(source.resolve(f"{HEAD}@2.0.0").digest)
    path = f"{team}/{blob_path(digest)}"
    SYSTEM.pipe_file(path, SYSTEM.cat_file(path)[:-2] + b" \n")
    store = open_remote(team)
    assert store.manifest(EXTRACTOR)
    with pytest.raises(IntegrityError):
        store.manifest(f"{HEAD}@2.0.0")


def test_files_that_are_too_long_are_damaged_and_not_missing(team: str):
    SYSTEM.pipe_file(f"{team}/refs/{EXTRACTOR}/@versions/1.0.0", b"x" * 2**20)
    store = open_remote(team)
    with pytest.raises(IntegrityError):
        store.manifest(EXTRACTOR)


# --- verify


def remote(address: str) -> SavedRemote:
    return SavedRemote.of(address)


def test_a_whole_remote_is_sound_and_its_weights_are_not_read(source: Store, memory: str, manifest_of: Any):
    large = {"weight": torch.arange(2**20, dtype=torch.float32)}
    source.publish("big/part.extractor", manifest_of(source.put_state(large, parameters=2**20)))
    push(source, memory)
    report = verify_remote(remote(memory))
    assert report.sound and report.address == memory and report.to_json()["root"] == memory
    assert report.count("warning") == 0, str(report)
    assert verify_remote(remote(memory), download=True).sound
    assert not list(cache.above().glob("remote-*"))


def test_long_headers_and_documents_are_read_and_tensors_are_not(
    source: Store, memory: str, manifest_of: Any, monkeypatch: pytest.MonkeyPatch
):
    state = {f"layers.{number}.weight": torch.ones(1000) for number in range(2000)}
    run = source.put_blob(dumps({"log": ["x" * 100] * 2000}))
    training = {"run": {"blob": run.blob, "bytes": run.bytes}}
    source.publish(
        "big/part.extractor", manifest_of(source.put_state(state, parameters=2000000), training=training)
    )
    push(source, memory)
    count = 0
    read = Files.read

    def counted(self: Files, path: str, start: int, size: int) -> bytes | None:
        nonlocal count
        data = read(self, path, start, size)
        count += len(data or b"")
        return data

    monkeypatch.setattr(Files, "read", counted)
    report = verify_remote(remote(memory))
    assert report.sound and report.count("warning") == 0, str(report)
    assert 200_000 < count < 1_000_000 < source.manifest("big/part.extractor").payload.file.bytes


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("gone", "blob-missing"),
        ("short", "blob-size"),
        ("header", "payload-header"),
        ("manifest", "blob-digest"),
        ("version", "version-content"),
        ("tombstone", "tombstone-missing"),
        ("result", "result-missing"),
        ("marker", "marker-missing"),
    ],
)
def test_verify_finds_what_is_wrong_without_weights(team: str, source: Store, damage: str, code: str):
    weights = f"{team}/{blob_path(source.manifest(EXTRACTOR).payload.file.blob)}"
    manifest = f"{team}/{blob_path(str(source.resolve(EXTRACTOR).digest))}"
    data = SYSTEM.cat_file(weights)
    if damage == "gone":
        SYSTEM.rm(weights)
    elif damage == "short":
        SYSTEM.pipe_file(weights, data[:-1])
    elif damage == "header":
        SYSTEM.pipe_file(weights, b"\xff" * 8 + data[8:])
    elif damage == "manifest":
        SYSTEM.pipe_file(manifest, SYSTEM.cat_file(manifest)[:-2] + b" \n")
    elif damage == "version":
        SYSTEM.pipe_file(f"{team}/refs/{EXTRACTOR}/@versions/1.0.0", b"nonsense\n")
    elif damage == "tombstone":
        SYSTEM.rm(f"{team}/refs/{HEAD}/@tombstones", recursive=True)
    elif damage == "result":
        (path,) = SYSTEM.find(f"{team}/evidence")
        SYSTEM.rm(f"{team}/{blob_path('sha256:' + path.rpartition('/')[2])}")
    else:
        SYSTEM.rm(f"{team}/compatkit.json")
    report = verify_remote(remote(team))
    assert code in {fault.code for fault in report.faults if fault.severity == "error"}, str(report)
    assert not any(str(cache.above()) in str(fault.to_json()) for fault in report.faults)


def test_changed_weights_are_found_by_reading_them(source: Store, memory: str, manifest_of: Any):
    state = {"weight": torch.arange(2**19, dtype=torch.float32)}
    source.publish("big/part.extractor", manifest_of(source.put_state(state, parameters=2**19)))
    push(source, memory)
    path = f"{memory}/{blob_path(source.manifest('big/part.extractor').payload.file.blob)}"
    SYSTEM.pipe_file(path, SYSTEM.cat_file(path)[:-1] + b"\x01")
    assert verify_remote(remote(memory)).sound
    report = verify_remote(remote(memory), download=True)
    assert {fault.code for fault in report.faults if fault.severity == "error"} == {"blob-digest"}


def test_verify_takes_patterns_and_needs_a_registry(team: str, memory: str):
    assert verify_remote(remote(team), patterns=[EXTRACTOR]).versions == 1
    with pytest.raises(NotFound):
        verify_remote(remote(team), patterns=["no/name"])
    with pytest.raises(LayoutError):
        verify_remote(remote(f"{memory}-nothing"))
    assert ck.Registry(team).maintenance.verify().address == team
