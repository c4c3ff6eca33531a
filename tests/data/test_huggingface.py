"""Data sets of Hugging Face: saved to disk, as Parquet, in the cache of the Hub's library; no code, no network."""

from __future__ import annotations

import pickle
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import encoded, photo

import compatkit as ck
from compatkit.data.huggingface import ArrowImages, _both
from compatkit.data.lazy import LazyImages
from compatkit.errors import DataError, EnvironmentFailure, MissingDependency

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
COUNT = 20


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the library writes in the test's own folder, and everything off the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")

    def refuse(*_: object) -> None:
        raise OSError("no test may use a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    datasets.disable_progress_bars()


def table(count: int = COUNT, seed: int = 0, **more: tuple[list[Any], Any]) -> Any:
    """Return photos of their own sizes, with cats at even places."""
    images = [photo(9 + place % 4, 12, seed=seed + place) for place in range(count)]
    columns = {
        "photo": ([{"bytes": encoded(one), "path": None} for one in images], datasets.Image()),
        "label": ([place % 2 for place in range(count)], datasets.ClassLabel(names=["cat", "dog"])),
        "id": (list(range(count)), datasets.Value("int64")),
        **more,
    }
    kinds = datasets.Features({name: kind for name, (_, kind) in columns.items()})
    return datasets.Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features=kinds)


def parquet(root: Path, **parts: Any) -> Path:
    (root / "data").mkdir(parents=True)
    for name, one in parts.items():
        one.to_parquet(root / "data" / f"{name}-00000-of-00001.parquet")
    return root


def test_one_table_is_divided(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    data = ck.data.load(tmp_path / "pets")
    assert data.name == "pets" and data.classes == ("cat", "dog")
    assert data.train.counts == (9, 9) and data.test.counts == (1, 1)
    assert ck.data.load(tmp_path / "pets", hold_out=0.4, seed=2).test.counts == (4, 4)


def test_both_parts_are_taken(tmp_path: Path) -> None:
    parts = {"train": table(), "validation": table(6, seed=90), "test": table(4, seed=50)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "pets"))
    data = ck.data.load(tmp_path / "pets")
    assert (len(data.train), len(data.test)) == (20, 6)
    assert np.array_equal(np.asarray(data.test.image(3)), np.asarray(photo(12, 12, seed=93)))
    assert data.test.labels.tolist() == [0, 1] * 3
    with pytest.raises(DataError, match="test images of its own"):
        ck.data.load(tmp_path / "pets", hold_out=0.4)


