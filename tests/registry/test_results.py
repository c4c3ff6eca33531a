"""Results in the index: after anything that happens to the files it says what the files say."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_index import results as plain

from compatkit.errors import IntegrityError
from compatkit.foundation.codec import dumps
from compatkit.registry.evidence import StoredResult, key_of
from compatkit.registry.index import results as index_results
from compatkit.registry.index import stamps
from compatkit.registry.index import tables as index_tables
from compatkit.registry.index.results import ResultTable
from compatkit.registry.store import Store

LEFTS = [f"value:sha256:{digit * 64}" for digit in "ab"]
RIGHTS = [f"value:sha256:{digit * 64}" for digit in "cde"]
ticks = itertools.count(1_000_000_000)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A registry whose times can be trusted at once."""
    monkeypatch.setattr(stamps, "SETTLED_NS", 0)
    return Store.init(tmp_path / "parts")


def keep(
    store: Store, left: str = LEFTS[0], right: str = RIGHTS[0], seed: int = 0, right_of: int = 1
) -> Path:
    """Keep a result as the program does; return its pointer."""
    conditions = {"seed": seed}
    edge = store.evidence.keep(
        left, right, conditions=conditions, settings={"on": "cpu"}, figures={"n": right_of}
    )
    pointer = store.root / "evidence" / left[13:] / right[13:] / key_of(conditions) / edge.blob[7:]
    settle(pointer, store.root / "tmp")
    return pointer


def settle(*paths: Path) -> None:
    """Give files and the folders above them times of their own, so that no clock is too coarse to show a change."""
    for path in paths:
        for one in (path, *list(path.parents)[:4]):
            if one.exists():
                os.utime(one, (moment := next(ticks), moment))


def told(results: list[StoredResult]) -> list[Any]:
    """Return results as plain values, errors as whether there is one."""
    found = [
        (
            one.extractor,
            one.head,
            one.digest,
            dict(one.conditions),
            dict(one.settings),
            dict(one.figures),
            bool(one.error),
        )
        for one in results
    ]
    return sorted(found, key=repr)


def agree(store: Store, lefts: list[str] = LEFTS, rights: list[str] = RIGHTS) -> list[Any]:
    """Compare the index with the files; return what both say."""
    found = store.evidence.results(lefts, rights)
    assert told(found) == plain(store.root, lefts, rights)
    assert store.index.status().storage == "file"
    return told(found)


def test_results_of_many_pairs_come_oldest_first_with_what_they_say(store: Store) -> None:
    for seed, right in ((1, RIGHTS[1]), (0, RIGHTS[0]), (2, RIGHTS[0])):
        keep(store, right=right, seed=seed)
    found = store.evidence.results(LEFTS, RIGHTS)
    assert [one.conditions["seed"] for one in found] == [1, 0, 2]
    assert found[0].head == RIGHTS[1] and found[0].settings == {"on": "cpu"} and found[0].figures == {"n": 1}
    assert len(agree(store)) == 3 and len(agree(store, LEFTS[:1], RIGHTS[:1])) == 2
    assert agree(store, LEFTS[1:]) == agree(store, [], RIGHTS) == []
    assert found[1].settings is found[2].settings  # what many share is one object


