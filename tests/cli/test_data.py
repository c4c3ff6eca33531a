"""data show: images and classes of each split, sizes, kinds, damaged files, copies, a contact sheet."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import class_folder, encoded, photo
from PIL import Image


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "photos"
    class_folder(root / "train", {"ant": 4, "a very long name of a beetle": 3})
    class_folder(root / "val", {"ant": 2, "a very long name of a beetle": 2}, seed=77)
    return root


def test_a_folder(run: Any, photos: Path) -> None:
    result = run("data", "show", photos)
    assert result.code == 0 and "damaged are" not in result.out and "copies, such as" not in result.out
    lines = [line.split("  ") for line in result.out.splitlines()]
    (train,) = [
        [part.strip() for part in line if part]
        for line in lines
        if line[0] == "photos/train" and "RGB 7" in line
    ]
    assert train == ["photos/train", "7", "2", "9 to 12, median 10", "10 to 13, median 12", "RGB 7", "0", "0"]
    assert [line[0] for line in lines if line[0].startswith("a")] == ["a very long name of a beetle", "ant"]


def test_files_that_are_not_read_are_told(run: Any, photos: Path) -> None:
    assert "Not read" not in run("data", "show", photos).out
    (photos / "train" / "ant" / "IMG_0001.HEIC").write_bytes(b"")
    assert "Not read: .heic 1." in run("data", "show", photos).out
    assert json.loads(run("data", "show", photos, "--json").out)["others"] == {".heic": 1}


def test_what_is_wrong_is_told(run: Any, photos: Path) -> None:
    (photos / "train" / "ant" / "003.png").write_bytes(b"\x89PNG")
    beetle = photos / "train" / "a very long name of a beetle"
    shutil.copy(photos / "train" / "ant" / "000.png", beetle / "9.png")
    shutil.copy(photos / "train" / "ant" / "001.png", photos / "val" / "ant" / "9.png")
    (photos / "val" / "ant" / "8.jpg").write_bytes(encoded(photo(50, 20).convert("L"), "JPEG"))
    result = run("data", "show", photos)
    assert "photos/train: damaged are" in result.out and "003.png" in result.out.replace("\n", "")
    assert "Within photos/train: 1 copy, 1 of them of another class" in result.out
    assert (
        "In photos/val" not in result.out
        and "In photos/test and in photos/train: 1 copy, such as" in result.out
    )
    document = run("data", "show", photos, "--json").json
    train, test = document["parts"]
    assert train["damaged"] == [str(photos / "train" / "ant" / "003.png")]
    assert (train["images"], train["classes"]["ant"], train["kinds"]) == (8, 4, {"RGB": 7})
    assert test["heights"] == [9, 10, 50] and test["kinds"] == {"RGB": 5, "L": 1}
    assert train["copies"]["first"] == [
        [str(beetle / "9.png"), str(photos / "train" / "ant" / "000.png")]
    ] and document["shared"] == {
        "count": 1,
        "relabeled": 0,
        "first": [[str(photos / "train" / "ant" / "001.png"), str(photos / "val" / "ant" / "9.png")]],
    }


def test_a_contact_sheet(run: Any, photos: Path, tmp_path: Path) -> None:
    (photos / "train" / "ant" / "000.png").write_bytes(b"")
    for item in (photos / "train" / "ant" / "001.png", photos / "train" / "ant" / "002.png"):
        item.write_bytes(encoded(Image.new("RGB", (40, 20), (255, 0, 0))))
    assert run("data", "show", photos, "--sheet", tmp_path / "sheet.png").code == 0
    shown = np.asarray(Image.open(io.BytesIO((tmp_path / "sheet.png").read_bytes())).convert("RGB")).astype(
        int
    )
    red = (np.abs(shown - (255, 0, 0)).sum(axis=2) == 0).sum()
    assert red == pytest.approx(2 * 160 * 80, rel=0.05), "whole images of twice the width"
    assert run("data", "show", photos, "--sheet", tmp_path).code == 2


def test_images_without_labels_sets_by_name_and_what_is_none(run: Any, photos: Path, tmp_path: Path) -> None:
    document = run("data", "show", photos / "train" / "ant", "--json").json
    assert [part["classes"] for part in document["parts"]] == [{}] and document["shared"] is None
    assert "none known" in run("data", "show", photos / "train" / "ant").out
    peaks = run("data", "show", "peaks", "--json", "--sheet", tmp_path / "peaks.png").json
    assert peaks["parts"][0]["heights"] == [28, 28, 28] and peaks["parts"][0]["kinds"] == {
        "L": peaks["parts"][0]["images"]
    }
    assert (tmp_path / "peaks.png").stat().st_size
    failed = run("data", "show", tmp_path / "nowhere", "--json")
    assert failed.code == 2 and failed.json["error"]["code"] == "data"
    assert run("data", "show", "nothing").code == 2
