"""Many processes at once, without any lock: one winner where there must be one, no update lost, nothing dangling."""

from __future__ import annotations

import ast
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import attrs
import pytest
from attack import cases, script

import compatkit.registry
from compatkit.contracts.manifest import Manifest
from compatkit.errors import AliasMoved, VersionExists
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.pushpull import import_components
from compatkit.registry.second_names import copy
from compatkit.registry.store import Store

PROCESSES = 4
Publish = Callable[..., Any]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts fork")

LACKING = pytest.mark.parametrize("lacking", [(), ("links", "locks", "umask=077")], ids=" ".join)


def weights(store: Store, manifest: Manifest) -> bytes:
    """Return a component's payload, verified."""
    return store.read_blob(manifest.payload.file.blob, verify="always")


def race(root: Path, scenario: str, *lacking: str, processes: int = PROCESSES, rounds: int = 5) -> list[Any]:
    return json.loads(script("race.py", root, scenario, processes, rounds, *lacking))


@pytest.mark.case("D2", "C4")
@LACKING
def test_the_same_bytes_all_succeed(store: Store, lacking: tuple[str, ...]):
    assert race(store.root, "same", *lacking) == ["a/b@1.0.0"] * PROCESSES
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.case("D2", "C4")
@LACKING
def test_of_different_bytes_exactly_one_wins(store: Store, lacking: tuple[str, ...]):
    outcomes = race(store.root, "different", *lacking)
    assert outcomes.count("a/b@1.0.0") == 1
    assert [line["error"] for line in outcomes if line != "a/b@1.0.0"] == ["version-exists"] * (PROCESSES - 1)
    store.manifest("a/b@1.0.0")


def published_majors(root: Path, *lacking: str) -> list[int]:
    """Return the MAJOR numbers that processes got, each of which publishes new weights several times."""
    result = [reference for entry in race(root, "numbers", *lacking) for reference in entry]
    assert len(result) == 5 * PROCESSES
    return sorted(int(line.removeprefix("a/b@").removesuffix(".0.0")) for line in result)


@pytest.mark.case("D2")
def test_numbers_are_given_once_and_without_a_gap(store: Store):
    assert published_majors(store.root) == list(range(1, 5 * PROCESSES + 1))


@pytest.mark.case("D2")
def test_without_links_numbers_are_given_once_though_one_that_was_given_up_may_be_left_out(store: Store):
    numbers = published_majors(store.root, "links")
    assert len(numbers) == len(set(numbers))
    assert [version.major for version in store.versions("a/b")] == numbers


def count_up(store: Store, publish: Publish, rounds: int, *lacking: str) -> None:
    """Let processes count up by an alias; no step is lost and none is made twice."""
    moves = rounds * PROCESSES
    publish(store, "a/b")
    digest = str(store.resolve("a/b").digest)
    for number in range(2, moves + 2):
        (store.root / f"refs/a/b/@versions/{number}.0.0").write_text(f"{digest}\n")
    store.set_alias("a/b", "count", "1.0.0")
    assert race(store.root, "count", *lacking, rounds=rounds) == [rounds] * PROCESSES
    assert store.aliases("a/b") == {"count": f"{moves + 1}.0.0"}
    log = store.alias_log("a/b", "count")
    assert [move.number for move in log] == list(range(1, moves + 2))
    assert all(before.after == after.before for before, after in pairwise(log))


@pytest.mark.case("D3", "C4")
@pytest.mark.parametrize("lacking", [(), ("links", "locks")], ids=["everything", "no links, no locks"])
def test_no_move_of_an_alias_is_lost(store: Store, publish: Publish, lacking: tuple[str, ...]):
    count_up(store, publish, 12, *lacking)


