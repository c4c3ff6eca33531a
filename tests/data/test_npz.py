"""Packs are read strictly: nothing is unpickled, a damaged or foreign file ends in one clear error."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compatkit.data.npz import read_pack
from compatkit.data.validation import DataWarning
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pack_is_read(write, arrays):
    data = read_pack(write(arrays))
    assert (data.name, data.train.name, data.test.name) == ("insects", "insects/train", "insects/test")
    assert data.classes == ("ant", "bee", "cat")
    assert (data.train.images == arrays["x_train"]).all()
    assert (data.test.labels == arrays["y_test"]).all()
    assert read_pack(write(arrays), name="other").test.name == "other/test"


def test_gray_images_need_no_channel_axis(write, arrays):
    gray = arrays | {f"x_{part}": arrays[f"x_{part}"][..., 0] for part in ("train", "test")}
    data = read_pack(write(gray))
    assert (data.train.channels, data.train.images.shape) == ("L", (9, 4, 5, 1))


def test_webp_images_come_back_bit_for_bit(write, arrays, webp_arrays, monkeypatch):
    monkeypatch.setattr("compatkit.data.npz._BLOCK", 2)
    data = read_pack(write(webp_arrays, "insects.webp.npz"))
    assert data.name == "insects"
    assert (data.train.images == arrays["x_train"]).all()
    assert (data.test.images == arrays["x_test"]).all()


def test_other_keys_are_ignored(write, arrays):
    extra = arrays | {"coarse": np.arange(3)}
    assert read_pack(write(extra)).train.digest == read_pack(write(arrays, "b.npz")).train.digest


def without(arrays, key):
    return {name: value for name, value in arrays.items() if name != key}


@pytest.mark.parametrize("key", ["x_train", "y_train", "x_test", "y_test", "classes"])
def test_a_missing_key_is_named(write, arrays, key):
    with pytest.raises(DataError, match=f"has no '{key}'. A pack holds .*; this one holds"):
        read_pack(write(without(arrays, key)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((9, 4, 5, 3))}, "insects/train: images must be uint8"),
        ({"x_test": np.zeros((6, 3, 4, 5), np.uint8)}, "insects/test: .*Channels come last"),
        ({"x_test": np.zeros((6, 4, 4, 3), np.uint8)}, "size of the splits differ"),
        ({"x_test": np.zeros((0, 4, 5, 3), np.uint8), "y_test": np.zeros(0, int)}, "at least one image"),
        ({"y_train": np.arange(9)}, "labels must be 0 to 2"),
        ({"y_train": np.zeros(8, int)}, r"labels of shape \(9,\), got \(8,\)"),
        ({"y_train": np.zeros(9)}, "array of integers"),
        ({"classes": np.array(["ant", "ant", "cat"])}, "'ant' comes twice"),
        ({"classes": np.array([b"ant", b"bee", b"cat"])}, "'classes' must be 1-D array of strings, got |S3"),
        ({"classes": np.array([["ant", "bee", "cat"]])}, r"1-D array of strings, got <U3 of shape \(1, 3\)"),
        ({"classes": np.array("ant")}, "1-D array of strings"),
    ],
)
def test_wrong_arrays_are_refused(write, arrays, change, message):
    path = write(arrays | change)
    with pytest.raises(DataError, match=message) as caught:
        read_pack(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", ["classes", "x_train", "y_test"])
def test_pickled_objects_are_never_loaded(write, arrays, tmp_path, key):
    mark = tmp_path / "ran"
    content = np.empty(1, dtype=object)
    content[0] = Bomb(mark)
    with pytest.raises(DataError, match="Object arrays cannot be loaded"):
        read_pack(write(arrays | {key: content}))
    assert not mark.exists()


def test_a_pickle_in_place_of_a_pack_is_never_loaded(tmp_path):
    path, mark = tmp_path / "a.npz", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(DataError, match=r"is not an \.npz file"):
        read_pack(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an .npz file: expected .* got b''"),
        (b"version https://git-lfs.github.com/spec/v1\n", "got b'version '"),
        (b"hello", "is not an .npz file: expected .* got b'hello'"),
        (b"PK\x03\x04 and then nothing", "is damaged, or not a data pack"),
    ],
)
def test_a_foreign_file_is_recognized(tmp_path, content, message):
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pack(path)


def test_other_archives_are_no_packs(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match=r"has no 'classes'.*this one holds readme.txt"):
        read_pack(path)


def test_every_truncation_is_refused(write, arrays, tmp_path):
    whole, short = write(arrays).read_bytes(), tmp_path / "short.npz"
    for end in [*range(0, len(whole), 37), len(whole) - 1]:
        short.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"short.npz"):
            read_pack(short)


def test_flipped_bytes_are_refused_or_harmless(write, arrays, tmp_path):
    # A flip in zip fields that nobody reads (times, rights) changes nothing; any other must be noticed.
    path, broken = write(arrays), tmp_path / "broken.npz"
    whole, sound = path.read_bytes(), read_pack(path)
    draw = np.random.default_rng(0)
    refused = 0
    for place in draw.choice(len(whole), 300, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(draw.integers(8))
        broken.write_bytes(changed)
        try:
            data = read_pack(broken)
        except DataError:
            refused += 1
            continue
        assert data.train.digest == sound.train.digest
        assert data.test.digest == sound.test.digest
    assert refused > 150


def test_a_small_file_that_claims_to_be_huge_is_refused(write, arrays, monkeypatch):
    monkeypatch.setattr("compatkit.data.npz.LARGEST", 500)
    with pytest.raises(DataError, match="at most 500 are accepted"):
        read_pack(write(arrays))


def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path, write, arrays):
    path = write(arrays)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000000, 4, 5, 3), }"
    header += b" " * (117 - len(header)) + b"\n"
    liar = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(40)
    target = tmp_path / "liar.npz"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, liar if name == "x_train.npy" else old.read(name))
    with pytest.raises(DataError, match=r"liar.npz (claims|is damaged)"):
        read_pack(target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"len_train": np.ones(9, np.uint16)}, "must be positive and sum to"),
        ({"len_train": np.zeros(0, np.uint16)}, "must be positive and sum to"),
        ({"len_train": np.ones(9)}, "1-D integers"),
        ({"webp_train": np.zeros((3, 3), np.uint8)}, "webp_train must be 1-D uint8"),
    ],
)
def test_webp_lengths_must_fit(write, webp_arrays, change, message):
    with pytest.raises(DataError, match=message):
        read_pack(write(webp_arrays | change))


def test_a_broken_webp_image_is_named(write, webp_arrays):
    lengths = webp_arrays["len_train"].astype(int)
    data = webp_arrays["webp_train"].copy()
    data[lengths[:2].sum() : lengths[:3].sum()] = 0
    with pytest.raises(DataError, match="image 2 of webp_train is not a readable WebP image"):
        read_pack(write(webp_arrays | {"webp_train": data}))


def test_webp_images_must_be_of_one_size(write, webp_arrays):
    files = []
    for width, height in ((5, 4), (4, 5)):
        buffer = io.BytesIO()
        Image.new("RGB", (width, height)).save(buffer, "WEBP", lossless=True)
        files.append(buffer.getvalue())
    change = {
        "webp_test": np.frombuffer(b"".join(files), np.uint8),
        "len_test": np.array([len(file) for file in files]),
        "y_test": np.array([0, 1]),
    }
    with pytest.raises(DataError, match=r"image 1 of webp_test has 4 x 5 pixels .*, the first one 5 x 4"):
        read_pack(write(webp_arrays | change))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"There is no data set .*none\.npz"):
        read_pack(tmp_path / "none.npz")
    with pytest.raises(DataError, match="is a folder"):
        read_pack(tmp_path)


def test_a_file_that_may_not_be_read_is_the_environments_fault(write, arrays, monkeypatch):
    path = write(arrays)

    def refuse(*args, **kwargs):
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(EnvironmentFailure, match=r"Permission denied. Check its permissions") as caught:
        read_pack(path)
    assert isinstance(caught.value, CompatkitError) and caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["nan", "None", "NULL", "N/A", "-1", ""])
def test_classes_that_missing_labels_became(write: Any, arrays: dict[str, Any], name: str) -> None:
    path = write(arrays | {"classes": np.array(["ant", name, "cat"])})
    with pytest.raises(DataError) as caught:
        read_pack(path)
    assert caught.value.code == "data" and caught.value.subject == name


def test_classes_that_are_parts(write: Any, arrays: dict[str, Any]) -> None:
    path = write(arrays | {"classes": np.array(["Train", "Val", "Test"])})
    with pytest.raises(DataError) as caught:
        read_pack(path)
    assert caught.value.subject == path


def test_images_of_other_parts_are_left_out_and_told(write: Any, arrays: dict[str, Any]) -> None:
    path = write(arrays | {"x_val": arrays["x_test"], "y_val": arrays["y_test"], "notes": np.array("")})
    with pytest.warns(DataWarning, match="x_val are not used"):
        assert len(read_pack(path).test) == 6
