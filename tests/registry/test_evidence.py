"""Evidence: immutable results, found by two functions and the conditions; damage is named, nothing is reused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pointed import results

from compatkit.foundation.codec import dumps
from compatkit.registry.store import Store

LEFT, RIGHT, OTHER = (f"value:sha256:{digit * 64}" for digit in "abc")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "parts")


def pointers(store: Store) -> list[Path]:
    return [path for path in (store.root / "evidence").rglob("*") if path.is_file()]


def test_results_are_found_by_pair_oldest_first(store: Store) -> None:
    for seed in (2, 0, 1):
        store.evidence.record(LEFT, RIGHT, {"seed": seed}, dumps({"seed": seed}))
    assert results(store, LEFT, RIGHT) == [dumps({"seed": seed}) for seed in (2, 0, 1)]
    assert results(store, RIGHT, LEFT) == []
    assert results(store, LEFT, OTHER) == []


def test_the_same_result_again_changes_nothing_and_another_stands_beside_it(store: Store) -> None:
    first = store.evidence.record(LEFT, RIGHT, {"seed": 0}, dumps({"accuracy": 0.5}))
    assert store.evidence.record(LEFT, RIGHT, {"seed": 0}, dumps({"accuracy": 0.5})) == first
    assert len(pointers(store)) == 1
    store.evidence.record(LEFT, RIGHT, {"seed": 0}, dumps({"accuracy": 0.6}))
    assert len(results(store, LEFT, RIGHT)) == 2


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"seed": 0}, {"seed": 1}),
        ({"policy": "batch"}, {"policy": "running"}),
        ({"data": "a"}, {"data": "b"}),
    ],
)
def test_other_conditions_are_another_key(
    store: Store, left: dict[str, object], right: dict[str, object]
) -> None:
    result = dumps({"accuracy": 0.5})
    store.evidence.record(LEFT, RIGHT, left, result)
    store.evidence.record(LEFT, RIGHT, right, result)
    assert len({path.parent for path in pointers(store)}) == 2


def test_a_damaged_pointer_and_a_damaged_result_say_so(store: Store) -> None:
    edge = store.evidence.record(LEFT, RIGHT, {}, dumps({"accuracy": 0.5}))
    (pointer,) = pointers(store)
    pointer.chmod(0o644)
    pointer.write_text("sha256:" + "0" * 64 + "\n")
    (result,) = store.evidence.results([LEFT], [RIGHT])
    assert "should contain the digest in its name" in result.error
    pointer.write_text(f"{edge.blob}\n")
    blob = next(path for path in (store.root / "blobs").rglob(edge.blob.removeprefix("sha256:")))
    blob.chmod(0o644)
    blob.write_bytes(b'{"accuracy":0.9}\n')
    (result,) = Store.open(store.root).evidence.results([LEFT], [RIGHT])
    assert "does not match its digest" in result.error


def test_files_that_are_no_pointers_are_left_alone(store: Store) -> None:
    store.evidence.record(LEFT, RIGHT, {}, dumps({"accuracy": 0.5}))
    (pointer,) = pointers(store)
    (pointer.parent / ".DS_Store").write_text("x")
    (pointer.parent.parent / "stray").write_text("x")
    assert len(store.evidence.results([LEFT], [RIGHT])) == 1


def test_partners_are_all_heads_that_were_measured_with_an_extractor(store: Store) -> None:
    assert store.evidence.partners(LEFT) == set()
    store.evidence.record(LEFT, RIGHT, {}, dumps({"accuracy": 0.5}))
    store.evidence.record(LEFT, OTHER, {}, dumps({"accuracy": 0.6}))
    (store.root / "evidence" / ("a" * 64) / "stray").write_text("x")
    (store.root / "evidence" / ("a" * 64) / "folder").mkdir()
    assert store.evidence.partners(LEFT) == {RIGHT, OTHER}
    assert store.evidence.partners(RIGHT) == set()
