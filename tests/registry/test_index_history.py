"""After any history the index says what a plain walk through the files says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from handmade import Hand, child_of, part, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_index import Plain

from compatkit.contracts.manifest import to_bytes
from compatkit.foundation.codec import digest
from compatkit.registry.index import stamps
from compatkit.registry.index.lookup import Index
from compatkit.registry.index.query import Query

NAMES = ("a", "a/b", "a/b/c", "b")
VERSIONS = ("0.9.0", "1.0.0", "1.1.0", "10.0.0")
FIRST = to_bytes(part("extractor", about=tagged(color="red")))
MANIFESTS = (
    FIRST,
    to_bytes(part("head", "vgg", about=tagged(color="red", size="big"), parents=child_of(digest(FIRST)))),
    to_bytes(part("head", "vgg", channels=64)),
    b'{"schema":1,"kind":"nothing"}\n',
)
QUERIES = (
    {},
    {"latest": True},
    {"kind": "head", "withdrawn": True},
    {"tags": {"color": "red"}},
    {"tags": {"color": "red", "size": "big"}, "latest": True},
    {"channels": 64},
    {"model": "v*", "pattern": "a*"},
    {"parent": digest(FIRST)},
    {"anywhere": "v"},
    {"anywhere": "a color=red", "latest": True},
    {"pattern": "[!b]*", "limit": 2, "offset": 1},
)

places = st.tuples(st.sampled_from(NAMES), st.sampled_from(VERSIONS))
contents = st.sampled_from(range(len(MANIFESTS)))
by_writers = st.one_of(
    st.tuples(st.just("publish"), places, contents), st.tuples(st.just("withdraw"), places, st.just(0))
)
in_place = st.one_of(
    st.tuples(st.just("write"), places, contents),
    st.tuples(st.just("damage"), places, st.sampled_from([b"", b"x" * 72, b"sha256:ab"])),
)
by_hand = st.one_of(
    st.tuples(st.just("add"), places, contents),
    st.tuples(st.just("spoil"), places, st.sampled_from([b"", b"x" * 72, b"sha256:ab"])),
    st.tuples(st.just("remove"), places, st.just(0)),
    st.tuples(st.just("drop"), places, st.just(0)),
    st.tuples(st.just("stray"), places, st.just(0)),
)


def do(hand: Hand, action: str, place: tuple[str, str], content: Any) -> None:
    name, version = place
    path = hand.folder(name) / "@versions" / version
    if action in ("publish", "write", "damage", "add", "spoil"):
        is_new = not path.exists()
        if action in ("add", "spoil") and not is_new:
            path.unlink()
            is_new = True
        if action == "publish" and is_new:
            with hand.writer(name):
                hand.version(name, version, hand.put(MANIFESTS[content]))
        elif action != "publish":  # in place where it exists: no folder changes
            hand.version(
                name, version, content if isinstance(content, bytes) else hand.put(MANIFESTS[content])
            )
            if is_new:
                hand.settle(name)
    elif action == "withdraw":
        if path.exists():
            hand.withdraw(name, version)
    elif action == "remove":
        hand.remove(name)
    elif action == "drop" and path.exists():
        path.unlink()
        hand.settle(name)
    elif action == "stray":
        (hand.folder(name) / "@versions").mkdir(parents=True, exist_ok=True)
        (hand.folder(name) / "@versions" / "notes.txt").write_text("x")
        hand.settle(name)


def without_words(item: Any) -> Any:
    """Leave out the words of an error: only whether there is one is the same everywhere."""
    value = item.to_json()
    return value | {"error": True} if "error" in value else value


def agree(index: Index, root: Path) -> None:
    """Compare every answer with the files."""
    files = Plain(root)
    for filters in ({"withdrawn": True}, *QUERIES):
        query = Query(**filters)
        assert index.search(query) == files.search(query), filters
        assert index.count(query) == files.count(query), filters
    assert list(map(without_words, index.listing())) == list(map(without_words, files.listing()))
    assert set(index.roots()) == files.roots()


def histories(actions: Any, examples: int, longest: int) -> Callable[[Callable[..., None]], Any]:
    chosen = st.lists(actions, max_size=longest)
    return lambda test: settings(max_examples=examples, deadline=None)(given(chosen)(test))


@contextmanager
def registry(**patches: Any) -> Iterator[Hand]:
    """Make a registry for one history; the disk is not waited for."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", f"{folder}/cache")
        for name, value in patches.items():
            patch.setattr(stamps, name, value)
        yield Hand.init(Path(folder) / "parts")


