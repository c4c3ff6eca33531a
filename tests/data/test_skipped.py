"""What a folder holds is read, or told once: links, endings in any case and none, hidden files, other formats."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data.skipped import SkippedFilesWarning
from compatkit.data.unlabeled import read_unlabeled
from compatkit.errors import DamagedImage, DataError
from compatkit.evaluation.inputs import arrays_of

JPEG = encoded(photo(12, 14, seed=9), "JPEG")
READ = ("a.jfif", "b.jpe", "c.JPG", "d.JpEg", "e.JFIF", "f.TIF", "g.pnm", "deep/h.jpg", "x.jpg/i.png")
TOLD = {
    "phone.HEIC": ".heic",
    "photo.avif": ".avif",
    "no_ending": "files without an ending",
    "deep/none": "files without an ending",
    ".hidden.jpg": "hidden files",
    "@eaDir/IMG.jpg/thumb.jpg": "hidden folders",
    ".ipynb_checkpoints/copy.png": "hidden folders",
    "scan.jpg.bak": ".bak",
}
SILENT = (
    ".git/HEAD",
    "__MACOSX/._a.jpg",
    ".DS_Store",
    "Thumbs.db",
    "._a.jpg",
    "desktop.ini",
    ".gitignore",
    "notes.txt",
    "a.json",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return class_folder(tmp_path / "photos", {"ant": 4, "bee": 4}, size=(12, 12))


def put(root: Path, name: str, data: bytes = JPEG) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


def loaded(root: Path) -> int:
    data = ck.data.load(f"{root}/")
    return len(data.train) + len(data.test)


DOORS: dict[str, Callable[[Path], int]] = {
    "load": loaded,
    "unlabeled": lambda root: len(read_unlabeled(root)),
    "predict": lambda root: len(list(arrays_of(root))),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_ending_of_a_format_that_is_read_is_read(root: Path, door: str) -> None:
    for name in READ:
        put(root / "ant", name)
    for name in SILENT:
        put(root / "bee", name)
    assert DOORS[door](root) == 8 + len(READ)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", TOLD)
def test_what_is_not_read_is_told_once(root: Path, door: str, name: str) -> None:
    put(root / "ant", name)
    put(root / "ant", "notes.txt", b"of a shelf")
    with pytest.warns(SkippedFilesWarning) as caught:
        assert DOORS[door](root) == 8
    (warning,) = caught
    assert warning.filename == __file__
    assert warning.message.counts == {TOLD[name]: 1, ".txt": 1}  # type: ignore[union-attr]
    assert f"ant/{name.split('/')[0] if TOLD[name] == 'hidden folders' else name}" in str(warning.message)


def test_hidden_class_folders_and_images_beside_classes_are_told(root: Path) -> None:
    put(root, "@home/1.jpg")
    put(root, "stray.jpg")
    put(root, "LIST.heic")
    with pytest.warns(SkippedFilesWarning) as caught:
        assert loaded(root) == 8
    counts = caught[0].message.counts  # type: ignore[union-attr]
    assert counts == {"hidden folders": 1, "images beside the class folders": 1, ".heic": 1}


def test_of_two_parts_it_is_told_once_too(tmp_path: Path) -> None:
    for part in ("train", "val"):
        class_folder(tmp_path / "photos" / part, {"ant": 2, "bee": 2})
        put(tmp_path / "photos" / part / "bee", "one.heic")
    put(tmp_path / "photos" / "val", ".ghost/1.jpg")
    with pytest.warns(SkippedFilesWarning) as caught:
        assert loaded(tmp_path / "photos") == 8
    assert len(caught) == 1 and "train/bee/one.heic" in str(caught[0].message)
    assert caught[0].message.counts == {".heic": 2, "hidden folders": 1}  # type: ignore[union-attr]


def test_a_list_that_is_remembered_tells_it_again(root: Path) -> None:
    put(root / "ant", "one.heic")
    for folder in (root, root / "ant", root / "bee"):
        os.utime(folder, (time.time() - 100,) * 2)
    message = []
    for _ in range(2):
        with pytest.warns(SkippedFilesWarning) as caught:
            read_unlabeled(root)
        message.append(str(caught[0].message))
    assert message[0] == message[1]


def test_linked_folders_are_followed_at_every_level(root: Path, tmp_path: Path) -> None:
    more = class_folder(tmp_path / "more", {"x": 5, "y": 2}, size=(9, 9), seed=50)
    (root / "ant" / "batch2").symlink_to(more / "x")
    (more / "x" / "deeper").symlink_to(more / "y")
    data = ck.data.load(f"{root}/")
    assert [sum(pair) for pair in zip(data.train.counts, data.test.counts, strict=True)] == [11, 4]
    assert len(read_unlabeled(root)) == 15
    survey = {Path(data.train.name_of(place)).parent.name for place in range(len(data.train))}
    assert survey == {"ant", "batch2", "deeper", "bee"}


LOOPS: dict[str, Callable[[Path], None]] = {
    "to the root": lambda root: (root / "ant" / "up").symlink_to(root),
    "above the root": lambda root: (root / "ant" / "up").symlink_to(root.parent),
    "to another class": lambda root: (root / "ant" / "other").symlink_to(root / "bee"),
    "from a later class": lambda root: (root / "bee" / "other").symlink_to(root / "ant"),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_link_that_brings_images_of_another_class_is_refused(root: Path, loop: str) -> None:
    LOOPS[loop](root)
    with pytest.raises(DataError) as caught:
        loaded(root)
    assert caught.value.code == "data" and root in Path(caught.value.subject).parents


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_that_links_bring_twice_is_read_once(root: Path, tmp_path: Path, door: str) -> None:
    more = class_folder(tmp_path / "more", {"x": 2, "y": 2}, size=(9, 9))
    (more / "x" / "y").symlink_to(more / "y")
    (more / "y" / "x").symlink_to(more / "x")
    for name in ("a", "b"):
        (root / "ant" / name).symlink_to(more / "x")
    (root / "ant" / "again").symlink_to(root / "ant")
    with pytest.warns(SkippedFilesWarning) as caught:
        assert DOORS[door](root) == 12
    assert caught[0].message.counts == {"links to folders that are read anyway": 3}  # type: ignore[union-attr]


def test_many_links_across_cost_no_more_than_their_folders(root: Path, tmp_path: Path) -> None:
    """Of 20 folders, each with two links to the next, there are a million paths."""
    chain = [tmp_path / "chain" / f"{number}" for number in range(21)]
    for here in chain:
        here.mkdir(parents=True)
        shutil.copy(root / "ant" / "000.png", here)
    for here, following in pairwise(chain):
        for name in "ab":
            (here / name).symlink_to(following)
    (root / "ant" / "chain").symlink_to(chain[0])
    for door in DOORS.values():
        with pytest.warns(SkippedFilesWarning):
            assert door(root) == 8 + 21


def test_a_link_that_leads_nowhere(root: Path) -> None:
    (root / "ant" / "gone").symlink_to(root / "nowhere")
    (root / "ant" / "round").symlink_to(root / "ant" / "round")
    with pytest.warns(SkippedFilesWarning) as caught:
        assert loaded(root) == 8
    assert caught[0].message.counts == {"links that lead nowhere": 2}  # type: ignore[union-attr]
    (root / "bee" / "gone.jfif").symlink_to(root / "nowhere")
    with pytest.raises(DataError) as refused:
        loaded(root)
    assert refused.value.subject == root / "bee" / "gone.jfif"


def test_a_whole_folder_says_nothing(root: Path) -> None:
    shutil.copy(root / "ant" / "000.png", root / "ant" / "README.md")
    (root / "classes.txt").write_text("ant Ant")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for door in DOORS.values():
            assert door(root) == 8


def test_endings_are_counted_where_there_are_several(root: Path) -> None:
    assert "png" not in repr(ck.data.load(f"{root}/").train)
    for number in range(20):
        put(root / "ant", f"{number}.jFiF")
    data = ck.data.load(f"{root}/", hold_out=0.25)
    assert data.train.images.extensions == {".jfif": 14, ".png": 7}  # type: ignore[union-attr]
    assert "(.jfif 14, .png 7)" in repr(data.train)


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "clip.mov", "a.CR2"])
def test_folders_that_hold_only_formats_that_are_not_read(tmp_path: Path, name: str) -> None:
    for folder in ("ant", "bee"):
        put(tmp_path / "photos", f"{folder}/{name}", b"-")
    for door in DOORS.values():
        with pytest.raises(DataError) as caught:
            door(tmp_path / "photos")
        assert name in str(caught.value) and "Convert" in str(caught.value)
        assert caught.value.subject in (tmp_path / "photos", tmp_path / "photos" / "ant")


@pytest.mark.parametrize(
    ("name", "words"),
    [("IMG_1.HEIC", "convert it to JPEG"), ("a.nef", "convert it to JPEG"), ("notes.txt", "is no image")],
)
def test_a_file_whose_ending_tells_that_it_is_not_read(tmp_path: Path, name: str, words: str) -> None:
    put(tmp_path, name, b"no image")
    with pytest.raises(DamagedImage) as caught:
        list(arrays_of(tmp_path / name))
    assert words in caught.value.reason and str(caught.value.subject) == str(tmp_path / name)
