"""Results: after anything that happens to the files a question says what the files say."""

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
from compatkit.registry.store import Store

LEFTS = [f"value:sha256:{digit * 64}" for digit in "ab"]
RIGHTS = [f"value:sha256:{digit * 64}" for digit in "cde"]
ticks = itertools.count(1_000_000_000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "parts")


def keep(
    store: Store, left: str = LEFTS[0], right: str = RIGHTS[0], seed: int = 0, right_of: int = 1
) -> Path:
    """Keep a result as the program does; return its pointer."""
    conditions = {"seed": seed}
    edge = store.evidence.add(
        left, right, conditions=conditions, settings={"on": "cpu"}, figures={"n": right_of}
    )
    pointer = store.root / "evidence" / left[13:] / right[13:] / key_of(conditions) / edge.blob[7:]
    settle(pointer, store.root / "tmp")
    return pointer


def settle(*paths: Path) -> None:
    """Give files and the folders above them times of their own, so that no clock is too coarse to show a change."""
    for path in paths:
        for item in (path, *list(path.parents)[:4]):
            if item.exists():
                os.utime(item, (moment := next(ticks), moment))


def plain_results(results: list[StoredResult]) -> list[Any]:
    """Return results as plain values, errors as whether there is one."""
    result = [
        (
            result.extractor,
            result.head,
            result.digest,
            dict(result.conditions),
            dict(result.settings),
            dict(result.figures),
            bool(result.error),
        )
        for result in results
    ]
    return sorted(result, key=repr)


def agree(store: Store, lefts: list[str] = LEFTS, rights: list[str] = RIGHTS) -> list[Any]:
    """Compare what the store says with the files; return it."""
    result = store.evidence.results(lefts, rights)
    assert plain_results(result) == plain(store.root, lefts, rights)
    return plain_results(result)


def test_results_of_many_pairs_come_oldest_first_with_what_they_say(store: Store) -> None:
    for seed, right in ((1, RIGHTS[1]), (0, RIGHTS[0]), (2, RIGHTS[0])):
        keep(store, right=right, seed=seed)
    result = store.evidence.results(LEFTS, RIGHTS)
    assert [match.conditions["seed"] for match in result] == [1, 0, 2]
    assert (
        result[0].head == RIGHTS[1] and result[0].settings == {"on": "cpu"} and result[0].figures == {"n": 1}
    )
    assert len(agree(store)) == 3 and len(agree(store, LEFTS[:1], RIGHTS[:1])) == 2
    assert agree(store, LEFTS[1:]) == agree(store, [], RIGHTS) == []


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


CHANGES: dict[str, tuple[Callable[[Store, Path], None], int, int]] = {
    "another process keeps one": (another_writer, 2, 0),
    "one is put in by hand": (by_hand, 2, 0),
    "a pointer is taken away": (remove, 0, 0),
    "all of an extractor are taken away": (remove_all, 0, 0),
    "a pointer is rewritten in place": (rewrite, 1, 1),
    "a pointer lies under another key": (misplace, 2, 1),
    "a document of another form": (of_another_form, 2, 1),
}


@pytest.mark.parametrize(("change", "count", "damaged"), CHANGES.values(), ids=CHANGES)
def test_what_happens_to_the_files_is_seen(
    store: Store, change: Callable[[Store, Path], None], count: int, damaged: int
) -> None:
    pointer = keep(store)
    assert len(agree(store)) == 1
    change(store, pointer)
    result = agree(Store.open(store.root))
    assert (len(result), sum(match[-1] for match in result)) == (count, damaged)


def test_damage_is_told_until_it_is_mended(store: Store) -> None:
    pointer = keep(store)
    blob = store.objects.path(f"sha256:{pointer.name}")
    data = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(data.replace(b"cpu", b"gpu"))
    (result,) = store.evidence.results(LEFTS, RIGHTS)
    assert "does not match its digest" in result.error
    blob.unlink()
    assert "is missing" in store.evidence.results(LEFTS, RIGHTS)[0].error
    blob.write_bytes(data)
    assert store.evidence.results(LEFTS, RIGHTS)[0].error == ""


def test_a_document_that_is_too_large_is_not_read(store: Store) -> None:
    store.evidence.add(LEFTS[0], RIGHTS[0], conditions={}, settings={"x": "y" * 2**20}, figures={})
    assert "at most 1048576" in store.evidence.results(LEFTS, RIGHTS)[0].error


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


hands = st.sampled_from(["keep", "remove", "rewrite", "misplace", "drop pair", "process", "ask few"])
places = st.tuples(st.sampled_from(LEFTS), st.sampled_from(RIGHTS), st.integers(0, 2))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.tuples(hands, places), max_size=10))
def test_after_any_history_a_new_process_says_what_the_files_say(
    store: Store, history: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    registry = Store.init(tmp_path_factory.mktemp("history") / "parts")
    for action, (left, right, seed) in history:
        pair = registry.root / "evidence" / left[13:] / right[13:]
        pointers = sorted(path for path in pair.rglob("*") if path.is_file())
        if action == "keep":
            keep(registry, left, right, seed)
        elif action == "process":
            registry = Store.open(registry.root)
        elif action == "ask few":
            registry.evidence.results([left], [right])
        elif action == "drop pair" and pair.exists():
            shutil.rmtree(pair)
            settle(pair)
        elif pointers and action in ("remove", "rewrite"):
            {"remove": remove, "rewrite": rewrite}[action](registry, pointers[seed % len(pointers)])
        elif pointers and action == "misplace" and not (pair / key_of({"seed": 9})).exists():
            misplace(registry, pointers[0])
        settle(registry.root / "tmp")  # as any write does
        agree(Store.open(registry.root))


def test_a_document_that_was_read_before_is_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = keep(store)
    right = plain_results(store.evidence.results(LEFTS, RIGHTS))
    monkeypatch.setattr(type(store.objects), "read", lambda *args, **settings: pytest.fail("read"))
    assert (
        plain_results(Store.open(store.root).evidence.results(LEFTS, RIGHTS)) == right
    )  # nor by another process
    rewrite(store, pointer)  # but its pointer is
    (damaged,) = store.evidence.results(LEFTS, RIGHTS)
    assert "should contain the digest" in damaged.error
