"""Who publishes a number where two do it at once: what a store promises, how that is found out, and what is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from far import HEAD, Fault

from compatkit.errors import EnvironmentFailure, PluginError, VersionExists
from compatkit.registry.layout import MARKER
from compatkit.registry.remotes import files
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.objectstore import ObjectStore
from compatkit.registry.remotes.pushpull import push
from compatkit.registry.store import Store
from compatkit_plugins.remotes import _filesystem
from compatkit_plugins.remotes._filesystem import FileSystemStore

Publish = Callable[..., Any]


class Shelf(ObjectStore):
    """Files in memory, behind a server that treats conditional writes in one of several ways.

    Attributes:
        how: ``honours`` the condition, ``ignores`` it, ``rejects`` it, or ``protects`` what exists.
        files: Contents by path.
        creations: Paths of conditional writes.
    """

    def __init__(self, how: str = "honours") -> None:
        self.how, self.files, self.creations = how, dict[str, bytes](), list[str]()

    def sizes(self, folder: str) -> dict[str, int]:
        return {path: len(data) for path, data in dict(self.files).items()}

    def size(self, path: str) -> int | None:
        return len(self.files[path]) if path in self.files else None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        return self.files[path][start : start + count] if path in self.files else None

    def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def create(self, path: str, data: bytes) -> bool | None:
        self.creations.append(path)
        if self.how == "rejects":
            return None
        if self.how == "protects" and path in self.files:
            raise PermissionError("nobody may overwrite anything")
        if self.how == "ignores":
            self.files[path] = data
            return True
        if path in self.files:
            return False
        self.files[path] = data
        return True

    def remove(self, path: str) -> None:
        self.files.pop(path, None)


def reach(store: ObjectStore) -> Files:
    return Files(store, "lab://shelf")


@pytest.mark.parametrize(("how", "notes"), [("honours", 0), ("ignores", 1), ("rejects", 1), ("protects", 0)])
def test_a_push_finds_out_what_the_store_promises_and_says_so(
    source: Store, publish: Publish, how: str, notes: int
):
    shelf = Shelf(how)
    report = push(source, reach(shelf)).check()
    assert len(report.notes) == notes and shelf.creations.count(MARKER) == 2
    assert all("two simultaneous pushes" in note and "lab://shelf" in note for note in report.notes)
    assert report.to_json()["notes"] == report.notes
    marker = shelf.files[MARKER]
    shelf.creations.clear()
    assert push(source, reach(shelf)).check().created == [] and shelf.creations == [], "nothing is created"
    publish(source, "news", 9)
    assert len(push(source, reach(shelf)).check().notes) == notes
    assert (
        shelf.creations[0] == MARKER and shelf.creations.count(MARKER) == 1 and shelf.files[MARKER] == marker
    )


@pytest.mark.parametrize("promise", [True, False])
def test_a_store_that_knows_what_it_promises_is_not_tried(source: Store, promise: bool):
    shelf = Shelf()
    shelf.exclusive = promise
    report = push(source, reach(shelf)).check()
    assert shelf.creations.count(MARKER) == 1 and bool(report.notes) is not promise


@pytest.mark.parametrize("how", ["honours", "ignores", "rejects"])
def test_a_number_that_was_taken_a_moment_ago_is_never_overwritten(
    tmp_path: Path, source: Store, publish: Publish, how: str, monkeypatch: pytest.MonkeyPatch
):
    """The rival is through before the version's file is looked for; after that, only a condition helps."""
    rival, shelf = Store.init(tmp_path / "rival"), Shelf(how)
    published = publish(rival, HEAD, 50, version="2.0.0")
    path = f"refs/{HEAD}/@versions/2.0.0"
    rivals = iter([lambda: push(rival, reach(shelf)).check()])

    def step(operation: str, at: str) -> None:
        if at == path and operation == ("create" if how == "honours" else "size"):
            next(rivals, lambda: None)()

    monkeypatch.setattr(files, "step", step)
    report = push(source, reach(shelf))
    assert [(item.what, type(item.error)) for item in report.refused] == [(f"{HEAD}@2.0.0", VersionExists)]
    assert published.digest.encode() in shelf.files[path]