def test_a_folder_of_parquet_files_is_the_same(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    saved = ck.data.load(tmp_path / "pets")
    data = ck.data.load(parquet(tmp_path / "arrow", train=table()))
    assert (data.train.digest, data.test.digest) == (saved.train.digest, saved.test.digest)
    assert ck.data.load(parquet(tmp_path / "more", train=table(), test=table(4))).test.counts == (2, 2)


def test_bytes_are_kept_and_decoded_when_they_are_asked_for(tmp_path: Path) -> None:
    stored = [{"bytes": encoded(photo(9, 9, seed=one), "JPEG"), "path": None} for one in range(4)]
    stored[1]["bytes"] = b"no image"
    table(4, photo=(stored, datasets.Image())).save_to_disk(str(tmp_path / "pets"))
    split = ck.data.load(tmp_path / "pets", hold_out=0.5).train
    reader = split.images.reader
    assert [reader.read(place) for place in range(4)] == [one["bytes"] for one in stored]
    whole = ck.data.Split(LazyImages(reader, np.arange(4)), np.zeros(4, dtype=np.int64), ("a",), "x")
    assert whole.image(2).size == (9, 9)
    with pytest.raises(DataError) as caught:
        whole.image(1)
    assert caught.value.subject == "image 1 of pets/train"


def test_the_digest_is_over_bytes_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    first = ck.data.load(tmp_path / "pets").train.digest
    changed = table(photo=([{"bytes": encoded(photo(9, 9)), "path": None}] * COUNT, datasets.Image()))
    changed.save_to_disk(str(tmp_path / "others"))
    assert ck.data.load(tmp_path / "others").train.digest != first
    shutil.copytree(tmp_path / "pets", tmp_path / "copy")
    assert ck.data.load(tmp_path / "copy").train.digest == first
    plain = ArrowImages._bytes
    monkeypatch.setattr(ArrowImages, "_bytes", lambda *_: pytest.fail("read again"))
    assert ck.data.load(tmp_path / "pets").train.digest == first
    monkeypatch.setattr(ArrowImages, "_bytes", plain)
    shutil.rmtree(tmp_path / "pets")
    shutil.copytree(tmp_path / "others", tmp_path / "pets")
    assert ck.data.load(tmp_path / "pets").train.digest == ck.data.load(tmp_path / "others").train.digest


def test_paths_of_files_are_followed(tmp_path: Path) -> None:
    files = []
    for place in range(4):
        files.append(tmp_path / f"{place}.png")
        files[-1].write_bytes(encoded(photo(8, 8, seed=place)))
    cells = [{"bytes": None, "path": str(one)} for one in files]
    arrow = table(4, photo=(cells, datasets.Image(decode=False)))
    arrow = arrow.cast_column("photo", datasets.Image())
    split = _both(arrow, "pets", None, "pets")
    assert np.array_equal(np.asarray(split.image(2)), np.asarray(photo(8, 8, seed=2)))
    digests = split.image_digests
    files[2].write_bytes(encoded(photo(8, 8, seed=9)))
    again = _both(arrow, "pets", None, "pets").image_digests
    assert [one != two for one, two in zip(digests, again, strict=True)] == [False, False, True, False]
    files[1].unlink()
    with pytest.raises(DataError) as caught:
        split.image(1)
    assert caught.value.subject == "image 1 of pets/train"


def test_a_table_travels_to_worker_processes(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    split = ck.data.load(tmp_path / "pets").train
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(np.asarray(again.image(3)), np.asarray(split.image(3)))


def test_columns_that_are_not_plain(tmp_path: Path) -> None:
    fine = ([place % 4 for place in range(COUNT)], datasets.ClassLabel(names=list("abcd")))
    cases = {
        "two": table(fine=fine, label=fine),
        "texts": table(label=(["cat"] * COUNT, datasets.Value("string"))),
        "images": table(other=([None] * COUNT, datasets.Image())),
        "bare": table(label=([-1] * COUNT, datasets.ClassLabel(names=["cat", "dog"]))),
    }
    for name, made in cases.items():
        made = made.rename_column("label", "kind") if name == "two" else made
        made.save_to_disk(str(tmp_path / name))
        with pytest.raises(DataError) as caught:
            ck.data.load(tmp_path / name)
        assert caught.value.subject == tmp_path / name and caught.value.code == "data"
    table(fine=fine).save_to_disk(str(tmp_path / "named"))
    assert ck.data.load(tmp_path / "named").classes == ("cat", "dog")


def in_cache(tmp_path: Path, name: str, made: Any) -> None:
    """Put a data set where the library keeps what it fetched from the Hub."""
    folder = parquet(tmp_path / "made" / name.rpartition("/")[2], train=made)
    datasets.load_dataset(str(folder))
    kept = tmp_path / "hub" / folder.name
    kept.rename(tmp_path / "hub" / name.replace("/", "___"))


def test_what_is_cached_of_the_hub_needs_no_network(tmp_path: Path) -> None:
    fine = ([place % 4 for place in range(COUNT)], datasets.ClassLabel(names=list("abcd")))
    in_cache(tmp_path, "user/pets", table(fine=fine))
    data = ck.data.load("hf:user/pets")
    assert data.name == "hf:user/pets" and data.train.name == "hf:user/pets/train"
    assert data.source is not None and data.source.spec == {"name": "hf:user/pets"}
    assert ck.data.load("hf:user/pets#fine").classes == tuple("abcd")
    assert ck.data.load_spec({"name": "hf:user/pets", "hold_out": 0.5}).test.counts == (5, 5)
    with pytest.raises(DataError):
        ck.data.load("hf:user/pets#nothing")


def test_what_is_not_cached_is_not_asked_for() -> None:
    for name in ("hf:user/none", "hf:none", "hf:none:some#label"):
        with pytest.raises(EnvironmentFailure) as caught:
            ck.data.load(name)
        assert caught.value.subject == name and caught.value.code == "environment"


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:a b", "hf:../x", "hf:a#", "hf:a:"])
def test_addresses_that_are_none(name: str) -> None:
    with pytest.raises(DataError) as caught:
        ck.data.load(name)
    assert caught.value.subject == name


def test_a_folder_here_is_not_taken_for_one_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        ck.data.load("hf:pets")
    assert caught.value.subject == "hf:pets"


def test_code_that_comes_with_a_data_set_is_not_run(tmp_path: Path) -> None:
    root = parquet(tmp_path / "pets", train=table(4))
    (root / "pets.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    try:
        ck.data.load(root, hold_out=0.5)
    except DataError as error:
        assert error.subject == root
    assert not (tmp_path / "ran").exists()


def test_damaged_folders(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    (arrow,) = (tmp_path / "pets").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:50])
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == tmp_path / "pets"
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "state.json").write_text("{}")
    with pytest.raises(DataError):
        ck.data.load(tmp_path / "others")


def test_the_library_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("hf:user/pets", tmp_path / "pets"):
        with pytest.raises(MissingDependency, match=r"compatkit\[datasets\]") as caught:
            ck.data.load(name)
        assert caught.value.subject == "datasets"
