"""Lists of files: remembered while no folder changes, made anew when one does or what is remembered is damaged."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data import listing as lists
from compatkit.data.imagefiles import image_folders
from compatkit.data.listing import FolderListing, list_images
from compatkit.data.unlabeled import read_unlabeled
from compatkit.errors import DataError

FOLDERS = ["ant", "bee"]
PATHS = ["ant/000.png", "ant/001.png", "ant/deep/000.png", "bee/000.png", "bee/001.png", "bee/002.png"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lists, "SETTLED_NS", 0)  # folders of tests are young
    monkeypatch.setattr(lists, "times_folders", lambda device: True)
    made = class_folder(tmp_path / "photos", {"ant": 2, "bee": 3})
    class_folder(made / "ant", {"deep": 1})
    time.sleep(0.02)  # a tick of the file system's clock
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders that are listed from now on."""
    seen: list[str] = []

    def watched(root: Path, folder: str, *more: object) -> Iterator[list[str]]:
        seen.append(folder)
        return image_folders(root, folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(lists, "image_folders", watched)
    return seen


def paths(listing: FolderListing) -> list[str]:
    return [os.fsdecode(name) for name in listing.names]


def remembered_file(tmp_path: Path) -> Path:
    (result,) = (tmp_path / "remembered" / "images").glob("*.npz")
    return result


def test_paths_are_sorted_in_each_folder(root: Path) -> None:
    result = list_images(root, FOLDERS)
    assert paths(result) == PATHS and result.counts.tolist() == [3, 3]
    turned = list_images(root, FOLDERS[::-1])
    assert paths(turned) == [*PATHS[3:], *PATHS[:3]]
    assert paths(list_images(root, [""])) == PATHS and list_images(root, [""]).counts.tolist() == [6]


def test_a_folder_is_listed_once(root: Path, read: list[str]) -> None:
    first = list_images(root, FOLDERS)
    assert read == FOLDERS
    again = list_images(root, FOLDERS)
    assert read == FOLDERS and paths(again) == PATHS and again.counts.tolist() == first.counts.tolist()
    assert ck.data.load(root).train.digest == ck.data.load(root).train.digest and read == FOLDERS


@pytest.mark.parametrize("change", ["new", "gone", "renamed", "deep", "other class"])
def test_a_folder_that_changed_is_listed_again(root: Path, read: list[str], change: str) -> None:
    list_images(root, FOLDERS)
    time.sleep(0.02)
    folders = FOLDERS
    if change == "new":
        (root / "bee" / "9.png").write_bytes(encoded(photo(5, 5)))
    elif change == "gone":
        (root / "ant" / "001.png").unlink()
    elif change == "renamed":
        (root / "bee" / "001.png").rename(root / "bee" / "1.png")
    elif change == "deep":
        (root / "ant" / "deep" / "1.png").write_bytes(encoded(photo(5, 5)))
    else:
        (root / "bee").rename(root / "cat")
        folders = ["ant", "cat"]
    result = list_images(root, folders)
    assert read == [*FOLDERS, *folders]
    expected = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    assert paths(result) == expected and int(result.counts.sum()) == len(expected)


def test_a_time_that_is_set_back_hides_nothing(root: Path, read: list[str]) -> None:
    """Unpacking an archive sets the times of folders; those of the last change cannot be set."""
    list_images(root, FOLDERS)
    before = os.stat(root / "bee")
    (root / "bee" / "9.png").write_bytes(encoded(photo(5, 5)))
    os.utime(root / "bee", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(root / "bee").st_mtime_ns == before.st_mtime_ns
    assert len(list_images(root, FOLDERS).names) == 7


def test_what_was_changed_just_now_is_not_remembered(
    root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "SETTLED_NS", 10**12)
    list_images(root, FOLDERS)
    list_images(root, FOLDERS)
    assert read == FOLDERS * 2


def test_file_systems_that_make_times_up_are_not_believed(
    root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    list_images(root, FOLDERS)
    monkeypatch.setattr(lists, "times_folders", lambda device: False)
    list_images(root, FOLDERS)
    assert read == FOLDERS * 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "text", "folder", "rule"])
def test_a_damaged_memory_is_made_anew(
    root: Path, read: list[str], tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_images(root, FOLDERS)
    place = remembered_file(tmp_path)
    if damage == "cut":
        place.write_bytes(place.read_bytes()[:-30])
    elif damage == "flipped":
        content = place.read_bytes()
        place.write_bytes(content.replace(b"ant/001", b"ant/901", 1))
    elif damage == "other":
        np.savez(place, asked=np.arange(3))
    elif damage == "text":
        place.write_text("no archive")
    elif damage == "folder":
        place.unlink()
        place.mkdir()
    else:
        monkeypatch.setattr(lists, "RULE", "another rule")
    assert paths(list_images(root, FOLDERS)) == PATHS and read == FOLDERS * 2
    if damage != "folder":
        assert paths(list_images(root, FOLDERS)) == PATHS and read == FOLDERS * 2


def test_a_cache_that_cannot_be_written_is_no_error(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("a file")
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "blocked"))
    assert paths(list_images(root, FOLDERS)) == PATHS


def test_names_that_are_no_text_stay_what_they_are(root: Path) -> None:
    name = os.fsencode(root / "ant") + b"/k\xc3\xa4fer\xff.png"
    try:
        with open(name, "wb") as file:
            file.write(encoded(photo(4, 4)))
    except OSError:
        pytest.skip("this file system takes texts only")
    for _ in range(2):
        result = ck.data.load(root, hold_out=0.4)
        every = [*result.train.image_digests, *result.test.image_digests]
        assert len(every) == 7
    assert os.fsdecode(b"ant/k\xc3\xa4fer\xff.png") in paths(list_images(root, FOLDERS))


def test_images_without_classes_are_listed_once_too(root: Path, read: list[str]) -> None:
    flat = class_folder(root / "bee" / "flat", {"": 2})
    time.sleep(0.02)
    assert len(read_unlabeled(flat)) == len(read_unlabeled(flat)) == 2 and read == [""]


class TestUnverified:
    def test_the_digest_is_over_names_sizes_and_times_and_reads_nothing(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = ck.data.load(root, digest="unverified")

        def refuse(*_: object) -> None:
            raise AssertionError("a file was read")

        monkeypatch.setattr("compatkit.data.filedigests._digest", refuse)
        digest = data.train.digest
        assert digest.startswith("data:unverified:") and len(digest) == len("data:unverified:") + 64
        assert data.source is not None and data.source.spec["digest"] == "unverified"
        assert ck.data.load_spec(data.source.spec).train.digest == digest
        assert data.train.subset(2).digest != digest != data.test.digest
        assert data.train.subset(2).resized((4, 4)).digest.startswith("data:unverified:")

    @pytest.mark.parametrize("change", ["time", "size", "name", "nothing"])
    def test_it_changes_with_each_of_them(self, root: Path, change: str) -> None:
        whole = {"hold_out": 0.3, "digest": "unverified"}
        data = ck.data.load(root, **whole)  # type: ignore[arg-type]
        digest, file = data.train.digest, Path(data.train.name_of(0))
        of = file.stat()
        if change == "time":
            os.utime(file, ns=(1, of.st_mtime_ns + 1))
        elif change == "size":
            with file.open("ab") as more:
                more.write(b"\0")
            os.utime(file, ns=(1, of.st_mtime_ns))
        elif change == "name":
            file.rename(file.with_name("000a.png"))
        else:
            os.utime(file, ns=(1, of.st_mtime_ns))
        assert (ck.data.load(root, **whole).train.digest == digest) == (change == "nothing")  # type: ignore[arg-type]

    def test_a_file_that_is_gone(self, root: Path) -> None:
        data = ck.data.load(root, digest="unverified")
        gone = Path(data.train.name_of(1))
        gone.unlink()
        with pytest.raises(DataError) as caught:
            _ = data.train.digest
        assert caught.value.subject == gone

    def test_copies_are_still_told_by_their_bytes(self, root: Path) -> None:
        (root / "ant" / "copy.png").write_bytes((root / "ant" / "000.png").read_bytes())
        data = ck.data.load(root, digest="unverified", hold_out=0.1)
        plain = ck.data.load(root, hold_out=0.1)
        assert data.train.image_digests == plain.train.image_digests

    @pytest.mark.parametrize("word", ["sha256", None, True])
    def test_other_words_are_refused(self, root: Path, word: object) -> None:
        with pytest.raises(DataError) as caught:
            ck.data.load(root, digest=word)  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.subject) == ("data", word)

    def test_images_in_one_file_are_refused(self) -> None:
        with pytest.raises(DataError) as caught:
            ck.data.load("peaks", digest="unverified")
        assert caught.value.subject == "peaks/train"
