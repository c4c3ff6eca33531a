"""Damaged images: named when they are read, or left out and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from photos import class_folder

import compatkit as ck
from compatkit.data import damaged as module
from compatkit.errors import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = class_folder(tmp_path / "photos", {"ant": 8, "bee": 6}, size=(12, 12))
    for name in ("ant/003.png", "bee/000.png", "bee/005.png"):
        (root / name).write_bytes((root / name).read_bytes()[:90])
    return root


def test_they_are_refused_when_they_are_read(photos: Path) -> None:
    data = ck.data.load(photos, hold_out=0.5)
    with pytest.raises(DataError) as caught:
        for split in (data.train, data.test):
            split.resized((4, 4)).read(range(len(split)))
    assert Path(caught.value.subject).name in ("003.png", "000.png", "005.png")


def test_they_are_left_out_and_counted(photos: Path) -> None:
    data = ck.data.load_spec({"name": str(photos), "damaged": "skip", "hold_out": 0.5})
    assert data.train.counts == (3, 2) and data.test.counts == (4, 2)
    assert data.train.damaged == data.test.damaged == 3 and not data.train.sample
    assert "(3 damaged ones left out)" in repr(data.train) and data.train.damaged == 3
    assert data.subset(3).converted("L").train.damaged == 3
    for split in (data.train, data.test):
        split.resized((4, 4)).read(range(len(split)))
    assert data.source is not None
    assert ck.data.load_spec(data.source.spec).train.digest == data.train.digest


def test_a_whole_data_set_says_nothing(photos: Path) -> None:
    plain = ck.data.load("peaks", damaged="skip")
    assert plain.train.damaged == 0
    whole = class_folder(photos.parent / "whole", {"ant": 4})
    assert ck.data.load(whole, damaged="skip").train.digest == ck.data.load(whole).train.digest


def test_images_are_decoded_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ck.data.load(photos, damaged="skip")
    monkeypatch.setattr(module, "decode", lambda *_: pytest.fail("decoded again"))
    message: list[str] = []
    again = ck.data.load(photos, damaged="skip", progress=lambda done, total, what: message.append(what))
    assert again.train.digest == before.train.digest and "decoding images" not in message
    monkeypatch.undo()


def test_a_file_that_was_mended_comes_back(photos: Path) -> None:
    assert ck.data.load(photos, damaged="skip").train.damaged == 3
    (photos / "ant" / "003.png").write_bytes((photos / "ant" / "004.png").read_bytes())
    assert ck.data.load(photos, damaged="skip").train.damaged == 2


def test_a_class_of_damaged_images_is_refused(photos: Path) -> None:
    for path in (photos / "bee").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        ck.data.load(photos, damaged="skip")
    assert caught.value.subject == "bee"


def test_both_parts_are_looked_at(tmp_path: Path) -> None:
    for part in ("train", "val"):
        class_folder(tmp_path / "photos" / part, {"ant": 3, "bee": 3})
    (tmp_path / "photos" / "val" / "bee" / "001.png").write_bytes(b"")
    data = ck.data.load(tmp_path / "photos", damaged="skip")
    assert (data.train.damaged, data.test.damaged) == (0, 1) and data.test.counts == (3, 2)


@pytest.mark.parametrize("word", ["ignore", None, True])
def test_other_words_are_refused(photos: Path, word: object) -> None:
    with pytest.raises(DataError) as caught:
        ck.data.load_spec({"name": str(photos), "damaged": word})
    assert caught.value.subject == word


def test_the_manifest_of_a_run_counts_them(photos: Path) -> None:
    from small import quick

    for damaged, value in (("skip", {"damaged": 3}), ("refuse", {})):
        if damaged == "refuse":
            for name in ("ant/003.png", "bee/000.png", "bee/005.png"):
                (photos / name).write_bytes((photos / "ant" / "000.png").read_bytes())
        data = ck.data.load(photos, damaged=damaged)
        task = ck.Task("photos", data, "simple_cnn", "forward_features", size=(16, 16))
        stated = quick(steps=1, batch_size=2, workers=0).fit([task]).run["tasks"][0]["data"]
        assert stated == {"name": "photos/train", "digest": data.train.digest, **value}