@pytest.mark.slow
@pytest.mark.case("D3")
@pytest.mark.parametrize("lacking", [(), ("links", "locks")], ids=["everything", "no links, no locks"])
def test_no_move_of_ten_thousand_is_lost(store: Store, publish: Publish, lacking: tuple[str, ...]):
    count_up(store, publish, 10_000 // PROCESSES + 1, *lacking)
    print(f"{10_000 // PROCESSES * PROCESSES} moves of one alias")


def test_one_registry_is_made(tmp_path: Path):
    assert len(set(race(tmp_path, "make"))) == 1


def test_the_same_import_by_many_is_one_import(store: Store, publish: Publish):
    source = Store.init(store.root.with_name("source"))
    for value in range(5):
        publish(source, "a", value)
    outcomes = race(store.root, "bring")
    assert sum(outcomes) == 5 and len(store.versions("a")) == 5


@LACKING
def test_a_component_whose_names_many_drop_and_give_keeps_one(
    store: Store, publish: Publish, lacking: tuple[str, ...]
):
    digest = publish(store, "a/b").digest
    copy(store, "a/b", "a/b@2.0.0")
    copy(store, "a/b", "c")
    outcomes = race(store.root, "renumber", *lacking, rounds=8)
    assert [outcome for outcome in outcomes if not isinstance(outcome, int)] == []
    assert sum(outcomes) > 0
    assert digest in {store.references.digest(name, version) for name, version in store.references.each()}
    assert examine(store).sound


# --- under a policy


def numbers_of(store: Store, name: str) -> list[int]:
    """Return the numbers that the parts of a name are; see scripts/bound_parts."""
    manifests = [store.manifest(f"{name}@{version}") for version in store.versions(name)]
    return [int.from_bytes(weights(store, manifest)[-4:], "little") for manifest in manifests]


@pytest.mark.case("D2")
@LACKING
def test_of_many_writers_no_two_release_what_does_not_work_together(tmp_path: Path, lacking: tuple[str, ...]):
    """Extractors and heads that clash by a rule, published at once by processes that each ask the policy."""
    script("release.py", tmp_path / "parts", 0, 10, "full_transitive")
    outcomes = race(tmp_path / "parts", "promised", *lacking)
    assert all(isinstance(line, list) for line in outcomes), outcomes
    store = Store.open(tmp_path / "parts")
    extractors, heads = numbers_of(store, "eye"), numbers_of(store, "hand")
    assert not [pair for pair in product(extractors, heads) if sum(pair) % 3 == 0]
    assert len(extractors) + len(heads) == 2 + sum(map(len, outcomes))


@pytest.mark.case("D2")
def test_in_any_order_of_steps_a_policy_binds(tmp_path: Path):
    """A sample of all orders; the slow test goes through more."""
    sample = ["candidates:29,31", "skew:17,13", "late:17,13", "bound:17,13"]
    for line in script("promises.py", tmp_path, *sample).splitlines():
        name, orders, both, *_ = line.split()
        assert int(orders) > 3, name
        assert (int(both) == 0) == (name == "skew"), line


@pytest.mark.slow
@pytest.mark.case("D2", "C4")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lacking", [(), ("links",)], ids=" ".join)
@pytest.mark.parametrize("encounter", ["candidates:3,2", "skew:1,1", "late:1,1", "bound:1,1"])
def test_in_every_order_of_steps_a_policy_binds(tmp_path: Path, encounter: str, lacking: tuple[str, ...]):
    _, orders, *_ = script("promises.py", tmp_path, encounter, *lacking).split()
    assert int(orders) > 50


# --- beside a collection


@pytest.mark.case("D4", "D5")
def test_in_any_order_of_steps_nothing_dangles(tmp_path: Path):
    """A sample of all orders; the slow test goes through every one."""
    sample = ["publish:29,23", "publish_prepared:17,23", "record:17,23", "read:3,17"]
    for line in script("interleave.py", tmp_path, *sample).splitlines():
        name, orders, misses = line.split()
        assert int(orders) > 7, name
        assert name.startswith("publish") or int(misses) == 0, (
            name
        )  # only who relies on unused bytes may miss them


@pytest.mark.slow
@pytest.mark.case("D4", "D5", "C4")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lacking", [(), ("links",), ("pids",), ("links", "pids")], ids=" ".join)
@pytest.mark.parametrize(
    "encounter",
    ["publish:1,1", "publish_prepared:1,1", "publish_child:2,1", "record:1,1", "import:5,3", "read:1,1"],
)
def test_in_every_order_of_steps_nothing_dangles(tmp_path: Path, encounter: str, lacking: tuple[str, ...]):
    _, orders, misses = script("interleave.py", tmp_path, encounter, *lacking).split()
    assert int(orders) > 50
    assert encounter.startswith("publish") or int(misses) == 0


def mixed(store: Store, publish: Publish, rounds: int, *lacking: str) -> list[Any]:
    """Let publishers, importers, collectors, readers and searchers work on one registry."""
    source = Store.init(store.root.with_name("source"))
    for value in range(12):
        publish(source, "other/part", value)
    outcomes = race(store.root, "together", *lacking, processes=6, rounds=rounds)
    assert not [line for line in outcomes if "error" in line], outcomes
    assert len(store.versions("made/0")) == outcomes[0]["published"] == rounds
    assert outcomes[1]["imported"] == min(rounds, 12)
    return outcomes


@pytest.mark.case("D4", "D5")
@pytest.mark.parametrize(
    "lacking", [(), ("links", "pids", "umask=077")], ids=["everything", "no links, no pids"]
)
def test_publishers_importers_collectors_and_readers_beside_each_other(
    store: Store, publish: Publish, lacking: tuple[str, ...]
):
    result = mixed(store, publish, 6, *lacking)
    assert result[2]["collected"] > 0 and result[3]["read"] > 0


@pytest.mark.slow
@pytest.mark.case("D4", "D5")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "lacking",
    [(), ("links",), ("pids",), ("locks", "links", "pids")],
    ids=" ".join,
)
def test_hundreds_of_publishes_beside_collections_without_a_grace(
    store: Store, publish: Publish, lacking: tuple[str, ...]
):
    counted = Counter[str]()
    for turn in range(cases(1)):
        fresh = store if turn == 0 else Store.init(store.root.parent / str(turn) / "parts")
        for each in mixed(fresh, publish, 300, *lacking):
            counted.update(each)
        assert counted["collected"] > 50 * (turn + 1)
    print(f"beside each other, without {', '.join(lacking) or 'nothing'}: {dict(counted)}")