@pytest.mark.parametrize("few", [0, 16])
def test_few_heads_and_many_are_found_alike(store: Store, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(index_results, "FEW", few)
    for left, right in itertools.product(LEFTS, RIGHTS):
        keep(store, left, right)
    assert len(agree(store)) == 6 and len(agree(store, LEFTS, RIGHTS[:2])) == 4


def test_a_second_question_reads_no_document(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store)
    store.evidence.results(LEFTS, RIGHTS)
    monkeypatch.setattr(ResultTable, "_document", lambda *given: pytest.fail("a document was read"))
    assert len(store.evidence.results(LEFTS, RIGHTS)) == 1
    assert len(Store.open(store.root).evidence.results(LEFTS, RIGHTS)) == 1  # nor does another process


def test_folders_are_listed_again_only_if_a_writer_came_by(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store)
    store.evidence.results(LEFTS, RIGHTS)
    listed: list[str] = []
    places = ResultTable._places
    monkeypatch.setattr(ResultTable, "_places", lambda self, one: listed.append(one) or places(self, one))
    store.evidence.results(LEFTS[:1], RIGHTS)
    assert len(Store.open(store.root).evidence.results(LEFTS[:1], RIGHTS)) == 1 and not listed
    keep(store, seed=1)
    assert len(store.evidence.results(LEFTS[:1], RIGHTS)) == 2 and listed


def another_writer(store: Store, pointer: Path) -> None:
    keep(Store.open(store.root), seed=1)


def by_hand(store: Store, pointer: Path) -> None:
    """Put in a result of known pairs as rsync does: no trace in ``tmp``."""
    elsewhere = Store.init(store.root.parent / "elsewhere")
    made = keep(elsewhere, seed=5)
    blob = elsewhere.objects.path(f"sha256:{made.name}")
    target = store.objects.path(f"sha256:{made.name}")
    target.parent.mkdir(exist_ok=True)
    shutil.copy(blob, target)
    place = store.root / made.relative_to(elsewhere.root)
    place.parent.mkdir()
    shutil.copy(made, place)
    settle(place)


def remove(store: Store, pointer: Path) -> None:
    pointer.unlink()
    settle(pointer)


def remove_all(store: Store, pointer: Path) -> None:
    shutil.rmtree(store.root / "evidence" / LEFTS[0][13:])


def rewrite(store: Store, pointer: Path) -> None:
    pointer.chmod(0o644)
    pointer.write_bytes(b"sha256:" + b"0" * 64 + b"\n")
    settle(pointer)


def misplace(store: Store, pointer: Path) -> None:
    target = pointer.parents[1] / key_of({"seed": 9}) / pointer.name
    target.parent.mkdir()
    shutil.copy(pointer, target)
    settle(target)


def of_another_form(store: Store, pointer: Path) -> None:
    store.evidence.record(LEFTS[0], RIGHTS[0], {"seed": 3}, dumps({"accuracy": 0.5}))


CHANGES: dict[str, tuple[Callable[[Store, Path], None], int, int, bool]] = {
    "another process keeps one": (another_writer, 2, 0, True),
    "one is put in by hand": (by_hand, 2, 0, False),
    "a pointer is taken away": (remove, 0, 0, False),
    "all of an extractor are taken away": (remove_all, 0, 0, False),
    "a pointer is rewritten in place": (rewrite, 1, 1, False),
    "a pointer lies under another key": (misplace, 2, 1, False),
    "a document of another form": (of_another_form, 2, 1, True),
}


@pytest.mark.parametrize(("change", "count", "damaged", "by_a_writer"), CHANGES.values(), ids=CHANGES)
def test_what_happens_to_the_files_is_seen(
    store: Store, change: Callable[[Store, Path], None], count: int, damaged: int, by_a_writer: bool
) -> None:
    pointer = keep(store)
    assert len(agree(store)) == 1
    change(store, pointer)
    if not by_a_writer:
        store.index.rebuild()
    found = agree(Store.open(store.root))
    assert (len(found), sum(one[-1] for one in found)) == (count, damaged)


def test_damage_is_told_until_it_is_mended(store: Store) -> None:
    pointer = keep(store)
    blob = store.objects.path(f"sha256:{pointer.name}")
    data = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(data.replace(b"cpu", b"gpu"))
    (found,) = store.evidence.results(LEFTS, RIGHTS)
    assert "holds other bytes than its name promises" in found.error
    blob.unlink()
    assert "is missing" in store.evidence.results(LEFTS, RIGHTS)[0].error
    blob.write_bytes(data)
    assert store.evidence.results(LEFTS, RIGHTS)[0].error == ""
    blob.write_bytes(
        b"x" * len(data)
    )  # the figures that the digest promised stay known, and verify tells of the damage
    assert store.evidence.results(LEFTS, RIGHTS)[0].figures == {"n": 1}
    store.index.rebuild()
    assert store.evidence.results(LEFTS, RIGHTS)[0].error


def test_a_document_that_is_too_large_is_not_read(store: Store) -> None:
    store.evidence.keep(LEFTS[0], RIGHTS[0], conditions={}, settings={"x": "y" * 2**20}, figures={})
    assert "at most 1048576 bytes" in store.evidence.results(LEFTS, RIGHTS)[0].error


def test_no_link_is_followed(store: Store, tmp_path: Path) -> None:
    keep(store)
    folder = store.root / "evidence" / LEFTS[0][13:]
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="is a symbolic link"):
        store.evidence.results(LEFTS, RIGHTS)
    folder.unlink()
    folder.mkdir()
    shutil.move(tmp_path / "elsewhere" / RIGHTS[0][13:], tmp_path / "pair")
    (folder / RIGHTS[0][13:]).symlink_to(tmp_path / "pair")
    settle(folder / "x")
    assert agree(store) == []


