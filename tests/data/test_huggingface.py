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
from compatkit.data.huggingface import ArrowImages, _data_set
from compatkit.data.lazy import LazyImages
from compatkit.data.validation import DataWarning
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
        "photo": ([{"bytes": encoded(image), "path": None} for image in images], datasets.Image()),
        "label": ([place % 2 for place in range(count)], datasets.ClassLabel(names=["cat", "dog"])),
        "id": (list(range(count)), datasets.Value("int64")),
        **more,
    }
    kinds = datasets.Features({name: kind for name, (_, kind) in columns.items()})
    return datasets.Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features=kinds)


def parquet(root: Path, **parts: Any) -> Path:
    (root / "data").mkdir(parents=True)
    for name, part in parts.items():
        part.to_parquet(root / "data" / f"{name}-00000-of-00001.parquet")
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
    with pytest.warns(DataWarning, match="test is not used") as caught:
        data = ck.data.load(tmp_path / "pets")
    assert [warning.filename for warning in caught] == [__file__]
    assert (len(data.train), len(data.test)) == (20, 6)
    assert np.array_equal(np.asarray(data.test.image(3)), np.asarray(photo(12, 12, seed=93)))
    assert data.test.labels.tolist() == [0, 1] * 3
    with pytest.warns(DataWarning), pytest.raises(DataError, match="test images of its own"):
        ck.data.load(tmp_path / "pets", hold_out=0.4)
    with pytest.warns(DataWarning, match="test is not used"):
        assert len(ck.data.load(parquet(tmp_path / "files", **parts)).test) == 6


def test_a_folder_of_parquet_files_is_the_same(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"))
    saved = ck.data.load(tmp_path / "pets")
    data = ck.data.load(parquet(tmp_path / "arrow", train=table()))
    assert (data.train.digest, data.test.digest) == (saved.train.digest, saved.test.digest)
    assert ck.data.load(parquet(tmp_path / "more", train=table(), test=table(4))).test.counts == (2, 2)


def test_bytes_are_kept_and_decoded_when_they_are_asked_for(tmp_path: Path) -> None:
    stored = [{"bytes": encoded(photo(9, 9, seed=index), "JPEG"), "path": None} for index in range(4)]
    stored[1]["bytes"] = b"no image"
    table(4, photo=(stored, datasets.Image())).save_to_disk(str(tmp_path / "pets"))
    split = ck.data.load(tmp_path / "pets", hold_out=0.5).train
    reader = split.images.reader
    assert [reader.read(place) for place in range(4)] == [entry["bytes"] for entry in stored]
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
    cells = [{"bytes": None, "path": str(file)} for file in files]
    arrow = table(4, photo=(cells, datasets.Image(decode=False)))
    arrow = arrow.cast_column("photo", datasets.Image())
    split = _data_set(arrow, "pets", None, "pets")
    assert np.array_equal(np.asarray(split.image(2)), np.asarray(photo(8, 8, seed=2)))
    digests = split.image_digests
    files[2].write_bytes(encoded(photo(8, 8, seed=9)))
    again = _data_set(arrow, "pets", None, "pets").image_digests
    assert [digest != two for digest, two in zip(digests, again, strict=True)] == [False, False, True, False]
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


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (("Train", "Test"), (20, 6)),
        (("TRAINING-00000-of-00001", "dev-00000-of-00001"), (20, 6)),
        (("pets_train", "pets_holdout"), (20, 6)),
        (("train[1]", "eval"), (20, 6)),
    ],
)
def test_parts_of_parquet_files_in_any_spelling(
    tmp_path: Path, names: tuple[str, str], counts: tuple[int, int]
) -> None:
    (tmp_path / "pets").mkdir()
    for name, made in zip(names, (table(), table(6, seed=90)), strict=True):
        made.to_parquet(tmp_path / "pets" / f"{name}.parquet")
    data = ck.data.load(tmp_path / "pets")
    assert (len(data.train), len(data.test)) == counts


@pytest.mark.parametrize("other", ["extra", "part-2"])
def test_parquet_files_of_no_part_beside_one(tmp_path: Path, other: str) -> None:
    (tmp_path / "pets").mkdir()
    for name in ("train", other):
        table().to_parquet(tmp_path / "pets" / f"{name}.parquet")
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == other


def test_the_page_of_a_folder_says_which_files_are_which(tmp_path: Path) -> None:
    root = parquet(tmp_path / "pets", train=table(), extra=table(6, seed=90))
    page = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    page += "  - split: train\n    path: data/train-*\n  - split: test\n    path: data/extra-*\n---\n"
    (root / "README.md").write_text(page)
    assert len(ck.data.load(root).test) == 6


