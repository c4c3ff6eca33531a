"""After any history the index says what a plain walk through the files says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from handmade import Hand, child_of, part, tagged
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.contracts.codec import digest
from compatkit.contracts.manifest import to_bytes
from compatkit.registry.blobs import Objects
from compatkit.registry.index import scanning
from compatkit.registry.index import tables as index_tables
from compatkit.registry.index.lookup import Index
from compatkit.registry.index.search import Found, Query
from compatkit.registry.index.walking import Walk
from compatkit.registry.refs import References

NAMES = ("a", "a/b", "a/b/c", "b")
VERSIONS = ("0.9.0", "1.0.0", "1.1.0", "10.0.0")
FIRST = to_bytes(part("extractor", about=tagged(colour="red")))
MANIFESTS = (
    FIRST,
    to_bytes(part("head", "vgg", about=tagged(colour="red", size="big"), parents=child_of(digest(FIRST)))),
    to_bytes(part("head", "vgg", channels=64)),
    b'{"schema":1,"kind":"nothing"}\n',
)
QUERIES = (
    {},
    {"latest": True},
    {"kind": "head", "withdrawn": True},
    {"tags": {"colour": "red"}},
    {"tags": {"colour": "red", "size": "big"}, "latest": True},
    {"channels": 64},
    {"model": "v*", "pattern": "a*"},
    {"parent": digest(FIRST)},
    {"anywhere": "v"},
    {"anywhere": "a colour=red", "latest": True},
    {"pattern": "[!b]*", "limit": 2, "offset": 1},
)

places = st.tuples(st.sampled_from(NAMES), st.sampled_from(VERSIONS))
contents = st.sampled_from(range(len(MANIFESTS)))
by_writers = st.one_of(
    st.tuples(st.just("publish"), places, contents), st.tuples(st.just("withdraw"), places, st.just(0))
)
by_hand = st.one_of(
    st.tuples(st.just("write"), places, contents),
    st.tuples(st.just("damage"), places, st.sampled_from([b"", b"x" * 72, b"sha256:ab"])),
    st.tuples(st.just("remove"), places, st.just(0)),
    st.tuples(st.just("drop"), places, st.just(0)),
    st.tuples(st.just("stray"), places, st.just(0)),
)


def do(hand: Hand, action: str, place: tuple[str, str], content: Any) -> None:
    name, version = place
    path = hand.folder(name) / "@versions" / version
    if action in ("publish", "write", "damage"):
        is_new = not path.exists()
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


def without_words(one: Any) -> Any:
    """Leave out the words of an error: only whether there is one is the same everywhere."""
    if isinstance(one, Found | None):
        return one and one._replace(error="damaged" if one.error else "")
    value = one.to_json()
    return value | {"error": True} if "error" in value else value


def agree(index: Index, root: Path) -> None:
    """Compare every answer with the files."""
    files = Walk(References(root), Objects(root))
    everything = Query(withdrawn=True)
    assert index.search(everything) == files.page(everything)  # also sees what was rewritten in place
    assert index.names() == files.names(None) and index.names("a/?") == files.names("a/?")
    for filters in QUERIES:
        query = Query(**filters)
        assert index.search(query) == files.page(query), filters
        assert index.count(query) == files.count(query), filters
    assert list(map(without_words, index.listing())) == list(map(without_words, files.listing(None, "", 99)))
    for name in NAMES:
        for version in VERSIONS:
            number = scanning.parsed(version)
            assert number is not None
            found = files.find(name, number)
            assert without_words(index.find(name, version)) == without_words(found), (name, version)
    assert index.referenced() == files.referenced() and set(index.roots()) == set(files.roots())
    assert set(index.edges()) >= set(files.edges())  # what a manifest keeps stays known
    assert index.status().kept == "file"


def histories(actions: Any, examples: int, longest: int) -> Callable[[Callable[..., None]], Any]:
    chosen = st.lists(actions, max_size=longest)
    return lambda test: settings(max_examples=examples, deadline=None)(given(chosen)(test))


@contextmanager
def registry(**patches: Any) -> Iterator[Hand]:
    """Make a registry for one history; the disk is not waited for."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", f"{folder}/cache")
        patch.setattr(index_tables, "SYNCHRONOUS", "OFF")
        for name, value in patches.items():
            patch.setattr(scanning, name, value)
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
def test_a_new_process_sees_all_that_hands_do(history: list[Any]) -> None:
    with registry(SETTLED_NS=0) as hand:
        for action in history:
            do(hand, *action)
            index = Index.of(hand.root, "id")
            everything = Query(withdrawn=True)
            assert index.search(everything) == Walk(References(hand.root), Objects(hand.root)).page(
                everything
            )
            index.close()
        agree(Index.of(hand.root, "id"), hand.root)


@pytest.mark.case("E3")
@histories(st.one_of(by_writers, by_hand), 15, 8)
def test_an_old_process_and_a_rebuilt_index_agree_in_the_end(history: list[Any]) -> None:
    with registry() as hand:  # nothing is settled, all is young
        old = Index.of(hand.root, "id")
        for action in history:
            do(hand, *action)
            old.names()
        agree(old, hand.root)
        old.rebuild()
        agree(old, hand.root)
        old.close()
