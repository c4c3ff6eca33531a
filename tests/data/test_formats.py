"""What kind of data set a folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from photos import class_folder

import compatkit as ck
from compatkit.data.formats import FolderFormat, folder_format
from compatkit.data.skipped import SkippedFilesWarning
from compatkit.errors import DataError

CASES: dict[str, tuple[FolderFormat, tuple[str, ...]]] = {
    "nothing": ("flat", ()),
    "other files": ("flat", ("readme.txt", ".hidden.png")),
    "images": ("flat", ("a.JPG", "readme.txt")),
    "images beside folders": ("flat", ("a.png", "ant/b.png")),
    "images beside a table": ("flat", ("a.png", "list.parquet")),
    "class folders": ("classes", ("ant/a.png", "bee/deep/b.png")),
    "class folders beside a table": ("classes", ("ant/a.png", "list.parquet", "data/x.parquet")),
    "class folders beside an archive": ("classes", ("ant/a.png", "all.tar", "ant/ant.tar")),
    "empty folders": ("classes", ("ant/", "bee/")),
    "saved": ("hub", ("state.json", "data.arrow")),
    "several saved": ("hub", ("dataset_dict.json", "train/state.json")),
    "Parquet files": ("hub", ("README.md", "data/train-00000.parquet")),
    "Parquet files in parts": ("hub", ("Train/0.parquet", "Test/0.parquet")),
    "a Parquet file": ("hub", ("train.parquet",)),
    "shards": ("shards", ("0.tar", "1.tar", "classes.txt")),
    "shards in parts": ("shards", ("train/0.tar", "val/0.tar")),
}


@pytest.mark.parametrize("case", CASES)
def test_kinds(tmp_path: Path, case: str) -> None:
    kind, files = CASES[case]
    for name in files:
        path = tmp_path / "it" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_bytes(b"")
    (tmp_path / "it").mkdir(exist_ok=True)
    assert folder_format(tmp_path / "it") == kind


def test_what_lies_beside_class_folders_changes_nothing(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3, "bee": 2})
    digest = ck.data.load(root).train.digest
    for name in ("all.tar", "list.parquet", "readme.txt"):
        (root / name).write_bytes(b"")
        assert ck.data.load(root).train.digest == digest
    (root / "preview.png").write_bytes(b"")
    with pytest.warns(SkippedFilesWarning):
        assert ck.data.load(root).train.digest == digest


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        folder_format(tmp_path / "none")
    assert caught.value.subject == tmp_path / "none"