@pytest.mark.parametrize(
    "names", [("Train", "Test"), ("training", "eval"), ("train_images", "holdout"), ("TRAIN", "dev")]
)
def test_parts_in_any_spelling(tmp_path: Path, names: tuple[str, str]) -> None:
    made = datasets.DatasetDict(dict(zip(names, (table(), table(6, seed=90)), strict=True)))
    made.save_to_disk(str(tmp_path / "pets"))
    data = ck.data.load(tmp_path / "pets")
    assert (len(data.train), len(data.test)) == (20, 6)


@pytest.mark.parametrize(
    ("names", "subject"),
    [(("train", "test_night", "test"), "test_night"), (("train", "Training", "val"), "Training")],
)
def test_parts_that_are_not_known(tmp_path: Path, names: tuple[str, ...], subject: str) -> None:
    datasets.DatasetDict({name: table(4) for name in names}).save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == subject


def test_parts_that_are_left_out_are_told(tmp_path: Path) -> None:
    made = {"train": table(), "extra": table(4, seed=50), "test": table(6, seed=90)}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "pets"))
    with pytest.warns(DataWarning, match="extra"):
        assert len(ck.data.load(tmp_path / "pets").test) == 6
    del made["test"]
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "others"))
    with pytest.warns(DataWarning, match="extra"):
        data = ck.data.load(tmp_path / "others")
    assert len(data.train) + len(data.test) == 20


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("split", ["train", "test"], datasets.Value("string")),
        ("set", [0, 1], datasets.ClassLabel(names=["Train", "Val"])),
        ("is_valid", [False, True], datasets.Value("bool")),
        ("is_train", [1, 0], datasets.Value("int64")),
    ],
)
def test_a_column_that_divides(tmp_path: Path, column: str, values: list[Any], kind: Any) -> None:
    table(**{column: (values * (COUNT // 2), kind)}).save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == column


@pytest.mark.parametrize("names", [["train-00000-of-00002"], ["train-00000-of-00001", "test-00001-of-00002"]])
def test_sets_of_which_a_file_is_missing(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "pets" / "data").mkdir(parents=True)
    for name in names:
        table(4).to_parquet(tmp_path / "pets" / "data" / f"{name}.parquet")
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject in ("data/train-00001-of-00002.parquet", "data/test-00000-of-00002.parquet")


def test_saved_files_that_are_missing(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "pets"), num_shards=2)
    (tmp_path / "pets" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == tmp_path / "pets"


def test_a_file_whose_download_is_not_finished(tmp_path: Path) -> None:
    for name in ("more.parquet.part", "more.PARQUET", "more.parquet.gz"):
        root = parquet(tmp_path / name / "pets", train=table(4))
        (root / "data" / name).write_bytes(b"")
        with pytest.raises(DataError) as caught:
            ck.data.load(root)
        assert caught.value.subject == f"data/{name}"


def test_folders_of_parts_hold_parquet_files(tmp_path: Path) -> None:
    for number, above in enumerate(("", "data")):
        root = tmp_path / str(number)
        for part, made in (("Train", table()), ("Test", table(6, seed=90))):
            (root / above / part).mkdir(parents=True)
            made.to_parquet(root / above / part / "0.parquet")
        data = ck.data.load(root)
        assert (len(data.train), len(data.test)) == (20, 6)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("label", [0, 1], datasets.Value("int64")),
        ("labels", ["cat", "dog"], datasets.Value("string")),
        ("Target", [0.5, 1.0], datasets.Value("float32")),
        ("category", [[0], [1]], datasets.Sequence(datasets.ClassLabel(names=["cat", "dog"]))),
    ],
)
def test_labels_without_names_beside_another_column_of_classes(
    tmp_path: Path, name: str, values: list[Any], kind: Any
) -> None:
    camera = ([place % 2 for place in range(COUNT)], datasets.ClassLabel(names=["phone", "studio"]))
    made = table(camera=camera).remove_columns("label")
    columns = datasets.Dataset.from_dict(
        {name: values * (COUNT // 2)}, features=datasets.Features({name: kind})
    )
    made = datasets.concatenate_datasets([made, columns], axis=1)
    made.save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == name
    in_cache(tmp_path, "user/pets", made)
    assert ck.data.load("hf:user/pets#camera").classes == ("phone", "studio")


@pytest.mark.parametrize("name", ["None", "nan", "-1", "NA"])
def test_classes_that_missing_labels_became(tmp_path: Path, name: str) -> None:
    kind = datasets.ClassLabel(names=["cat", name])
    table(label=([place % 2 for place in range(COUNT)], kind)).save_to_disk(str(tmp_path / "pets"))
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "pets")
    assert caught.value.subject == name


def in_cache(tmp_path: Path, name: str, made: Any) -> None:
    """Put a data set where the library keeps what it fetched from the Hub."""
    folder = parquet(tmp_path / "made" / name.rpartition("/")[2], train=made)
    datasets.load_dataset(str(folder))
    path_kept = tmp_path / "hub" / folder.name
    path_kept.rename(tmp_path / "hub" / name.replace("/", "___"))


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
