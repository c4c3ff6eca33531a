"""Clones without weights: each weight is fetched from the remote, verified and kept when it is first needed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from far import EXTRACTOR, HEAD, Fault, content

import compatkit as ck
from compatkit.contracts.manifest import Parent
from compatkit.errors import EnvironmentFailure, IntegrityError, UsageError
from compatkit.foundation.configuration import configuration
from compatkit.registry import disk as durable
from compatkit.registry.blobs import blob_path
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.pushpull import clone, import_components, pull, push
from compatkit.registry.remotes.sources import sources
from compatkit.registry.second_names import copy
from compatkit.registry.store import Store
from compatkit.registry.usage import usage

LEFT = TransferSettings(weights=False)


def recorded(store: Store) -> list[SavedRemote]:
    return sources(store.root, store.id)


def weights_of(store: Store, reference: str = EXTRACTOR) -> str:
    return store.manifest(reference).payload.file.blob


def all_weights(store: Store) -> set[str]:
    versions = (store.references.digest(*each) for each in store.references.each())
    return {store.manifest(str(digest)).payload.file.blob for digest in versions}


@pytest.fixture(params=["memory", "folder"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, source: Store) -> str:
    """A remote with everything of ``source``: an object store, or a folder."""
    address = request.getfixturevalue("memory") if request.param == "memory" else str(tmp_path / "far")
    push(source, address)
    return address


@pytest.fixture
def far(tmp_path: Path, source: Store) -> Path:
    push(source, tmp_path / "far")
    return tmp_path / "far"


@pytest.fixture
def mine(tmp_path: Path, far: Path) -> Store:
    """A clone without weights."""
    return clone(far, tmp_path / "mine", settings=LEFT)[0]


def test_a_clone_has_everything_but_the_weights(tmp_path: Path, source: Store, remote: str):
    store, report = clone(remote, tmp_path / "mine", settings=LEFT)
    expected = content(source.root)
    for digest in all_weights(source):
        assert expected.pop(blob_path(digest))
    assert content(store.root) == expected and not report.refused
    assert report.bytes == sum(len(data) for path, data in expected.items() if path.startswith("blobs"))


def test_weights_are_fetched_verified_and_kept_when_they_are_loaded(
    tmp_path: Path, source: Store, remote: str
):
    store = clone(remote, tmp_path / "mine", settings=LEFT)[0]
    state = store.load_state(store.manifest(EXTRACTOR))
    assert torch.equal(state["weight"], source.load_state(source.manifest(EXTRACTOR))["weight"])
    assert (
        content(store.root)[blob_path(weights_of(store))]
        == content(source.root)[blob_path(weights_of(store))]
    )
    assert not list((store.root / "tmp").iterdir())
    shutil.rmtree(tmp_path / "far", ignore_errors=True)
    fsspec.filesystem("memory").rm("/remotes", recursive=True) if remote.startswith("memory") else None
    Store.open(store.root).load_state(store.manifest(EXTRACTOR))  # without the remote


def test_nothing_in_a_registry_brings_about_access(tmp_path: Path, mine: Store):
    (record,) = (configuration() / "weights").rglob("*.json")
    assert not [
        path
        for path in mine.root.rglob("*")
        if path.is_file() and bytes(tmp_path / "far") in path.read_bytes()
    ]
    moved = mine.root.rename(
        tmp_path / "moved"
    )  # what stands in the configuration is about the folder ``mine``
    shutil.copytree(record.parent, moved / record.parent.name)
    with pytest.raises(IntegrityError):
        store = Store.open(moved)
        store.load_state(store.manifest(EXTRACTOR))
    pull(store, tmp_path / "far", settings=LEFT)
    assert store.load_state(store.manifest(EXTRACTOR))


def test_an_ordinary_registry_asks_nobody(source: Store, memory: str, monkeypatch: pytest.MonkeyPatch):
    push(source, memory)
    clone(memory, source.root.parent / "other")
    assert recorded(source) == [] and not (configuration() / "weights").exists()
    fault = Fault(monkeypatch)
    source.objects.path(weights_of(source)).unlink()
    with pytest.raises(IntegrityError):
        source.load_state(source.manifest(EXTRACTOR))
    assert fault.calls == []


# --- when it fails


def test_a_remote_that_is_away_is_named_with_the_blob_and_the_command(
    tmp_path: Path, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch
):
    push(source, memory)
    store = clone(memory, tmp_path / "mine", settings=LEFT)[0]
    fault = Fault(monkeypatch, at=0)
    with pytest.raises(EnvironmentFailure) as error:
        store.load_state(store.manifest(EXTRACTOR))
    for word in (weights_of(store), memory, f"compatkit --registry {store.root} pull {memory}"):
        assert word in str(error.value)
    fault.mend()
    assert store.load_state(store.manifest(EXTRACTOR))


def test_a_remote_without_the_weights_is_an_error(source: Store, far: Path, mine: Store):
    Store.open(far).objects.path(weights_of(source)).unlink()
    with pytest.raises(IntegrityError, match=str(far)):
        mine.load_state(mine.manifest(EXTRACTOR))
    far.rename(far.with_name("elsewhere"))
    with pytest.raises(UsageError, match=str(far)):
        mine.load_state(mine.manifest(EXTRACTOR))


@pytest.mark.parametrize("change", ["bytes", "shorter", "longer", "other weights"])
def test_other_bytes_get_no_name(source: Store, far: Path, mine: Store, change: str):
    path = Store.open(far).objects.path(weights_of(source))
    data = path.read_bytes()
    path.chmod(0o644)
    other = Store.open(far).objects.path(weights_of(source, f"{HEAD}@2.0.0")).read_bytes()
    path.write_bytes(
        {"bytes": data[:-1] + b"\x99", "shorter": data[:-1], "longer": data + b"x"}.get(change, other)
    )
    before = content(mine.root)
    with pytest.raises(IntegrityError):
        mine.load_state(mine.manifest(EXTRACTOR))
    assert content(mine.root) == before and not list((mine.root / "tmp").iterdir())


def test_weights_that_are_not_those_of_the_manifest_get_no_name(
    tmp_path: Path, store: Store, manifest_of: Any, put: Any
):
    import attrs

    payload = put(store, 1)
    lie = attrs.evolve(payload, tensors=f"tensors:sha256:{'0' * 64}")
    manifest = manifest_of(payload)
    reference = store.publish("a/b", manifest)
    mine = clone(store.root, tmp_path / "mine", settings=LEFT)[0]
    with pytest.raises(IntegrityError):
        mine.load_state(lie)
    assert mine.objects.size(payload.file.blob) is None and reference.name == "a/b"


def test_a_full_disk_leaves_nothing(mine: Store, monkeypatch: pytest.MonkeyPatch):
    def full(operation: str, path: Path) -> None:
        if operation == "sync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    before = content(mine.root)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", full)
        with pytest.raises(EnvironmentFailure, match="ENOSPC"):
            mine.load_state(mine.manifest(EXTRACTOR))
    assert content(mine.root) == before and not list((mine.root / "tmp").iterdir())
    assert mine.load_state(mine.manifest(EXTRACTOR))


def test_damaged_weights_are_not_replaced_silently(mine: Store, far: Path):
    mine.load_state(mine.manifest(EXTRACTOR))
    path = mine.objects.path(weights_of(mine))
    path.chmod(0o644)
    path.write_bytes(b"\x00" + path.read_bytes()[1:])
    for _ in range(2):
        with pytest.raises(IntegrityError):
            Store.open(mine.root).load_state(mine.manifest(EXTRACTOR))
    report = examine(mine)
    assert [fault.code for fault in report.faults if fault.severity == "error"] == ["blob-missing"]
    pull(mine, far, [EXTRACTOR])
    assert mine.load_state(mine.manifest(EXTRACTOR)) and examine(mine).sound


def test_registries_that_name_each_other_end(tmp_path: Path, source: Store, mine: Store, far: Path):
    second = clone(mine.root, tmp_path / "second", settings=LEFT)[0]
    pull(mine, second.root, settings=LEFT)
    shutil.rmtree(far)
    with pytest.raises((IntegrityError, UsageError)):
        second.load_state(second.manifest(EXTRACTOR))


def test_a_chain_of_clones_fetches_through(tmp_path: Path, mine: Store):
    second = clone(mine.root, tmp_path / "second", settings=LEFT)[0]
    assert second.load_state(second.manifest(EXTRACTOR))
    assert mine.objects.size(weights_of(mine)) is not None


def test_a_further_remote_is_asked_too(
    tmp_path: Path, source: Store, mine: Store, publish: Callable[..., Any]
):
    other = Store.init(tmp_path / "other")
    publish(other, "more/part.extractor", 9)
    pull(mine, other.root, settings=LEFT)
    assert len(recorded(mine)) == 2
    for reference in ("more/part.extractor", EXTRACTOR):
        assert mine.load_state(mine.manifest(reference))


# --- what is done with such a clone


def test_verify_tells_what_was_left_from_damage(mine: Store, source: Store):
    report = examine(mine)
    assert report.sound and report.count("warning") == 0
    (left,) = [fault for fault in report.faults if fault.code == "weights-remote"]
    assert f"{len(all_weights(source))} files" in left.what
    mine.objects.path(str(mine.resolve(EXTRACTOR).digest)).unlink()
    assert "manifest-missing" in {fault.code for fault in examine(mine).faults}


def test_weights_that_are_lost_count_as_damage_without_a_remote(source: Store):
    source.objects.path(weights_of(source)).unlink()
    assert "blob-missing" in {fault.code for fault in examine(source).faults}


def test_gc_and_du_count_what_is_here(mine: Store):
    collected = plan(mine, grace=timedelta(0), alone=True)
    assert not collected.blobs and not collected.trash
    before = usage(mine.references, mine.objects).blobs
    mine.load_state(mine.manifest(EXTRACTOR))
    assert usage(mine.references, mine.objects).blobs.files == before.files + 1
    plan(mine, grace=timedelta(0), alone=True).apply()
    assert mine.objects.size(weights_of(mine)) is not None


def test_a_child_is_published_and_pushed_without_fetching(
    mine: Store, far: Path, publish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    parent = mine.resolve(EXTRACTOR)
    publish(mine, "new/part.head", 8, kind="head", parents=(Parent("trained_with", str(parent.digest)),))
    assert push(mine, far).check().created == [mine.resolve("new/part.head@1.0.0")]
    assert mine.objects.size(weights_of(mine)) is None and examine(Store.open(far)).sound


def test_a_child_is_pushed_to_an_object_store_without_fetching(
    tmp_path: Path, source: Store, memory: str, publish: Callable[..., Any]
):
    push(source, memory)
    mine = clone(memory, tmp_path / "mine", settings=LEFT)[0]
    parent = mine.resolve(EXTRACTOR)
    publish(mine, "new/part.head", 8, kind="head", parents=(Parent("trained_with", str(parent.digest)),))
    assert len(push(mine, memory).check().created) == 1
    assert mine.objects.size(weights_of(mine)) is None


@pytest.mark.parametrize("way", ["folder", "memory", "layout", "import"])
def test_a_push_elsewhere_fetches_what_is_missing(
    tmp_path: Path, mine: Store, source: Store, memory: str, way: str
):
    goal = {
        "folder": str(tmp_path / "goal"),
        "memory": memory,
        "layout": f"oci-layout://{tmp_path / 'layout'}",
    }
    target = Store.init(tmp_path / "target")
    if way == "import":
        import_components(mine, target)
    else:
        push(mine, goal[way]).check()
        pull(target, goal[way]).check()
    assert examine(target).sound
    target.load_state(target.manifest(EXTRACTOR))


def test_a_copy_under_another_name_fetches_its_weights(mine: Store):
    copy(mine, EXTRACTOR, "other/part.extractor")
    assert mine.objects.size(weights_of(mine)) is not None and examine(mine).sound


def test_a_pull_brings_all_weights_but_those_of_withdrawn_versions_and_one_without_them_none(
    mine: Store, far: Path, source: Store
):
    pull(mine, far, settings=LEFT)
    assert not any(mine.objects.size(digest) for digest in all_weights(source))
    pull(mine, far)
    withdrawn = {
        weights_of(source, f"{name}@{source.references.digest(name, version)}")
        for name, version in source.references.each()
        if version in source.references.withdrawn(name)
    }
    assert len(withdrawn) == 1
    assert {digest for digest in all_weights(source) if mine.objects.size(digest) is None} == withdrawn


def test_an_interrupted_clone_goes_on(
    tmp_path: Path, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch
):
    push(source, memory)
    fault = Fault(monkeypatch, at=8)
    with pytest.raises(EnvironmentFailure):
        clone(memory, tmp_path / "mine", settings=LEFT)
    fault.mend()
    store = Store.open(tmp_path / "mine")
    pull(store, memory, settings=LEFT)
    assert store.load_state(store.manifest(EXTRACTOR)) and len(recorded(store)) == 1


def test_remotes_that_cannot_be_remembered_are_refused_first(tmp_path: Path, source: Store, memory: str):
    push(source, f"oci-layout://{tmp_path / 'layout'}")
    for remote, options in (
        (f"oci-layout://{tmp_path / 'layout'}", None),
        ("s3://KEY:SECRET@bucket/x", None),
        ("s3://bucket/x", {"secret": "abc"}),
    ):
        with pytest.raises(UsageError):
            clone(remote, tmp_path / "mine", options=options, settings=LEFT)
        assert not (tmp_path / "mine").exists()


def test_in_python_and_by_name(tmp_path: Path, source: Store, memory: str):
    from compatkit.registry.remotes import named

    push(source, memory)
    named.add("team", named.SavedRemote.of(memory))
    registry = ck.Registry.clone("team:", tmp_path / "mine", weights=False)
    named.remove("team")
    assert registry.store.load_state(registry.store.manifest(EXTRACTOR))
    assert registry.pull(memory, weights=False).blobs == 0
    assert registry.store.objects.size(weights_of(registry.store, f"{HEAD}@2.0.0")) is None


# --- many processes

SCRIPT = """
import sys, time
from compatkit.registry.store import Store
store = Store.open(sys.argv[1])
manifest = store.manifest(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
store.load_state(manifest)
print("loaded", flush=True)
"""


def started(store: Store) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(store.root), EXTRACTOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def large(tmp_path: Path, store: Store, manifest_of: Callable[..., Any]) -> Store:
    """A clone without the 64 MB of weights of its extractor."""
    state = {"weight": torch.arange(2**24, dtype=torch.float32)}
    store.publish(EXTRACTOR, manifest_of(store.put_state(state, parameters=2**24)))
    return clone(store.root, tmp_path / "mine", settings=LEFT)[0]


def test_processes_that_load_the_same_weights_at_once_all_succeed(large: Store):
    processes = [started(large) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == ["loaded\n"] * 2
    assert examine(large).sound and not list((large.root / "tmp").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_process_that_is_killed_half_way_leaves_nothing_under_a_name(large: Store):
    path = large.objects.path(weights_of(large))
    for wait in (0.01, 0.04):
        process = started(large)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if path.exists():
            break
        assert examine(large).sound
    assert large.load_state(large.manifest(EXTRACTOR))["weight"][-1] == 2**24 - 1
    assert examine(large).sound
