"""The index follows the files: what writers do, what hands do, and what changes without any trace in a folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import Hand, part, tagged

from compatkit.errors import IntegrityError
from compatkit.registry.blobs import Objects
from compatkit.registry.index import stamps as files
from compatkit.registry.index.lookup import Index
from compatkit.registry.index.stamps import pulse
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.repair import plan
from compatkit.registry.refs import References
from compatkit.registry.store import Store


def index_of(root: Path) -> Index:
    """Return what a new process would use."""
    return Index.of(root, Store.open(root).id)


def pins(index: Index, **filters: Any) -> list[str]:
    return [str(component) for component in index.search(**filters)]


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand.init(tmp_path / "parts")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every time at once: ``Hand`` gives each change its own."""
    monkeypatch.setattr(files, "SETTLED_NS", 0)


def names_in(index: Index) -> list[str]:
    return [line.name for line in index.listing()]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the manifests that are read."""
    seen: list[str] = []
    read = Objects.read

    def watched(objects: Objects, digest: str, **settings: Any) -> bytes:
        seen.append(digest)
        return read(objects, digest, **settings)

    monkeypatch.setattr(Objects, "read", watched)
    return seen


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record each look at all folders; a quiet registry gets none."""
    seen: list[int] = []
    names = References.names

    def look(references: References) -> list[str]:
        result = names(references)
        seen.append(len(result))
        return result

    monkeypatch.setattr(References, "names", look)
    return seen


def test_an_empty_registry_has_nothing(hand: Hand) -> None:
    index = index_of(hand.root)
    assert index.search() == [] and index.listing() == [] and index.count() == 0 and index.roots() == []


def test_what_the_store_publishes_and_withdraws_is_found(store: Store, publish: Callable[..., Any]) -> None:
    index = index_of(store.root)
    assert index.listing() == []
    first, second = publish(store, "a/b"), publish(store, "a/b", 1)
    assert pins(index) == ["a/b@1.0.0", "a/b@2.0.0"] and pins(index, latest=True) == ["a/b@2.0.0"]
    store.withdraw("a/b", "2.0.0", "wrong data")
    assert pins(index) == ["a/b@1.0.0"] == pins(index, latest=True)
    assert [component.withdrawn for component in index.search(withdrawn=True)] == [False, True]
    assert index.search(withdrawn=True, digest=second.digest)[0].version == "2.0.0"
    assert set(index.roots()) == {("a/b", first.digest), ("a/b", second.digest)}


def test_what_is_told_of_a_version_is_what_its_manifest_says(
    store: Store, publish: Callable[..., Any]
) -> None:
    publish(store, "a/b", about=tagged(domain="digits"), parents=())
    manifest, (result,) = store.manifest("a/b"), index_of(store.root).search()
    assert result.digest == store.resolve("a/b").digest
    assert (result.kind, result.builder, result.model, result.cut) == (
        "extractor",
        "timm",
        "resnet20_cifar",
        "layer2",
    )
    assert (result.parameters, result.bytes) == (manifest.payload.parameters, manifest.payload.file.bytes)
    assert (result.channels, result.classes, result.tags) == ((32,), 2, {"domain": "digits"})
    assert result.to_json()["tags"] == {"domain": "digits"} and "error" not in result.to_json()


@pytest.mark.usefixtures("exact")
def test_unchanged_names_are_not_read_again(hand: Hand, opened: list[str]) -> None:
    for name in ("a/b", "a/c", "d"):
        hand.publish(name, "1.0.0", hand.put(part(about=tagged(of=name))))
    index_of(hand.root).refresh()
    assert len(opened) == 3
    opened.clear()
    later = index_of(hand.root)
    assert later.refresh() == 0 and opened == []
    hand.publish("a/c", "1.1.0", new := hand.put(part(about=tagged(of="a/c again"))))
    assert later.refresh() == 1 and opened == [new]


