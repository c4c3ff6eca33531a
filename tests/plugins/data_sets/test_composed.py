"""Cue-conflict stimuli and CIFAR-10.1, read from their published files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set, write_pack

from compatkit.data import load
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure

CLASSES = ("bear", "boat")


def stimuli(folder: Path, **changes: Any) -> Path:
    """Sixteen images of each of two shapes, and four edges and silhouettes."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array(CLASSES)}
    for kind, count in (("cue_conflict", 32), ("edges", 4), ("silhouettes", 4)):
        arrays[f"{kind}_x"] = draw.integers(0, 255, (count, 8, 8, 3)).astype(np.uint8)
        arrays[f"{kind}_shape"] = np.arange(count) % 2
    arrays["cue_conflict_texture"] = np.arange(32) // 2 % 2
    saved = {name: value for name, value in {**arrays, **changes}.items() if value is not None}
    np.savez(folder / "cue_conflict_8.npz", **saved)
    return folder


def test_one_in_eight_of_every_shape_is_for_testing(tmp_path: Path) -> None:
    data = load("cue-conflict", root=stimuli(tmp_path))
    assert (data.train.counts, data.test.counts, data.classes) == ((14, 14), (2, 2), CLASSES)
    with np.load(tmp_path / "cue_conflict_8.npz") as pack:
        all_images = sorted(map(bytes, pack["cue_conflict_x"]))
    assert sorted(map(bytes, np.concatenate([data.train.images, data.test.images]))) == all_images
    assert load("cue_conflict", root=tmp_path).test.digest == data.test.digest


@pytest.mark.parametrize("kind", ["edges", "silhouettes"])
def test_edges_and_silhouettes_are_tested_after_the_same_training(tmp_path: Path, kind: str) -> None:
    plain, data = (load(name, root=stimuli(tmp_path)) for name in ("cue-conflict", f"cue-conflict-{kind}"))
    assert (data.train.images == plain.train.images).all()
    with np.load(tmp_path / "cue_conflict_8.npz") as pack:
        assert (data.test.images == pack[f"{kind}_x"]).all()
    assert (data.name, data.test.name) == (f"cue-conflict-{kind}", f"cue-conflict-{kind}/test")


@pytest.mark.parametrize(
    "changes",
    [
        {"edges_x": None},
        {"edges_shape": np.arange(4)},
        {"cue_conflict_x": np.zeros((32, 8, 8, 3), np.float32)},
        {"classes": np.arange(2)},
        {"edges_x": np.array([{}])},
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        load("cue-conflict-edges", root=stimuli(tmp_path, **changes))
    assert caught.value.subject == tmp_path / "cue_conflict_8.npz"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"<html>", b"\x80\x04K\x01."])
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "cue_conflict_64.npz"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load("cue-conflict", root=tmp_path)
    assert caught.value.subject == file


@pytest.mark.parametrize(
    ("name", "file"), [("cue-conflict", "cue_conflict*.npz"), ("cifar10.1", "cifar10.1_v6_data.npy")]
)
def test_what_is_missing_says_which_file_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    for root in (tmp_path, None):
        with pytest.raises(DataError) as caught:
            load(name, root=root)
        assert caught.value.subject == name and file in str(caught.value)
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load(name)
    assert str(tmp_path) in str(caught.value)


def test_the_stimuli_themselves(packs: Path) -> None:
    if not list(packs.glob("cue_conflict*.npz")):
        pytest.skip("the folder of data packs holds no cue_conflict_64.npz")
    for name in ("cue-conflict", "cue-conflict-edges", "cue-conflict-silhouettes"):
        data = load(name, root=packs)
        assert (data.train.counts, data.test.counts) == ((70,) * 16, (10,) * 16)
        assert (data.train.size, data.train.channels) == ((64, 64), "RGB")


def recollected(folder: Path, release: str) -> np.ndarray[Any, Any]:
    images = np.random.default_rng(1).integers(0, 255, (6, 12, 12, 3)).astype(np.uint8)
    np.save(folder / f"cifar10.1_{release}_data.npy", images)
    np.save(folder / f"cifar10.1_{release}_labels.npy", np.arange(6) % 3)
    write_pack(folder, data_set("cifar10", channels=3))
    return images


@pytest.mark.parametrize(("name", "release"), [("cifar10.1", "v6"), ("cifar10.1-v4", "v4")])
def test_new_test_images_stand_beside_the_old_training_images(
    tmp_path: Path, name: str, release: str
) -> None:
    images = recollected(tmp_path, release)
    data, plain = load(name, root=tmp_path), load("cifar10", root=tmp_path)
    assert (data.test.images == images).all() and (data.train.images == plain.train.images).all()
    assert data.test.labels.tolist() == [0, 1, 2, 0, 1, 2] and data.classes == plain.classes


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY nonsense", b"\x80\x04K\x01."])
def test_a_damaged_array_is_named_and_never_unpickled(tmp_path: Path, damage: bytes) -> None:
    recollected(tmp_path, "v6")
    (tmp_path / "cifar10.1_v6_labels.npy").write_bytes(damage)
    with pytest.raises(DataError, match=r"cifar10.1_v6_labels.npy is damaged, or no plain array"):
        load("cifar10.1", root=tmp_path)


def test_a_folder_in_its_place_is_an_error_of_the_system(tmp_path: Path) -> None:
    recollected(tmp_path, "v6")
    (tmp_path / "cifar10.1_v6_labels.npy").unlink()
    (tmp_path / "cifar10.1_v6_labels.npy").mkdir()
    with pytest.raises(CompatkitError) as caught:
        load("cifar10.1", root=tmp_path)
    assert isinstance(caught.value, EnvironmentFailure)
