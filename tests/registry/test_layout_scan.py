"""Every file of a registry by what it is, found by names alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from handmade import HEX, Hand, part

from compatkit.registry.layout_scan import (
    Aside,
    Blob,
    Obstacle,
    PolicyFile,
    ResultPointer,
    SignatureFile,
    VersionFile,
    scan,
)
from compatkit.registry.names import Version
from compatkit.registry.policy_scopes import file_name


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand.init(tmp_path / "parts")


def write(hand: Hand, path: str, text: str = "") -> None:
    (hand.root / path).parent.mkdir(parents=True, exist_ok=True)
    (hand.root / path).write_text(text)


def kinds_by_path(hand: Hand, *folders: str) -> dict[str, str]:
    """Return the kind of everything, by path."""
    return {entry.path: type(entry).__name__ for entry in scan(hand.root, *folders)}


PLACES = {
    "refs/a/b/@versions/1.0.0": "VersionFile",
    "refs/a/b/@versions/1.0.0.bak": "Unknown",
    "refs/a/b/@versions/01.0.0": "Unknown",
    "refs/a/b/@tombstones/1.0.0": "TombstoneFile",
    "refs/a/b/@aliases/best": "AliasPointer",
    "refs/a/b/@aliases/latest": "Unknown",
    "refs/a/b/@log/best/1": "AliasMove",
    "refs/a/b/@log/best/01": "Unknown",
    "refs/a/b/@log/last": "Obstacle",
    "refs/a/b/@dropped/1.0.0/1": "DropFile",
    "refs/a/b/@dropped/1.0.0/01": "Unknown",
    "refs/a/b/@dropped/1.0": "Unknown",
    "refs/a/b/@dropped/2.0.0": "Obstacle",
    "refs/a/b/c/d/@versions": "Unknown",
    "refs/a/notes.txt": "Unknown",
    "refs/a/Name": "Unknown",
    "refs/x/@versions": "Obstacle",
    f"evidence/{HEX[1]}/{HEX[2]}/{HEX[3]}/{HEX[4]}": "ResultPointer",
    f"evidence/{HEX[1]}/{HEX[2]}/{HEX[3]}/notes": "Unknown",
    f"evidence/{HEX[1]}/{HEX[5]}": "Obstacle",
    "evidence/notes": "Unknown",
    f"policies/{file_name('digits/*', 3)}": "PolicyFile",
    "policies/notes": "Unknown",
    f"signatures/{HEX[1]}/{HEX[2][:16]}-{HEX[3]}.json": "SignatureFile",
    f"signatures/{HEX[1]}/notes": "Unknown",
    f"signatures/{HEX[2]}": "Obstacle",
    f"blobs/sha256/{HEX[1][:2]}/{HEX[1]}": "Blob",
    f"blobs/sha256/{HEX[1][:2]}/{HEX[2]}": "Unknown",
    f"blobs/sha256/{HEX[3]}.orig": "Unknown",
    "blobs/sha256/notes": "Unknown",
    "blobs/md5/x": "Unknown",
    "tmp/1-0123456789abcdef": "Aside",
    f"trash/{HEX[1]}-1-0123456789abcdef": "Aside",
    "quarantine/anything": "Aside",
    "attic/list": "Unknown",
}


def test_every_file_is_found_as_what_it_is(hand: Hand) -> None:
    for path in PLACES:
        write(hand, path)
    tops = {"refs/a/b/c/d/@versions": "refs/a/b/c/d", "blobs/md5/x": "blobs/md5", "attic/list": "attic"}
    assert kinds_by_path(hand) == {tops.get(path, path): kind for path, kind in PLACES.items()}


def test_places_say_what_their_names_say(hand: Hand) -> None:
    write(hand, "refs/a/b/@versions/1.20.3")
    write(hand, f"evidence/{HEX[1]}/{HEX[2]}/{HEX[3]}/{HEX[4]}")
    write(hand, f"policies/{file_name('digits/*', 3)}")
    write(hand, f"signatures/{HEX[1]}/{HEX[2][:16]}-{HEX[3]}.json")
    write(hand, "tmp/draft")
    places = [entry._replace(path="") for entry in scan(hand.root)]
    assert places == [
        Aside("", "tmp", "draft"),
        VersionFile("", "a/b", Version(1, 20, 3)),
        ResultPointer("", HEX[1], HEX[2], HEX[3], HEX[4]),
        PolicyFile("", "digits/*", 3),
        SignatureFile("", HEX[1], f"{HEX[2][:16]}-{HEX[3]}.json"),
    ]


@pytest.mark.parametrize("folder", ["refs", "evidence", "policies", "signatures", "blobs", "tmp", "keys"])
def test_no_link_is_followed(hand: Hand, tmp_path: Path, folder: str) -> None:
    outside = tmp_path / "outside"
    (outside / "1" / "@versions").mkdir(parents=True)
    (outside / "1" / "@versions" / "1.0.0").write_text("")
    os.rename(hand.root / folder, tmp_path / "moved")
    (hand.root / folder).symlink_to(outside)
    assert list(scan(hand.root, folder)) == [Obstacle(folder)]
    (hand.root / folder).unlink()
    assert list(scan(hand.root, folder)) == []


def test_no_link_on_the_way_to_a_name_is_followed(hand: Hand, tmp_path: Path) -> None:
    (tmp_path / "b" / "@versions").mkdir(parents=True)
    (tmp_path / "b" / "@versions" / "1.0.0").write_text("")
    (hand.root / "refs" / "a").symlink_to(tmp_path)
    assert list(scan(hand.root, "refs/a/b")) == [Obstacle("refs/a")]


def test_links_inside_are_obstacles_or_what_their_names_say(hand: Hand, tmp_path: Path) -> None:
    (hand.root / "refs" / "a" / "@versions").mkdir(parents=True)
    (hand.root / "refs" / "b").symlink_to(tmp_path)
    (hand.root / "refs" / "a" / "@aliases").symlink_to(tmp_path)
    (hand.root / "refs" / "a" / "@versions" / "1.0.0").symlink_to(tmp_path / "x")
    (hand.root / "blobs" / "sha256" / "00").symlink_to(tmp_path)
    assert kinds_by_path(hand) == {
        "refs/a/@aliases": "Obstacle",
        "refs/a/@versions/1.0.0": "VersionFile",
        "refs/b": "Obstacle",
        "blobs/sha256/00": "Obstacle",
    }


def test_the_folder_of_a_name_holds_its_own_files(hand: Hand) -> None:
    for name in ("a", "a/b", "c"):
        hand.publish(name, "1.0.0", hand.put(part()))
        write(hand, f"refs/{name}/NOTES")
    only = {"refs/a/b/@versions/1.0.0", "refs/a/b/NOTES"}
    assert {entry.path for entry in scan(hand.root, "refs/a/b")} == only
    assert not list(scan(hand.root, "refs/x")) and not list(scan(hand.root, "refs/a/c"))


def test_a_caller_that_lists_folders_sees_each_once(hand: Hand) -> None:
    hand.publish("a/b", "1.0.0", hand.put(part()))
    seen: list[str] = []

    def entries(folder: str) -> list[os.DirEntry[str]]:
        seen.append(folder)
        return list(os.scandir(hand.root / folder))

    assert sum(isinstance(entry, (Blob, VersionFile)) for entry in scan(hand.root, entries=entries)) == 2
    assert len(seen) == len(set(seen)) and {"refs/a/b/@versions", "blobs/sha256", "tmp", ""} <= set(seen)