# --- what servers answer


class Answer(Exception):
    """An error of a server, as botocore has it."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class System:
    """A file system that answers conditional writes one after the other."""

    def __init__(self, *answers: int, exists: bool = False) -> None:
        self.answers, self.exists, self.asked = iter(answers), exists, 0

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        self.asked += 1
        if status := next(self.answers, 0):
            error = OSError(22, None)
            error.__cause__ = Answer(status)
            raise error

    def info(self, path: str) -> dict[str, Any]:
        if not self.exists:
            raise FileNotFoundError(path)
        return {"type": "file", "size": 1}


@pytest.mark.parametrize(
    ("answers", "exists", "expected", "asked"),
    [
        ((), False, True, 1),
        ((412,), True, False, 1),  # Ceph, which does not name the condition
        ((409, 0), False, True, 2),  # AWS: another writer was there at the same time, and failed
        ((409, 412), False, False, 2),
        ((409,), True, False, 1),
        ((501,), False, None, 1),
        ((400,), False, None, 1),
    ],
)
def test_a_lost_race_is_not_taken_for_a_fault_of_the_network(
    answers: tuple[int, ...],
    exists: bool,
    expected: bool | None,
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(_filesystem, "PAUSE", 0.0)
    system: Any = System(*answers, exists=exists)
    assert FileSystemStore(system, "bucket").create("refs/a/@versions/1.0.0", b"x") is expected
    assert system.asked == asked


@pytest.mark.parametrize("answers", [(403,), (500,), (409,) * _filesystem.ATTEMPTS])
def test_other_answers_are_faults(answers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_filesystem, "PAUSE", 0.0)
    system: Any = System(*answers)
    with pytest.raises(EnvironmentFailure):
        reach(FileSystemStore(system, "bucket")).create("refs/a/@versions/1.0.0", b"x")
    assert system.asked == len(answers)


# --- several calls at a time


class Counting(Shelf):
    """A store that counts the calls that run at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.most, self.lock = 0, 0, threading.Lock()

    def read(self, path: str, start: int, count: int) -> bytes | None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.002)
        with self.lock:
            self.running -= 1
        return super().read(path, start, count)


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_store_is_called_as_often_at_a_time_as_it_allows(source: Store, parallel: int):
    store = Counting()
    store.parallel = parallel
    remote = reach(store)
    push(source, remote).check()
    assert len(list(remote.in_parallel(lambda path: remote.read(path, 0, 99), sorted(store.files) * 3))) > 20
    assert store.most == parallel


def test_a_call_that_fails_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch):
    store = Shelf()
    store.parallel = 1
    remote, fault = reach(store), Fault(monkeypatch, at=0)
    for _ in range(3):
        with pytest.raises(EnvironmentFailure):
            remote.read("a", 0, 1)
    fault.mend()
    assert remote.read("a", 0, 1) is None


@pytest.fixture
def misnumbered() -> Iterator[Callable[[Any], Shelf]]:
    def make(parallel: Any) -> Shelf:
        shelf = Shelf()
        shelf.parallel = parallel
        return shelf

    yield make


@pytest.mark.parametrize("parallel", [0, -1, 2.5, "4", True, None])
def test_a_number_of_calls_that_is_none_is_a_fault_of_the_plugin(
    source: Store, misnumbered: Callable[[Any], Shelf], parallel: Any, monkeypatch: pytest.MonkeyPatch
):
    from compatkit_plugins.remotes import fsspec as plugin

    monkeypatch.setattr(plugin, "open_system", lambda address, options: (None, "x"))
    monkeypatch.setattr(plugin, "FileSystemStore", lambda *arguments: misnumbered(parallel))
    with pytest.raises(PluginError, match="parallel"):
        push(source, "memory://x")
