"""What is around the files: names below names, locks that are stale or do nothing, processes that load data."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
from hostile import CELL, HEAD, NAME, States, build, manifest_of, read_everything, weights

from compatkit.contracts.manifest import function_digest
from compatkit.errors import CompatkitError
from compatkit.evaluation.records import record
from compatkit.registry.store import Store


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("template") / "parts").root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(template, tmp_path / "parts"))


def publish(store: Store, name: str, value: int = 5) -> str:
    data = weights(value)
    return str(store.publish(name, manifest_of(store.put_blob(data), data)))


@pytest.mark.case("B5")
def test_names_may_be_folders_of_other_names(store: Store):
    for value, name in enumerate(("team", "team/one/more", "team/one-more", "tea")):
        assert publish(store, name, value + 10) == f"{name}@1.0.0"
    store.withdraw("team", "1.0.0", "too old")
    store.set_alias("team/one/more", "prod", "1.0.0")
    again = Store.open(store.root)
    assert again.names() == ["tea", "team", "team/one", "team/one-more", "team/one/more"]
    assert str(again.resolve("team/one")) == f"{NAME}@2.0.0" and again.aliases(NAME) == {"prod": "2.0.0"}
    assert [str(entry) for entry in again.select("team/one/*")] == ["team/one/more@1.0.0"]
    assert again.versions("team") == []


@pytest.mark.case("B5", "C6")
def test_a_file_where_a_name_needs_a_folder_is_one_clear_error(store: Store):
    (store.root / "refs" / "stray").write_bytes(b"x")
    for name in ("stray", "stray/below"):
        with pytest.raises(CompatkitError, match=r"refs/stray is no folder|a file"):
            publish(store, name)
    assert store.names() == [NAME]
    assert publish(store, "other") == "other@1.0.0"


def change_everything(store: Store) -> None:
    """Publish, move an alias, withdraw, record: each as if nobody else were there."""
    assert publish(store, "team/two") == "team/two@1.0.0"
    store.set_alias("team/two", "best", "1.0.0", expected=None)
    function = function_digest(store.manifest("team/two"))
    edge = store.evidence.add(function, HEAD, **record(CELL))
    assert [result.digest for result in store.evidence.results([function], [HEAD])] == [edge.blob]
    assert read_everything(store.root) == []
    store.withdraw("team/two", "1.0.0", "tried only")
    assert Store.open(store.root).versions("team/two") == []


@pytest.mark.case("D7")
@pytest.mark.parametrize(
    "locks", ["stale", "of a dead process", "a file", "missing", "read-only", "a folder each"]
)
def test_no_lock_is_waited_for(store: Store, locks: str):
    folder = store.root / "locks"
    if locks == "a file":
        folder.rmdir()
        folder.write_bytes(b"")
    elif locks == "missing":
        folder.rmdir()
    elif locks == "read-only":
        folder.chmod(0o500)
    else:
        for name in ("gc.lock", "publish.lock", "team-two.lock", "index.lock"):
            if locks == "a folder each":
                (folder / name).mkdir()
            else:
                (folder / name).write_text(f"{2**22 - 1} {socket.gethostname()}" if "dead" in locks else "")
    change_everything(store)


@pytest.mark.case("C4", "D7")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("flock", ["does nothing", "is not there", "says that it is taken"])
def test_a_lock_that_does_not_work_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, flock: str):
    import fcntl

    def answer(*_: object) -> None:
        if flock == "is not there":
            raise OSError(38, "Function not implemented")
        if flock == "says that it is taken":
            raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "flock", answer)
    monkeypatch.setattr(fcntl, "lockf", answer)
    change_everything(store)


@pytest.mark.case("C4")
def test_no_symbolic_link_is_ever_made(store: Store, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "symlink", refuse)
    change_everything(store)
    assert not any(path.is_symlink() for path in store.root.rglob("*"))


def open_files() -> list[str]:
    """Return what this process has open, without the index that a store keeps open."""
    folder = Path("/proc/self/fd")
    links = list(folder.iterdir()) if folder.is_dir() else []
    files = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(file for file in files if not file.endswith("index.sqlite"))


@pytest.mark.case("C3")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit to set")
def test_too_many_open_files_are_told_and_nothing_is_left_open(store: Store):
    import resource

    gc.collect()  # closes what earlier tests left behind
    opened = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        with pytest.raises(CompatkitError, match="too many files open") as caught:
            publish(store, "team/two")
        assert caught.value.exit_code == 4
        with pytest.raises(CompatkitError, match="too many files open"):
            store.manifest(NAME)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read_everything(store.root) == [] and publish(store, "team/two") == "team/two@1.0.0"
    kept_open = [path for path in open_files() if not path.endswith("memory.sqlite")]  # the cache stays open
    assert len(kept_open) == len([path for path in opened if not path.endswith("memory.sqlite")])


@pytest.mark.case("D8")
def test_a_store_that_is_handed_to_another_process_opens_the_registry_there(store: Store):
    again = pickle.loads(pickle.dumps(store))
    assert again.root == store.root and again.id == store.id and again.manifest(NAME) == store.manifest(NAME)


@pytest.mark.case("D6", "D8")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loaders_read_from_a_registry_in_processes_of_their_own(store: Store, start: str):
    first = store.load_state(store.manifest(NAME))  # the parent has read, hashed and remembered before
    loader = torch.utils.data.DataLoader(
        States(store, 6), batch_size=None, num_workers=2, multiprocessing_context=start
    )
    result = list(loader)
    assert [number for number, _ in result] == list(range(6))
    assert all(torch.equal(state[name], first[name]) for _, state in result for name in first)
