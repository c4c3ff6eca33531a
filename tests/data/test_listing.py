"""Lists of image files: all of a folder and of those in it, in the order of their paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data.files import FolderListing, listing

FOLDERS = ["ant", "bee"]
PATHS = ["ant/000.png", "ant/001.png", "ant/deep/000.png", "bee/000.png", "bee/001.png", "bee/002.png"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = class_folder(tmp_path / "photos", {"ant": 2, "bee": 3})
    class_folder(made / "ant", {"deep": 1})
    return made


def paths(root: Path, files: FolderListing) -> list[str]:
    reader = files.images.reader
    return [os.path.relpath(reader.name(position), root) for position in range(len(reader))]


def test_paths_are_sorted_in_each_folder(root: Path) -> None:
    files = listing(root, FOLDERS)
    assert paths(root, files) == PATHS and files.counts == [3, 3]
    assert files.folders == ["ant", "ant/deep", "bee"]
    turned = listing(root, FOLDERS[::-1])
    assert paths(root, turned) == [*PATHS[3:], *PATHS[:3]]
    whole = listing(root, [""])
    assert paths(root, whole) == PATHS and whole.counts == [6]


def test_folders_without_images(root: Path) -> None:
    (root / "cat").mkdir()
    files = listing(root, ["cat", "bee"])
    assert files.counts == [0, 3] and paths(root, files) == PATHS[3:]
    assert len(listing(root, ["cat"]).images) == 0


@pytest.mark.parametrize("change", ["new", "gone", "renamed", "deep"])
def test_a_folder_that_changed_is_listed_again(root: Path, change: str) -> None:
    listing(root, FOLDERS)
    if change == "new":
        (root / "bee" / "9.png").write_bytes(encoded(photo(5, 5)))
    elif change == "gone":
        (root / "ant" / "001.png").unlink()
    elif change == "renamed":
        (root / "bee" / "001.png").rename(root / "bee" / "1.png")
    else:
        (root / "ant" / "deep" / "1.png").write_bytes(encoded(photo(5, 5)))
    expected = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    assert paths(root, listing(root, FOLDERS)) == expected


def test_names_that_are_no_text_stay_what_they_are(root: Path) -> None:
    name = os.fsencode(root / "ant") + b"/k\xc3\xa4fer\xff.png"
    try:
        with open(name, "wb") as file:
            file.write(encoded(photo(4, 4)))
    except OSError:
        pytest.skip("this file system takes texts only")
    for _ in range(2):
        data = ck.data.load(root, hold_out=0.4)
        assert len([*data.train.image_digests, *data.test.image_digests]) == 7
    assert os.fsdecode(b"ant/k\xc3\xa4fer\xff.png") in paths(root, listing(root, FOLDERS))
