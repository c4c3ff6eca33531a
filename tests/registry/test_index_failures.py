"""Whatever happens to the index's file, every answer is right, or says what to do; the file is made anew if damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import Hand, part, tagged

from compatkit.errors import EnvironmentFailure
from compatkit.registry.index import lookup, stamps
from compatkit.registry.index.lookup import Index

pytestmark = pytest.mark.case("E3")
SCRIPT = Path(__file__).parent / "scripts" / "index_use.py"


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """A registry of three components whose times can be trusted."""
    monkeypatch.setattr(stamps, "SETTLED_NS", 0)
    monkeypatch.setattr(lookup, "TIMEOUT_SECONDS", 0.05)
    made = Hand.init(tmp_path / "parts")
    for name in ("a", "b", "c/d"):
        made.publish(name, "1.0.0", made.put(part(about=tagged(of=name))))
    return made


@pytest.fixture
def index(hand: Hand) -> Index:
    """What a new process would use, with a file that is there already."""
    Index.of(hand.root, "id").refresh()
    return Index.of(hand.root, "id")


def names(index: Index) -> list[str]:
    return [line.name for line in index.listing()]


def answers(index: Index) -> list[Any]:
    return [index.search(), index.listing(), sorted(index.roots()), index.count(kind="extractor")]


@pytest.fixture
def right(hand: Hand) -> list[Any]:
    """The answers of an index that nothing ever happened to."""
    return answers(Index.of(hand.root, "other"))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "a page": lambda data: data[:4096],
    "no database": lambda data: b"this is no database\n" * 500,
    "zeros": lambda data: bytes(len(data)),
    "head": lambda data: b"x" * 100 + data[100:],
    "schema": lambda data: data[:200] + b"\xff" * 2000 + data[2200:],
    "later pages": lambda data: data[:8192] + b"\x5a" * (len(data) - 8192),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_replaced(index: Index, right: list[Any], damage: str) -> None:
    index.path.write_bytes(DAMAGE[damage](index.path.read_bytes()))
    assert answers(index) == right
    assert answers(Index.of(index.references.root, "id")) == right


@pytest.mark.parametrize("seed", range(20))
def test_a_file_with_flipped_bytes_is_rebuilt(index: Index, seed: int) -> None:
    data = index.path.read_bytes()
    for step in range(7):
        data = flipped(data, (seed * 7919 + step * 10_007 + 100) % len(data))
    index.path.write_bytes(data)
    index.rebuild()
    assert names(index) == ["a", "b", "c/d"]


def test_a_file_of_another_schema_is_made_anew(index: Index, right: list[Any]) -> None:
    connection = sqlite3.connect(index.path)
    connection.executescript("PRAGMA user_version = 4; DROP TABLE terms; CREATE TABLE folders (x)")
    connection.close()
    assert answers(index) == right


def test_a_file_that_vanished_comes_back(hand: Hand, index: Index) -> None:
    assert names(index) == ["a", "b", "c/d"]
    shutil.rmtree(index.path.parent)
    assert names(Index.of(hand.root, "id")) == ["a", "b", "c/d"]
    hand.publish("e", "1.0.0", hand.put(part()))
    assert names(index) == ["a", "b", "c/d", "e"]  # the file that is open has no name any more


@pytest.mark.case("D7")
def test_a_locked_file_is_left_alone_and_waited_for(hand: Hand, index: Index, right: list[Any]) -> None:
    holder = sqlite3.connect(index.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert answers(index) == right  # readers are not in the way of a writer that did not commit
    hand.publish("e", "1.0.0", hand.put(part()))
    with pytest.raises(EnvironmentFailure, match=r"locked.*COMPATKIT_CACHE"):
        index.listing()
    holder.execute("ROLLBACK")
    holder.close()
    assert names(index) == ["a", "b", "c/d", "e"]


def test_a_file_that_may_not_be_written_is_read(
    hand: Hand, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def read_only(target: Path, **settings: Any) -> sqlite3.Connection:
        return connect(f"file:{target}?mode=ro", **(settings | {"uri": True}))

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert names(index) == ["a", "b", "c/d"]
    hand.publish("e", "1.0.0", hand.put(part()))
    with pytest.raises(EnvironmentFailure, match="readonly"):
        index.listing()


@pytest.mark.parametrize("kind", ["file", "dangling link", "folder"])
def test_a_cache_folder_that_cannot_be_used_is_named_and_another_can_be(
    hand: Hand, right: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "odd"
    monkeypatch.setenv("COMPATKIT_CACHE", str(place))
    if kind == "file":
        place.write_text("no folder")
    elif kind == "folder":  # where the file should be
        Index.of(hand.root, "id").path.mkdir(parents=True)
    else:
        place.symlink_to(tmp_path / "nowhere" / "else")
    with pytest.raises(EnvironmentFailure, match="COMPATKIT_CACHE"):
        Index.of(hand.root, "id").listing()
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "other"))
    assert answers(Index.of(hand.root, "id")) == right


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
@pytest.mark.parametrize("which", ["index.sqlite", "index.sqlite-journal", "index.sqlite-wal"])
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link"])
def test_what_is_no_plain_file_is_never_opened(hand: Hand, tmp_path: Path, which: str, kind: str) -> None:
    place, outside = Index.of(hand.root, "id").path.with_name(which), tmp_path / "outside"
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(outside)
    if kind == "link":
        outside.write_bytes(b"")
    with pytest.raises(EnvironmentFailure, match="not a regular file"):
        Index.of(hand.root, "id").listing()
    assert os.path.lexists(place) and outside.exists() == (kind == "link")
    assert kind != "link" or outside.read_bytes() == b""


def test_content_that_is_not_as_expected_is_made_anew_once(
    index: Index, right: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sqlite3.connect(index.path)
    connection.executescript("UPDATE manifests SET lists = '[1'")
    connection.close()
    assert answers(index) == answers(index) == right
    monkeypatch.setattr("compatkit.registry.index.search.count", lambda *arguments: [][1])
    with pytest.raises(IndexError):
        index.count()


@pytest.mark.case("D6")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_opens_a_connection_of_its_own(hand: Hand, index: Index) -> None:
    assert names(index) == ["a", "b", "c/d"]
    content = index.file._connection
    index.file._lock.acquire()  # as if another thread of the parent were inside at this moment
    child = os.fork()
    if child == 0:
        hand.publish("e", "1.0.0", hand.put(part()))
        good = names(index) == ["a", "b", "c/d", "e"] and index.file._connection is not content
        os._exit(0 if good else 1)
    index.file._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert index.file._connection is content and names(index) == ["a", "b", "c/d", "e"]


@pytest.mark.case("D6")
def test_threads_share_an_index(hand: Hand, index: Index) -> None:
    problems: list[BaseException] = []
    digest = hand.put(part())

    def use(number: int) -> None:
        try:
            for turn in range(5):
                hand.publish(f"t{number}", f"1.{turn}.0", digest)
                assert index.count(pattern=f"t{number}") == turn + 1
                assert len(index.search(latest=True, pattern=f"t{number}")) == 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
    assert index.count() == 23


@pytest.mark.case("D5", "D6")
def test_processes_that_fill_and_ask_at_once_agree(hand: Hand) -> None:
    for number in range(40):
        hand.publish(f"many/n{number:02}", "1.0.0", hand.put(part(about=tagged(of=str(number)))))
    command = [sys.executable, str(SCRIPT), str(hand.root), "ask", "6"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    result = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert result == ["43 43\n" * 6] * 4


@pytest.mark.case("D1")
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_process_killed_while_it_rebuilds_leaves_a_file_that_the_next_fills(
    hand: Hand, index: Index, right: list[Any]
) -> None:
    for delay in (0, 1):
        command = [sys.executable, str(SCRIPT), str(hand.root), "die", str(delay)]
        assert subprocess.run(command, check=False, timeout=120).returncode == -9
        assert answers(Index.of(hand.root, "id")) == right