@pytest.mark.case("E3")
@histories(by_writers, 10, 4)
def test_one_process_sees_all_that_writers_do(history: list[Any]) -> None:
    with registry(SETTLED_NS=0) as hand:
        index = Index.of(hand.root, "id")
        for action in history:
            do(hand, *action)
            agree(index, hand.root)
        index.close()


@pytest.mark.case("E3", "C5")
@histories(st.one_of(by_writers, by_hand), 25, 8)
def test_a_new_process_sees_all_that_hands_did_after_the_next_write(history: list[Any]) -> None:
    with registry(SETTLED_NS=0) as hand:
        for action in history:
            do(hand, *action)
            Index.of(hand.root, "id").refresh()
        hand.tick(hand.root / "tmp")  # as any write does
        agree(Index.of(hand.root, "id"), hand.root)


@pytest.mark.case("E3", "C5")
@histories(st.one_of(by_writers, by_hand, in_place), 15, 8)
def test_a_rebuilt_index_sees_all(history: list[Any]) -> None:
    with registry(SETTLED_NS=0) as hand:
        for action in history:
            do(hand, *action)
            Index.of(hand.root, "id").refresh()
        index = Index.of(hand.root, "id")
        index.rebuild()
        agree(index, hand.root)
        index.close()


@pytest.mark.case("E3")
@histories(st.one_of(by_writers, by_hand), 15, 8)
def test_an_old_process_and_a_rebuilt_index_agree_in_the_end(history: list[Any]) -> None:
    with registry() as hand:  # nothing is settled, all is young
        old = Index.of(hand.root, "id")
        for action in history:
            do(hand, *action)
            old.refresh()
        agree(old, hand.root)
        old.rebuild()
        agree(old, hand.root)
        old.close()


@pytest.mark.case("D5", "E3")
@pytest.mark.parametrize("turn", range(1, 5))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "moment",
    [
        "sync.pulse",
        "sync.versions_state",
        "sync.References.names",
        "sync.References.versions",
        "sync.References.withdrawn",
        "sync.Sync._read",
        "sync.Sync._manifest",
        "sync.Sync._store_pulse",
    ],
)
def test_what_is_published_at_any_moment_of_a_look_is_seen_by_the_next_question(
    moment: str, after: bool, turn: int
) -> None:
    place, _, name = f"compatkit.registry.index.{moment}".rpartition(".")
    owner = resolve_name(place)
    original, calls = getattr(owner, name), 0

    def work(*args: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == turn and not after:
            publish(hand)
        result = original(*args, **settings)
        if calls == turn and after:
            publish(hand)
        return result

    def publish(hand: Hand) -> None:
        with hand.writer("a/new"):
            hand.version("a/new", "1.0.0", hand.put(MANIFESTS[1]))
        with hand.writer("b"):
            hand.version("b", "2.0.0", hand.put(MANIFESTS[2]))

    with registry(SETTLED_NS=0) as hand, pytest.MonkeyPatch.context() as patch:
        for entry in ("a/b", "b"):
            hand.publish(entry, "1.0.0", hand.put(MANIFESTS[0]))
        request = Index.of(hand.root, "id")
        patch.setattr(owner, name, work)
        for _ in range(3):
            request.refresh()
        patch.undo()
        agree(request, hand.root)
        agree(Index.of(hand.root, "id"), hand.root)
        request.close()
