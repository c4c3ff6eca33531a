"""The index follows the files: what writers do, what hands do, and what changes without any trace in a folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from handmade import Hand, child_of, part, tagged

from compatkit.errors import IntegrityError, InvalidName
from compatkit.registry.index import scanning
from compatkit.registry.index.lookup import Index
from compatkit.registry.index.scanning import Watch
from compatkit.registry.index.writing import Writer
from compatkit.registry.store import Store


def index_of(root: Path) -> Index:
    """Return what a new process would use."""
    return Index.of(root, Store.open(root).id)


def pins(index: Index, **filters: Any) -> list[str]:
    return [str(one) for one in index.search(**filters)]


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand.init(tmp_path / "parts")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every time at once: ``Hand`` gives each change its own."""
    monkeypatch.setattr(scanning, "SETTLED_NS", 0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files that are opened while folders and manifests are read."""
    seen: list[str] = []

    def read(path: str, limit: int) -> Any:
        seen.append(path)
        return scanning.read_plain(path, limit)

    for module in ("folders", "manifests"):
        monkeypatch.setattr(f"compatkit.registry.index.{module}.read_plain", read)
    return seen


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many folders each look at all of them found changed."""
    seen: list[int] = []
    refresh = Writer.refresh

    def look(writer: Writer, **settings: Any) -> int:
        seen.append(refresh(writer, **settings))
        return seen[-1]

    monkeypatch.setattr(Writer, "refresh", look)
    return seen


def test_an_empty_registry_has_nothing(hand: Hand) -> None:
    index = index_of(hand.root)
    assert index.names() == [] and index.search() == [] and list(index.listing()) == []
    assert index.find("a/b", "1.0.0") is None and index.referenced() == set()


def test_what_the_store_publishes_and_withdraws_is_found(store: Store, publish: Callable[..., Any]) -> None:
    index = index_of(store.root)
    assert index.names() == []
    first, second = publish(store, "a/b"), publish(store, "a/b", 1)
    assert pins(index) == ["a/b@1.0.0", "a/b@2.0.0"] and pins(index, latest=True) == ["a/b@2.0.0"]
    store.withdraw("a/b", "2.0.0", "wrong data")
    assert pins(index) == ["a/b@1.0.0"] == pins(index, latest=True)
    assert [one.withdrawn for one in index.search(withdrawn=True)] == [False, True]
    found = index.find("a/b", second.version)
    assert found is not None and found.withdrawn and found.digest == second.digest
    assert {first.digest, second.digest} < index.referenced()


def test_what_is_told_of_a_version_is_what_its_manifest_says(
    store: Store, publish: Callable[..., Any]
) -> None:
    publish(store, "a/b", about=tagged(domain="digits"), parents=())
    manifest, found = store.manifest("a/b"), index_of(store.root).find("a/b", "1.0.0")
    assert found is not None and found.digest == store.resolve("a/b").digest
    assert (found.kind, found.builder, found.model, found.split) == (
        "extractor",
        "timm",
        "resnet20_cifar",
        "layer2",
    )
    assert (found.parameters, found.bytes) == (manifest.payload.parameters, manifest.payload.file.bytes)
    assert (found.channels, found.classes, found.tags) == ((32,), 2, {"domain": "digits"})
    assert found.to_json()["tags"] == {"domain": "digits"} and "error" not in found.to_json()


@pytest.mark.usefixtures("exact")
def test_unchanged_folders_are_not_read_again(hand: Hand, opened: list[str]) -> None:
    for name in ("a/b", "a/c", "d"):
        hand.publish(name, "1.0.0", hand.put(part(about=tagged(of=name))))
    index_of(hand.root).refresh()
    assert len(opened) == 6  # a version and a manifest of each
    opened.clear()
    later = index_of(hand.root)
    assert later.refresh() == 0 and opened == []
    hand.publish("a/c", "1.1.0", hand.put(part(about=tagged(of="a/c again"))))
    assert later.refresh() == 3  # the name, the folder above and refs itself, whose times the hand changed
    assert [Path(path).name[:5] for path in opened] == ["1.1.0", Path(opened[1]).name[:5]] and len(
        opened
    ) == 2


@pytest.mark.usefixtures("exact")
def test_a_process_looks_again_only_if_a_writer_came_by(hand: Hand, looks: list[int]) -> None:
    hand.publish("a", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    assert index.names() == ["a"] and looks == [2]
    assert index.names("a*") == ["a"] and index.count() == 1 and looks == [2]
    with hand.writer("b"):
        hand.version("b", "1.0.0", hand.put(part()))
        assert index.names() == ["a", "b"]
        assert index.names() == ["a", "b"] and len(looks) == 3  # somebody is at work: look each time
    assert index.names() == ["a", "b"] and len(looks) == 4
    assert index.names() == ["a", "b"] and len(looks) == 4


@pytest.mark.case("C6", "D7")
@pytest.mark.usefixtures("exact")
def test_a_draft_that_nobody_removed_stops_mattering_after_an_hour(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hand.root / "tmp" / "1234-00000000000000aa").write_bytes(b"")
    assert not Watch.take(hand.root).quiet
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3601 * 10**9)
    assert Watch.take(hand.root).quiet


def test_a_watch_holds_only_while_tmp_stays_as_it_was(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Watch.take(hand.root).quiet  # just made: coarse clocks could hide a change
    monkeypatch.setattr(scanning, "SETTLED_NS", 0)
    watch = Watch.take(hand.root)
    assert watch.quiet and watch.holds(hand.root)
    (hand.root / "tmp" / "1-a").write_bytes(b"")
    assert not watch.holds(hand.root)
    shutil.rmtree(hand.root / "tmp")
    gone = Watch.take(hand.root)
    assert not watch.holds(hand.root) and gone.holds(hand.root)
    (hand.root / "tmp").mkdir()
    assert not gone.holds(hand.root)
    (hand.root / "tmp").rmdir()
    (hand.root / "tmp").symlink_to(hand.root / "trash")
    assert not Watch.take(hand.root).quiet


@pytest.mark.usefixtures("exact")
def test_names_that_are_removed_by_hand_vanish_with_all_below_them(hand: Hand) -> None:
    digest = hand.put(part())
    for name in ("a", "a/b", "a/b/c", "a-b", "ab"):
        hand.publish(name, "1.0.0", digest)
    assert index_of(hand.root).names() == ["a", "a-b", "a/b", "a/b/c", "ab"]
    hand.remove("a/b")
    assert index_of(hand.root).names() == ["a", "a-b", "ab"]
    hand.remove("a")
    assert index_of(hand.root).names() == ["a-b", "ab"]
    shutil.rmtree(hand.root / "refs")
    assert index_of(hand.root).names() == []


@pytest.mark.usefixtures("exact")
def test_a_name_that_vanishes_between_looks_is_not_told(hand: Hand) -> None:
    digest = hand.put(part())
    for name in ("a", "b"):
        hand.publish(name, "1.0.0", digest)
    index = index_of(hand.root)
    assert index.names() == ["a", "b"]
    hand.remove("a")  # no draft in tmp tells of it
    assert pins(index) == ["b@1.0.0"] and index.find("a", "1.0.0") is None
    assert [one.name for one in index.listing()] == ["b"]


@pytest.mark.usefixtures("exact")
def test_a_version_rewritten_in_place_is_seen_when_it_is_told(hand: Hand) -> None:
    old, new = hand.put(part("extractor")), hand.put(part("head"))
    hand.publish("a", "1.0.0", old)
    index = index_of(hand.root)
    assert index.search()[0].kind == "extractor"
    hand.version("a", "1.0.0", new)
    assert index.search(kind="extractor") == [] and index.search(kind="head")[0].digest == new
    hand.version("a", "1.0.0", old)
    found = index.find("a", "1.0.0")
    assert found is not None and found.digest == old
    hand.version("a", "1.0.0", new)
    assert next(iter(index.listing())).kind == "head"


@pytest.mark.case("C5")
def test_what_just_changed_is_compared_by_content_because_clocks_can_be_coarse(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def coarse(state: os.stat_result) -> int:
        return hash((state.st_ino, state.st_size, state.st_mtime_ns // 10**10))

    for module in ("scanning", "folders", "manifests", "reading", "listing"):
        monkeypatch.setattr(f"compatkit.registry.index.{module}.stamp", coarse)
    digests = [hand.put(part(kind)) for kind in ("extractor", "head")]
    path, moment = hand.version("a", "1.0.0", digests[0]), 2_000_000_000
    os.utime(path, (moment, moment))
    index = index_of(hand.root)
    assert index.search()[0].digest == digests[0]
    path.write_text(f"{digests[1]}\n")
    os.utime(path, (moment, moment))  # the same file, size and time: only the content tells
    assert index.search()[0].digest == digests[1]
    path.write_text(f"{digests[0]}\n")
    os.utime(path, (moment, moment))
    found = index.find("a", "1.0.0")
    assert found is not None and found.digest == digests[0]


@pytest.mark.case("C5")
@pytest.mark.parametrize(
    "ahead", [-1, 1, 3600], ids=["a moment ago", "a moment ahead", "a clock that went backwards"]
)
def test_a_folder_that_just_changed_is_read_again(
    hand: Hand, opened: list[str], monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(
        scanning, "settled", lambda state, now: now - state.st_mtime_ns >= scanning.SETTLED_NS
    )
    hand.version("a", "1.0.0", hand.put(part()))
    index_of(hand.root).refresh()
    opened.clear()
    assert index_of(hand.root).refresh() > 0  # the folders were made now
    now = time.time()
    for folder in (hand.root / "refs", hand.folder("a"), hand.folder("a") / "@versions"):
        os.utime(folder, (now - 10, now - 10))
    assert index_of(hand.root).refresh() > 0 and index_of(hand.root).refresh() == 0
    os.utime(hand.folder("a"), (now + ahead, now + ahead))
    assert index_of(hand.root).refresh() == 1 and index_of(hand.root).refresh() == 1


@pytest.mark.usefixtures("exact")
def test_everything_is_read_again_when_that_is_asked_for(hand: Hand, opened: list[str]) -> None:
    hand.publish("a", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    index.refresh()
    opened.clear()
    seen: list[tuple[int, int, str]] = []
    index.rebuild(lambda done, total, what: seen.append((done, total, what)))
    assert len(opened) == 2 and seen[-1] == (2, 2, "")
    assert pins(index) == ["a@1.0.0"]


@pytest.mark.usefixtures("exact")
def test_a_damaged_manifest_keeps_its_line_and_heals(hand: Hand) -> None:
    digest = hand.put(part(about=tagged(domain="digits")))
    good = hand.blob(digest).read_bytes()
    hand.blob(digest).write_bytes(good.replace(b"digits", b"zigits"))
    hand.publish("a", "1.0.0", digest)
    index = index_of(hand.root)
    found = index.find("a", "1.0.0")
    assert found is not None and "other bytes" in found.error and found.digest == digest and found.kind == ""
    assert found.to_json().keys() == {"name", "version", "digest", "withdrawn", "error"}
    assert index.search() == [] and index.count() == 0 and index.names() == ["a"]
    assert digest in index.referenced()
    assert (
        "other bytes" in next(iter(index.listing())).error
        or "is missing" in next(iter(index.listing())).error
    )
    hand.blob(digest).write_bytes(good)
    later = index_of(hand.root)
    assert pins(later) == ["a@1.0.0"] and next(iter(later.listing())).error == ""


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "content", [b"not json", b"{}\n", b'{"schema":2}\n', b"[1]\n", b'{"schema":1,"kind":"x"}\n']
)
def test_a_manifest_that_is_none_is_damaged(hand: Hand, content: bytes) -> None:
    hand.publish("a", "1.0.0", hand.put(content))
    hand.publish("b", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    assert [bool(one.error) for one in index.listing()] == [True, False]
    assert pins(index) == ["b@1.0.0"] and index.status().damaged == 1


@pytest.mark.usefixtures("exact")
def test_a_manifest_damaged_after_it_was_read_is_seen_in_a_list(hand: Hand) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    assert next(iter(index_of(hand.root).listing())).error == ""
    data = hand.blob(digest).read_bytes()
    hand.blob(digest).write_bytes(data[::-1])
    hand.tick(hand.blob(digest))
    assert "other bytes" in next(iter(index_of(hand.root).listing())).error
    hand.blob(digest).write_bytes(data)
    assert next(iter(index_of(hand.root).listing())).error == ""


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "content", [b"x" * 72, b"sha256:" + b"0" * 64 + b"!", b"short\n", b"sha256:" + b"A" * 64 + b"\n"]
)
def test_a_damaged_version_keeps_its_line_and_hides_no_other(hand: Hand, content: bytes) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    hand.publish("a", "2.0.0", content)
    index = index_of(hand.root)
    (line,) = index.listing()
    assert (
        line.version == "2.0.0"
        and line.versions == ("1.0.0", "2.0.0")
        and "should hold one line" in line.error
    )
    assert pins(index) == ["a@1.0.0"] and pins(index, latest=True) == []
    hand.version("a", "2.0.0", digest)
    assert pins(index_of(hand.root), latest=True) == ["a@2.0.0"]


@pytest.mark.usefixtures("exact")
def test_an_empty_version_file_is_no_version_yet(hand: Hand) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    hand.publish("a", "1.1.0", b"")
    hand.publish("b", "1.0.0", b"")
    index = index_of(hand.root)
    assert (
        pins(index) == ["a@1.0.0"]
        and index.names() == ["a"]
        and next(iter(index.listing())).versions == ("1.0.0",)
    )
    found = index.find("a", "1.1.0")
    assert found is not None and "cut off" in found.error
    hand.version("a", "1.1.0", digest)  # finished, without any trace in a folder
    assert pins(index_of(hand.root)) == ["a@1.0.0", "a@1.1.0"]


@pytest.mark.case("C1", "H")
@pytest.mark.usefixtures("exact")
def test_links_below_refs_are_never_followed(hand: Hand, tmp_path: Path) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    outside = Hand.init(tmp_path / "other")
    outside.publish("x/y", "1.0.0", digest)
    (hand.root / "refs" / "linked").symlink_to(outside.root / "refs" / "x")
    (hand.root / "refs" / "b").mkdir()
    (hand.root / "refs" / "b" / "@versions").symlink_to(outside.folder("x/y") / "@versions")
    (hand.folder("a") / "@versions" / "1.1.0").symlink_to(outside.folder("x/y") / "@versions" / "1.0.0")
    hand.settle("a")
    index = index_of(hand.root)
    assert index.names() == ["a"] and pins(index) == ["a@1.0.0"]
    (line,) = index.listing()
    assert line.version == "1.1.0" and "link" in line.error
    with pytest.raises(IntegrityError, match="symbolic link"):
        index.find("linked/y", "1.0.0")
    shutil.move(hand.root / "refs", tmp_path / "away")
    (hand.root / "refs").symlink_to(tmp_path / "away")
    with pytest.raises(IntegrityError, match="symbolic link"):
        index_of(hand.root).names()


@pytest.mark.case("C6", "H")
@pytest.mark.usefixtures("exact")
def test_thousands_of_stray_files_and_folders_are_passed_over(hand: Hand) -> None:
    hand.publish("a", "1.0.0", hand.put(part()))
    for folder in (hand.root / "refs", hand.folder("a"), hand.folder("a") / "@versions", hand.root / "tmp"):
        for number in range(500):
            (folder / f"stray{number}.txt").write_bytes(b"")
        (folder / ".DS_Store").write_bytes(b"x")
        (folder / "1.0.0~").write_bytes(b"x")
    for number in range(200):
        (hand.root / "refs" / f"empty{number}").mkdir()
        (hand.root / "refs" / f"Odd {number}").mkdir()
        (hand.folder("a") / "@versions" / f"9.9.{number}").mkdir()
    hand.settle("a")
    index = index_of(hand.root)
    assert index.names() == ["a"] and pins(index) == ["a@1.0.0"]
    assert index_of(hand.root).names() == ["a"]


def test_one_name_is_looked_up_without_a_look_at_all_folders(hand: Hand, looks: list[int]) -> None:
    hand.version("a/b", "1.0.0", hand.put(part()))
    hand.version("empty", "1.0.0", b"")
    index = index_of(hand.root)
    assert index.names("a/b") == ["a/b"] and index.names("a") == [] == index.names("empty")
    assert index.names("../a") == [] == index.names("A") and index.names("") == []
    (hand.root / "refs" / "linked").symlink_to(hand.root / "refs" / "a")
    assert index.names("linked/b") == [] and looks == []
    assert index.names("a/[b]") == ["a/b"] and len(looks) == 1


def test_a_name_or_version_that_is_none_is_refused(hand: Hand) -> None:
    index = index_of(hand.root)
    for name, version in (("../a", "1.0.0"), ("A", "1.0.0"), ("a", "1.0"), ("a", "../x"), ("a//b", "1.0.0")):
        with pytest.raises(InvalidName):
            index.find(name, version)


@pytest.mark.usefixtures("exact")
def test_referenced_are_all_digests_that_a_version_leads_to(hand: Hand) -> None:
    from compatkit.registry.maintenance.gc import plan

    weights, inner = hand.put(b"weights"), hand.put(b"inner")
    record = hand.put(f'{{"kept":{{"blob":"{inner}"}}}}\n'.encode())
    payload = attrs.evolve(part().payload, file=attrs.evolve(part().payload.file, blob=weights))
    grandparent = hand.put(part(payload=payload, about=tagged(is_="first")))
    parent = hand.put(part(payload=payload, parents=child_of(grandparent)))
    child = hand.put(
        part("head", payload=payload, parents=child_of(parent), training={"run": {"blob": record}})
    )
    unused = hand.put(b"nothing leads here")
    hand.publish("a", "1.0.0", child)
    hand.withdraw("a", "1.0.0")  # its digest still finds it
    index, store = index_of(hand.root), Store.open(hand.root)
    assert index.referenced() == {child, parent, grandparent, weights, record, inner}
    assert unused not in index.referenced()
    expected = {child: [parent, weights, record], record: [inner], parent: [grandparent, weights]}
    expected[grandparent] = [weights]
    assert sorted(index.edges()) == sorted(
        (one, other) for one, others in expected.items() for other in others
    )
    from_files, from_index = plan(store), plan(store, referenced=index.referenced())
    assert [one.digest for one in from_files.blobs] == [one.digest for one in from_index.blobs] == [unused]


@pytest.mark.usefixtures("exact")
def test_lists_tell_versions_and_aliases(hand: Hand) -> None:
    digest = hand.put(part())
    for version in ("1.2.0", "1.10.0", "2.0.0"):
        hand.publish("a", version, digest)
    hand.publish("b", "1.0.0", digest)
    hand.withdraw("b", "1.0.0")
    store = Store.open(hand.root)
    index = index_of(hand.root)
    (line,) = index.listing()
    assert line.versions == ("1.2.0", "1.10.0", "2.0.0") and line.aliases == {}
    store.set_alias("a", "prod", "1.10.0")
    (line,) = index.listing("[ab]*")
    assert line.aliases == {"prod": "1.10.0"} and index.names() == ["a", "b"]
    store.set_alias("a", "prod", "2.0.0")
    assert next(iter(index.listing())).aliases == {"prod": "2.0.0"}
    (hand.folder("a") / "@aliases" / "prod").write_bytes(b"nonsense")
    assert "number of its move" in next(iter(index_of(hand.root).listing())).error


@pytest.mark.usefixtures("exact")
def test_pages_of_a_stream_fit_together(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    from compatkit.registry.index import lookup as module

    digests = [hand.put(part(model=f"net{number}")) for number in range(3)]
    for number in range(7):
        for minor in range(3):
            hand.version(f"n{number}", f"1.{minor}.0", digests[minor])
    everything = pins(index_of(hand.root))
    assert len(everything) == 21
    monkeypatch.setattr(module, "PAGE", 2)
    index = index_of(hand.root)
    assert [str(one) for one in index.each()] == everything
    assert (
        [str(one) for one in index.each(limit=5, offset=4)]
        == everything[4:9]
        == pins(index, limit=5, offset=4)
    )
    assert [str(one) for one in index.each(model="net1", limit=4)] == [
        f"n{number}@1.1.0" for number in range(4)
    ]
    assert [one.name for one in index.listing()] == [f"n{number}" for number in range(7)]
    assert index.count(limit=2, offset=1) == 21
