"""Many processes at once, without any lock: one winner where there must be one, no update lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit.errors import VersionExists
from compatkit.registry import durable
from compatkit.registry.store import Store

PROCESSES = 6
SCRIPT = Path(__file__).parent / "scripts" / "race.py"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts fork")


def race(root: Path, scenario: str) -> list[Any]:
    command = [sys.executable, str(SCRIPT), str(root), scenario, str(PROCESSES)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_same_bytes_all_succeed(store: Store):
    assert race(store.root, "same") == ["a/b@1.0.0"] * PROCESSES
    assert list((store.root / "tmp").iterdir()) == []


def test_of_different_bytes_exactly_one_wins(store: Store):
    said = race(store.root, "different")
    assert said.count("a/b@1.0.0") == 1
    assert said.count({"error": "version-exists"}) == PROCESSES - 1
    store.manifest("a/b@1.0.0")


def test_numbers_are_given_once_and_without_a_gap(store: Store):
    said = [reference for one in race(store.root, "numbers") for reference in one]
    assert sorted(said) == sorted(f"a/b@{number}.0.0" for number in range(1, 5 * PROCESSES + 1))


def test_no_move_of_an_alias_is_lost(store: Store, publish: Callable[..., Any]):
    moves = 20 * PROCESSES
    publish(store, "a/b")
    digest = (store.root / "refs/a/b/@versions/1.0.0").read_bytes()
    for number in range(2, moves + 2):
        (store.root / f"refs/a/b/@versions/{number}.0.0").write_bytes(digest)
    store.set_alias("a/b", "count", "1.0.0")
    assert race(store.root, "count") == [20] * PROCESSES
    assert store.aliases("a/b") == {"count": f"{moves + 1}.0.0"}
    log = store.alias_log("a/b", "count")
    assert [move.number for move in log] == list(range(1, moves + 2))
    assert all(before.after == after.before for before, after in pairwise(log))


def test_one_registry_is_made(tmp_path: Path):
    assert len(set(race(tmp_path, "init"))) == 1


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_threads_of_one_process(
    store: Store, publish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, links: bool
):
    if not links:
        monkeypatch.setattr(durable, "link", lambda source, target: False)

    def attempt(value: int) -> str:
        try:
            return str(publish(store, "a", value=value, version="1.0.0"))
        except VersionExists as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(attempt, range(8)))
    assert said.count("a@1.0.0") == 1 and said.count("version-exists") == 7


def test_a_reader_beside_a_writer_sees_only_whole_versions(store: Store, publish: Callable[..., Any]):
    publish(store, "a")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [publish(store, "a", value=value) for value in range(1, 15)])
        reader = Store.open(store.root)
        while not writing.done():
            reference = reader.resolve("a")
            payload = reader.manifest(reference).payload
            assert reader.read_blob(payload.file.blob) and attrs.asdict(payload)
        writing.result()
    assert str(reader.resolve("a")) == "a@15.0.0"