def test_a_damaged_index_says_the_same(store: Store) -> None:
    keep(store)
    right = agree(store)
    store.index.path.write_bytes(b"no database\n" * 1000)
    assert agree(Store.open(store.root)) == right


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "IMMEDIATE"])
def test_a_locked_index_says_the_same(store: Store, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(index_tables, "PATIENCE", 0.05)
    keep(store)
    right = agree(store)
    keep(store, seed=1)
    holder = index_tables.sqlite3.connect(store.index.path, isolation_level=None)
    holder.execute(f"BEGIN {mode}")
    held = Store.open(store.root)
    assert (
        len(held.evidence.results(LEFTS, RIGHTS)) == len(right) + 1
        and held.index.status().storage == "memory"
    )
    holder.execute("ROLLBACK")
    holder.close()
    assert len(agree(Store.open(store.root))) == len(right) + 1


def test_the_tables_hold_what_many_results_share_once(store: Store) -> None:
    for left, right, seed in itertools.product(LEFTS, RIGHTS, range(3)):
        keep(store, left, right, seed)
    store.evidence.results(LEFTS, RIGHTS)
    tables = index_tables.Tables.in_file(store.index.path, store.id)
    assert tables.connection.execute("SELECT count(*) FROM results").fetchone() == (18,)
    assert tables.connection.execute("SELECT count(*) FROM texts").fetchone() == (3 + 1,)
    tables.close()


hands = st.sampled_from(["keep", "remove", "rewrite", "misplace", "drop pair", "process", "ask few"])
places = st.tuples(st.sampled_from(LEFTS), st.sampled_from(RIGHTS), st.integers(0, 2))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.tuples(hands, places), max_size=10))
def test_after_any_history_a_new_process_says_what_the_files_say(
    store: Store, history: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    held = Store.init(tmp_path_factory.mktemp("history") / "parts")
    for action, (left, right, seed) in history:
        pair = held.root / "evidence" / left[13:] / right[13:]
        pointers = sorted(path for path in pair.rglob("*") if path.is_file())
        if action == "keep":
            keep(held, left, right, seed)
        elif action == "process":
            held = Store.open(held.root)
        elif action == "ask few":
            held.evidence.results([left], [right])
        elif action == "drop pair" and pair.exists():
            shutil.rmtree(pair)
            settle(pair)
        elif pointers and action in ("remove", "rewrite"):
            {"remove": remove, "rewrite": rewrite}[action](held, pointers[seed % len(pointers)])
            if action == "rewrite":  # in place, as no program of ours does
                Store.open(held.root).index.rebuild()
        elif pointers and action == "misplace" and not (pair / key_of({"seed": 9})).exists():
            misplace(held, pointers[0])
        settle(held.root / "tmp")  # as any write does
        agree(Store.open(held.root))