@pytest.mark.case("D4")
def test_an_import_beside_collections_without_a_grace(store: Store, publish: Publish):
    source = Store.init(store.root.with_name("source"))
    for value in range(4):
        publish(source, "a", value)
    with ThreadPoolExecutor(2) as pool:
        importing = pool.submit(import_components, source, store)
        while not importing.done():
            plan(Store.open(store.root), grace=timedelta(0), alone=True).apply()
            time.sleep(0.01)
    assert len(importing.result().created) == 4
    assert all(weights(store, store.manifest(f"a@{version}")) for version in store.versions("a"))


# --- one process


@pytest.mark.case("C4")
@pytest.mark.case("D6")
@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_threads_of_one_process(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch, links: bool):
    if not links:
        monkeypatch.setattr(durable, "link", lambda source, target: False)

    def attempt(value: int) -> str:
        try:
            return str(publish(store, "a", value=value, version="1.0.0"))
        except VersionExists as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(attempt, range(8)))
    assert result.count("a@1.0.0") == 1 and result.count("version-exists") == 7


@pytest.mark.case("D6", "D3")
def test_threads_that_move_one_alias(store: Store, publish: Publish):
    for value in range(1, 10):
        publish(store, "a", value)
    store.set_alias("a", "prod", "1.0.0")

    def attempt(value: int) -> bool:
        try:
            store.set_alias("a", "prod", f"{value}.0.0", expected="1.0.0")
        except AliasMoved:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(2, 10))) == 1
    assert len(store.alias_log("a", "prod")) == 2


@pytest.mark.case("D5")
def test_a_reader_beside_a_writer_sees_only_whole_versions(store: Store, publish: Publish):
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


@pytest.mark.case("D6", "D8")
def test_a_store_that_was_open_before_a_fork_works_on_both_sides(store: Store, publish: Publish):
    publish(store, "a", 1)
    weights(store, store.manifest("a"))
    sides = []
    for value in (2, 3, 4):
        child = os.fork()
        if child == 0:
            try:
                weights(store, store.manifest("a@1.0.0"))
                publish(store, f"child{value}", value)
            finally:
                os._exit(0)
        sides.append(child)
    publish(store, "a", 9)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in sides] == [0, 0, 0]
    assert store.names() == ["a", "child2", "child3", "child4"]
    assert all(weights(store, store.manifest(name)) for name in store.names())


@pytest.mark.slow
@pytest.mark.case("D8")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_read_components(store: Store, publish: Publish, method: str):
    for value in range(4):
        publish(store, "a", value)
    assert json.loads(script("workers.py", store.root, method)) == [0, 1, 2, 3]


# --- locks


@pytest.mark.case("D7")
def test_lock_files_that_somebody_left_mean_nothing(store: Store, publish: Publish):
    for name in ("gc.lock", "a.lock", "refs.lock"):
        (store.root / "locks" / name).write_text("4194305\n")
        (store.root / f"{name}").write_text("4194305\n")
    (store.root / "locks").chmod(0)
    try:
        publish(store, "a")
        store.set_alias("a", "prod", "1.0.0")
    finally:
        (store.root / "locks").chmod(0o755)
    assert plan(store, grace=timedelta(0), alone=True).is_empty


@pytest.mark.case("C4")
def test_no_module_of_the_registry_locks_a_file():
    """Except the mirror of a remote, which lies in the user's cache folder and not in a registry."""
    for path in Path(compatkit.registry.__file__).parent.rglob("*.py"):
        if path.parts[-2:] == ("remotes", "reading.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [name.name for name in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not {"fcntl", "msvcrt", "filelock"} & {module, *names}, path


# --- time between two steps


@pytest.mark.case("D4")
def test_a_publisher_that_is_stopped_for_long_before_its_last_step(
    store: Store, publish: Publish, put: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """The draft of the version says what will be referred to, however long that takes."""
    put(store, 5)
    past = time.time() - 10**6
    for path in store.root.rglob("*"):
        os.utime(path, (past, past))
    other = Store.open(store.root)

    def step(operation: str, path: Path) -> None:
        if operation == "link" and path.parent.name == "@versions":
            monkeypatch.setattr(durable, "step", lambda operation, path: None)
            for _ in range(2):
                plan(other, grace=timedelta(0), alone=True).apply()

    monkeypatch.setattr(durable, "step", step)
    reference = publish(store, "a", 5)
    assert weights(store, store.manifest(reference))