@pytest.mark.usefixtures("exact")
def test_folders_are_looked_at_again_only_if_a_writer_came_by(hand: Hand, looks: list[int]) -> None:
    hand.publish("a", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    assert names_in(index) == ["a"] and looks == [1]
    assert names_in(index) == ["a"] and index.count() == 1 and looks == [1]
    with hand.writer("b"):
        hand.version("b", "1.0.0", hand.put(part()))
        assert names_in(index) == ["a", "b"]
        assert names_in(index) == ["a", "b"] and len(looks) == 3  # somebody is at work: look each time
    assert names_in(index) == ["a", "b"] and len(looks) == 4
    assert names_in(index) == ["a", "b"] and len(looks) == 4
    assert names_in(index_of(hand.root)) == ["a", "b"] and len(looks) == 4  # nor does another process


@pytest.mark.usefixtures("exact")
def test_what_only_a_hand_changed_is_seen_after_the_next_write_or_a_rebuild(hand: Hand) -> None:
    hand.publish("a/b", "1.0.0", hand.put(part()))
    assert names_in(index_of(hand.root)) == ["a/b"]
    hand.version("a/c", "1.0.0", hand.put(part()))
    assert names_in(index_of(hand.root)) == ["a/b"]
    hand.publish("a/d", "1.0.0", hand.put(part()))
    assert names_in(index_of(hand.root)) == ["a/b", "a/c", "a/d"]
    hand.version("a/e", "1.0.0", hand.put(part()))
    index_of(hand.root).rebuild()
    assert names_in(index_of(hand.root)) == ["a/b", "a/c", "a/d", "a/e"]


@pytest.mark.case("C6", "D7")
@pytest.mark.usefixtures("exact")
def test_a_draft_that_nobody_removed_stops_mattering_after_an_hour(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = hand.root / "tmp" / "1234-00000000000000aa"
    draft.write_bytes(b"")
    assert pulse(hand.root) is None
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3601 * 10**9)
    before = pulse(hand.root)
    assert before is not None and before == pulse(hand.root)
    (hand.root / "refs" / "a").hardlink_to(draft)  # its writer stood still for an hour, and goes on
    assert pulse(hand.root) != before


def test_every_write_changes_the_pulse(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pulse(hand.root) is None  # just made: coarse clocks could hide a change
    monkeypatch.setattr(files, "SETTLED_NS", 0)
    before = pulse(hand.root)
    assert before is not None and pulse(hand.root) == before
    (hand.root / "tmp" / "1-a").write_bytes(b"")
    assert pulse(hand.root) is None  # somebody is at work
    (hand.root / "tmp" / "1-a").unlink()
    assert pulse(hand.root) not in (None, before)
    shutil.rmtree(hand.root / "tmp")
    assert pulse(hand.root) is None
    (hand.root / "tmp").symlink_to(hand.root / "trash")
    assert pulse(hand.root) is None


@pytest.mark.parametrize("ahead", [-1, 1, 3600])
def test_a_clock_that_is_ahead_or_was_put_back_only_costs_looks(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(files, "_age", lambda state, at: at - state.st_mtime_ns)
    for folder in ("tmp", "refs"):
        os.utime(hand.root / folder, ns=(now + ahead * 10**9,) * 2)
    assert pulse(hand.root) is None
    monkeypatch.setattr(time, "time_ns", lambda: now + (ahead + 2) * 10**9)
    assert pulse(hand.root) is not None


@pytest.mark.usefixtures("exact")
def test_names_that_are_removed_by_hand_vanish_with_all_below_them(hand: Hand) -> None:
    digest = hand.put(part())
    for name in ("a", "a/b", "a/b/c", "a-b", "ab"):
        hand.publish(name, "1.0.0", digest)
    assert names_in(index_of(hand.root)) == ["a", "a-b", "a/b", "a/b/c", "ab"]
    with hand.writer("ab"):
        hand.remove("a/b")
    assert names_in(index_of(hand.root)) == ["a", "a-b", "ab"]
    with hand.writer("ab"):
        hand.remove("a")
    assert names_in(index_of(hand.root)) == ["a-b", "ab"]
    shutil.rmtree(hand.root / "refs")
    assert names_in(index_of(hand.root)) == []


@pytest.mark.usefixtures("exact")
def test_a_number_that_was_freed_and_published_again_is_read_again(hand: Hand) -> None:
    old, new = hand.put(part("extractor")), hand.put(part("head"))
    hand.publish("a/b", "1.0.0", old)
    index = index_of(hand.root)
    assert index.search()[0].kind == "extractor"
    hand.remove("a/b")
    hand.publish("a/b", "1.0.0", new)
    assert index.search(kind="extractor") == [] and index.search(kind="head")[0].digest == new
    hand.version("a/b", "1.0.0", old)  # in place
    index.rebuild()
    assert index.search()[0].digest == old and index.listing()[0].kind == "extractor"


@pytest.mark.case("C5")
@pytest.mark.parametrize(
    "ahead", [-1, 1, 3600], ids=["a moment ago", "a moment ahead", "a clock that went backwards"]
)
def test_a_folder_that_just_changed_is_read_again(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(files, "_age", lambda state, now: now - state.st_mtime_ns)
    hand.version("a", "1.0.0", hand.put(part()))
    index_of(hand.root).refresh()
    assert index_of(hand.root).refresh() == 1  # the folders were made now
    folder, now = hand.folder("a") / "@versions", time.time()
    os.utime(folder, (now - 10, now - 10))
    assert index_of(hand.root).refresh() == 1 and index_of(hand.root).refresh() == 0
    os.utime(folder, (now + ahead, now + ahead))
    assert index_of(hand.root).refresh() == 1 and index_of(hand.root).refresh() == 1


@pytest.mark.usefixtures("exact")
def test_everything_is_read_again_when_that_is_asked_for(hand: Hand, opened: list[str]) -> None:
    hand.publish("a", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    index.refresh()
    opened.clear()
    seen: list[tuple[int, int, str]] = []
    index.rebuild(lambda done, total, what: seen.append((done, total, what)))
    assert len(opened) == 1 and seen[-1] == (1, 1, "")
    assert pins(index) == ["a@1.0.0"]


@pytest.mark.usefixtures("exact")
def test_a_damaged_manifest_keeps_its_line_and_heals(hand: Hand) -> None:
    digest = hand.put(part(about=tagged(domain="digits")))
    good = hand.blob(digest).read_bytes()
    hand.blob(digest).write_bytes(good.replace(b"digits", b"zigits"))
    hand.publish("a", "1.0.0", digest)
    index = index_of(hand.root)
    (line,) = index.listing()
    assert "not match its digest" in line.error and line.version == "1.0.0" and line.kind == ""
    assert line.to_json().keys() == {"name", "version", "versions", "error"}
    assert index.search() == [] and index.count() == 0 and names_in(index) == ["a"]
    hand.blob(digest).write_bytes(good)
    hand.tick(hand.root / "tmp")  # as any write does
    later = index_of(hand.root)
    assert pins(later) == ["a@1.0.0"] and later.listing()[0].error == ""


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "content", [b"not json", b"{}\n", b'{"schema":2}\n', b"[1]\n", b'{"schema":1,"kind":"x"}\n']
)
def test_a_manifest_that_is_none_is_damaged(hand: Hand, content: bytes) -> None:
    hand.publish("a", "1.0.0", hand.put(content))
    hand.publish("b", "1.0.0", hand.put(part()))
    index = index_of(hand.root)
    assert [bool(entry.error) for entry in index.listing()] == [True, False]
    assert pins(index) == ["b@1.0.0"] and index.status().damaged == 1


@pytest.mark.usefixtures("exact")
def test_a_damaged_manifest_is_looked_at_again_after_each_write(hand: Hand) -> None:
    hand.publish("a", "1.0.0", digest := hand.put(b"{" * 1000))
    assert "JSON" in index_of(hand.root).listing()[0].error
    for change, expected in (
        (lambda: hand.blob(digest).write_bytes(b"["), "not match its digest"),
        (hand.blob(digest).unlink, "is missing"),
    ):
        change()
        hand.tick(hand.root / "tmp")
        assert expected in index_of(hand.root).listing()[0].error


@pytest.mark.usefixtures("exact")
def test_only_what_versions_name_counts_as_damaged(hand: Hand) -> None:
    wrong = hand.put(b"{" * 1000)
    hand.publish("a", "1.0.0", wrong)
    hand.publish("b", "1.0.0", wrong)
    assert index_of(hand.root).status().damaged == 2
    hand.remove("a")
    hand.publish("a", "1.0.0", right := hand.put(part()))
    assert index_of(hand.root).status().damaged == 1
    hand.remove("b")
    hand.publish("b", "1.0.0", right)
    assert index_of(hand.root).status().damaged == 0


@pytest.mark.usefixtures("exact")
def test_a_manifest_damaged_after_it_was_read_is_seen_in_a_list_after_a_rebuild(hand: Hand) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    assert index_of(hand.root).listing()[0].error == ""
    data = hand.blob(digest).read_bytes()
    hand.blob(digest).write_bytes(data[::-1])
    index_of(hand.root).rebuild()
    assert "not match its digest" in index_of(hand.root).listing()[0].error
    hand.blob(digest).write_bytes(data)
    hand.tick(hand.root / "tmp")
    assert index_of(hand.root).listing()[0].error == ""


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
    hand.tick(hand.root / "tmp")  # as any write does
    assert pins(index_of(hand.root), latest=True) == ["a@2.0.0"]


@pytest.mark.usefixtures("exact")
def test_an_empty_version_file_is_no_version_yet(hand: Hand) -> None:
    digest = hand.put(part())
    hand.publish("a", "1.0.0", digest)
    hand.publish("a", "1.1.0", b"")
    hand.publish("b", "1.0.0", b"")
    index = index_of(hand.root)
    assert (
        pins(index) == ["a@1.0.0"] and names_in(index) == ["a"] and index.listing()[0].versions == ("1.0.0",)
    )
    (hand.folder("a") / "@versions" / "1.1.0").unlink()
    hand.publish("a", "1.1.0", digest)
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
    assert names_in(index) == ["a"] and pins(index) == ["a@1.0.0"]
    (line,) = index.listing()
    assert line.version == "1.1.0" and "link" in line.error
    hand.publish("x/y", "1.0.0", digest)
    assert names_in(index) == ["a", "x/y"]
    with hand.writer("a"):  # the very folder that was read, with its inode and times, now lies outside
        shutil.move(hand.root / "refs" / "x", tmp_path / "moved")
        (hand.root / "refs" / "x").symlink_to(tmp_path / "moved")
    (tmp_path / "moved" / "y" / "@versions" / "2.0.0").write_text(f"{digest}\n")
    assert names_in(index) == ["a"] and names_in(index_of(hand.root)) == ["a"]
    shutil.move(hand.root / "refs", tmp_path / "away")
    (hand.root / "refs").symlink_to(tmp_path / "away")
    with pytest.raises(IntegrityError, match="symbolic link"):
        names_in(index_of(hand.root))


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
    assert names_in(index) == ["a"] and pins(index) == ["a@1.0.0"]
    assert names_in(index_of(hand.root)) == ["a"]


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
    assert line.aliases == {"prod": "1.10.0"}
    store.set_alias("a", "prod", "2.0.0")
    assert index.listing()[0].aliases == {"prod": "2.0.0"}
    (hand.folder("a") / "@log" / "prod" / "2").chmod(0o644)
    (hand.folder("a") / "@log" / "prod" / "2").write_bytes(b"{}")
    assert "from and to" in index_of(hand.root).listing()[0].error


@pytest.mark.usefixtures("exact")
def test_limit_and_offset_cut_what_is_found(hand: Hand) -> None:
    digests = [hand.put(part(model=f"net{number}")) for number in range(3)]
    for number in range(7):
        for minor in range(3):
            hand.version(f"n{number}", f"1.{minor}.0", digests[minor])
    index = index_of(hand.root)
    everything = pins(index)
    assert len(everything) == 21 and pins(index, limit=5, offset=4) == everything[4:9]
    assert pins(index, model="net1", limit=4) == [f"n{number}@1.1.0" for number in range(4)]
    assert [entry.name for entry in index.listing()] == [f"n{number}" for number in range(7)]
    assert index.count(limit=2, offset=1) == 21


@pytest.mark.usefixtures("exact")
def test_what_verify_finds_and_a_repair_moves_is_seen(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0.0", "2.0.0"):
        hand.publish("a", version, hand.put(part(about=tagged(of=version))))
    store, elsewhere = Store.open(hand.root), hand.root.parent / "another cache"
    assert pins(store.index) == ["a@1.0.0", "a@2.0.0"]
    with monkeypatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", str(elsewhere))
        other = index_of(hand.root)
        assert pins(other) == ["a@1.0.0", "a@2.0.0"]
    copy = Store.open(shutil.copytree(hand.root, hand.root.parent / "copy"))
    hand.version("a", "2.0.0", b"x" * 72)
    assert pins(store.index) == ["a@1.0.0", "a@2.0.0"]
    report = examine(store)
    assert pins(store.index) == ["a@1.0.0"] and "one line" in store.index.listing()[0].error
    plan(report, source=copy).apply()
    assert pins(store.index) == pins(other) == ["a@1.0.0", "a@2.0.0"]
    assert store.index.listing()[0].version == "2.0.0"
