"""Every way to give data that page data.md promises: loaded, trained on by a recipe, told by its digest, and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_shards import shard
from photos import class_folder, encoded, photo

import compatkit as ck

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::compatkit.data.validation.DataWarning"),
]
NAMES = ("ant", "bee")
RECIPE = """
prefix = "pets"
[trainer]
steps = 2
batch_size = 4
precision = "float32"
workers = 0
progress = false
[[tasks]]
name = "pets"
data = {data}
model = "simple_cnn"
cut = "forward_features"
size = [16, 16]
"""


def table(root: Path, *, absolute: bool = False, split: bool = False, parquet: bool = False) -> str:
    """Write a table of the images of two class folders; the labels are numbers beside ``classes.txt``."""
    class_folder(root / "files", {"ant": 6, "bee": 6}, size=(12, 14))
    rows = []
    for place, file in enumerate(sorted((root / "files").rglob("*.png"))):
        path = str(file if absolute else file.relative_to(root))
        part = "val" if place % 3 == 0 else "train"
        rows.append(
            {"path": path, "label": str(NAMES.index(file.parent.name)), **({"split": part} if split else {})}
        )
    (root / "classes.txt").write_text("ant\nbee\n")
    if parquet:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet as files

        files.write_table(pyarrow.Table.from_pylist(rows), root / "list.parquet")
        return str(root / "list.parquet")
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    return str(root / "list.csv")


def shards(root: Path, *names: str, with_names: bool = False) -> str:
    """Write shards; classes are numbers, or names."""
    for number, name in enumerate(names):
        members = {}
        for place in range(10):
            members[f"{number}{place:03}.png"] = encoded(photo(12, 14, seed=10 * number + place))
            label = place % 2
            members[f"{number}{place:03}.cls"] = (NAMES[label] if with_names else str(label)).encode()
        shard(root / "shards" / f"{name}.tar", members)
    return f"{root}/shards/"


def parts(root: Path, *names: str) -> str:
    for number, name in enumerate(names):
        class_folder(root / "photos" / name, {"ant": 6, "bee": 6}, seed=100 * number, size=(12, 14))
    return f"{root}/photos/"


def pack(root: Path) -> str:
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array(NAMES)}
    for part, count in (("train", 12), ("test", 6)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 2
    np.savez(root / "pets.npz", **arrays)
    return str(root / "pets.npz")


def hub_table(count: int = 12, **more: tuple[list[Any], Any]) -> Any:
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": encoded(photo(12, 14, seed=place)), "path": None} for place in range(count)]
    columns = {
        "photo": (images, datasets.Image()),
        "label": ([place % 2 for place in range(count)], datasets.ClassLabel(names=list(NAMES))),
        **more,
    }
    kinds = datasets.Features({name: kind for name, (_, kind) in columns.items()})
    return datasets.Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features=kinds)


def saved(root: Path, both: bool) -> str:
    datasets = pytest.importorskip("datasets")
    made = datasets.DatasetDict({"train": hub_table(), "validation": hub_table(6)}) if both else hub_table()
    made.save_to_disk(str(root / "saved"))
    return f"{root}/saved/"


def parquet_folder(root: Path) -> str:
    (root / "hub" / "data").mkdir(parents=True)
    for part in ("train", "test"):
        hub_table().to_parquet(root / "hub" / "data" / f"{part}-00000-of-00001.parquet")
    return f"{root}/hub/"


def links(root: Path) -> str:
    class_folder(root / "store", {"ant": 6, "bee": 6}, size=(12, 14))
    (root / "photos").mkdir()
    (root / "photos" / "ant").symlink_to(root / "store" / "ant")
    (root / "photos" / "bee" / "deep").mkdir(parents=True)
    (root / "photos" / "bee" / "deep" / "more").symlink_to(root / "store" / "bee")
    (root / "photos" / "classes.txt").write_text("ant Ant\nbee Bee\n")
    return f"{root}/photos/"


def damaged(root: Path) -> str:
    place = class_folder(root / "photos", {"ant": 6, "bee": 6}, size=(12, 14))
    (place / "ant" / "cut.png").write_bytes(encoded(photo(9, 9))[:70])
    return f"{place}/"


Way = tuple[Callable[[Path], str], dict[str, Any]]
WAYS: dict[str, Way] = {
    "class folders": (lambda root: f"{class_folder(root / 'photos', {'ant': 6, 'bee': 6})}/", {}),
    "train and val": (lambda root: parts(root, "train", "val"), {}),
    "train and test": (lambda root: parts(root, "train", "test"), {}),
    "train, val and test": (lambda root: parts(root, "train", "val", "test"), {}),
    "other spellings of parts": (lambda root: parts(root, "seg_train", "seg_test"), {}),
    "links and renamed classes": (links, {}),
    "a CSV": (table, {}),
    "a CSV of absolute paths": (lambda root: table(root, absolute=True), {}),
    "a CSV with parts": (lambda root: table(root, split=True), {}),
    "a Parquet table": (lambda root: table(root, parquet=True), {}),
    "a Parquet table with parts": (lambda root: table(root, split=True, parquet=True), {}),
    "a folder of shards": (lambda root: shards(root, "pets-0", "pets-1"), {}),
    "shards with parts": (lambda root: shards(root, "train-0", "train-1", "val-0"), {}),
    "a pattern of shards": (lambda root: shards(root, "train-0", "train-1") + "train-*.tar", {}),
    "one shard of named classes": (lambda root: shards(root, "pets", with_names=True) + "pets.tar", {}),
    "shards at a URL": (lambda root: "file://" + shards(root, "train-0", "val-0"), {}),
    "a pattern at a URL": (lambda root: "file://" + shards(root, "pets-0", "pets-1") + "pets-*.tar", {}),
    "a saved table": (lambda root: saved(root, both=False), {}),
    "saved parts": (lambda root: saved(root, both=True), {}),
    "a folder of Parquet files": (parquet_folder, {}),
    "a pack": (pack, {}),
    "a share that is held out": (
        lambda root: f"{class_folder(root / 'photos', {'ant': 6, 'bee': 6})}/",
        {"hold_out": 0.3, "seed": 1},
    ),
    "an unverified digest": (
        lambda root: f"{class_folder(root / 'photos', {'ant': 6, 'bee': 6})}/",
        {"digest": "unverified"},
    ),
    "an unverified table": (table, {"digest": "unverified"}),
    "damaged images that are skipped": (damaged, {"damaged": "skip"}),
    "some classes and images": (
        lambda root: f"{class_folder(root / 'photos', {'ant': 9, 'bee': 9, 'cat': 9})}/",
        {"classes": ["cat", "ant"], "train": 12},
    ),
    "gray images that are shifted": (
        lambda root: f"{class_folder(root / 'photos', {'ant': 6, 'bee': 6})}/",
        {"channels": "L", "shift": {"blur": 0.5}},
    ),
}


QUICK = ("a CSV of absolute paths", "shards with parts", "saved parts", "links and renamed classes")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS]
)
def test_a_way_goes_from_loading_to_training_and_is_shown(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path / "parts"))
    make, settings = WAYS[way]
    address = make(tmp_path)
    spec = {"name": address, **settings}
    data = ck.data.load_spec(spec)
    assert len(data.train) >= 8 and len(data.test) >= 1 and len(data.classes) == 2
    again = ck.data.load_spec(data.source.spec)  # type: ignore[union-attr]
    assert (again.train.digest, again.test.digest) == (data.train.digest, data.test.digest)
    assert data.train.digest.startswith("data:unverified:" if "digest" in settings else "data:sha256:")

    (tmp_path / "recipe.toml").write_text(RECIPE.replace("{data}", inline(spec)))
    assert run("init", tmp_path / "parts").code == 0
    trained = run("train", tmp_path / "recipe.toml", "--json")
    assert trained.code == 0, trained.out + trained.err
    matrix = run("matrix", "pets/*.extractor", "pets/*.head", "--json")  # finds the images again
    assert matrix.code == 0 and "warning" not in matrix.err, matrix.out + matrix.err
    names = run("matrix", "pets/*.extractor", "pets/*.head", "--data", address, "--json")
    assert names.code == 0 or settings, names.out + names.err

    shown = run("data", "show", address, "--json")
    assert shown.code == 0, shown.out + shown.err
    result = shown.json["parts"]
    whole = ck.data.load(address)
    assert [part["digest"] for part in result] == [whole.train.digest, whole.test.digest]
    assert [part["images"] for part in result] == [len(whole.train), len(whole.test)]
    assert run("data", "show", address).code == 0


def inline(value: Any) -> str:
    """Return a value as TOML writes it in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(entry)}" for key, entry in value.items()) + "}"
    return json.dumps(value)


def test_a_data_set_of_the_hub(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the cache of its library, with and without a column; nothing is asked of the network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    tables = {
        "user/pets": hub_table(
            fine=([place % 4 for place in range(12)], datasets.ClassLabel(names=list("abcd")))
        )
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration=None: {"train": tables[name]})
    for address, classes in (("hf:user/pets#fine", 4), ("hf:user/pets", 2), ("hf:user/pets:small", 2)):
        data = ck.data.load(address)
        assert len(data.classes) == classes
        task = ck.Task("pets", data, "simple_cnn", "forward_features", size=(16, 16))
        fit = ck.Trainer(steps=1, batch_size=4, workers=0, progress=False, precision="float32").fit([task])
        assert fit.run["tasks"][0]["data"]["digest"] == data.train.digest
        shown = run("data", "show", address, "--json")
        assert shown.code == 0 and shown.json["parts"][0]["digest"] == data.train.digest, shown.out


def test_images_without_labels(run: Any, tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"flat": 6}, size=(12, 14)) / "flat"
    shown = run("data", "show", root, "--json")
    assert shown.code == 0 and shown.json["parts"][0]["images"] == 6 and not shown.json["parts"][0]["classes"]


def test_a_loader_of_ones_own(tmp_path: Path) -> None:
    """The example of the page, with bytes and with floats that are normalized already."""
    import torch

    data = ck.data.load(f"{class_folder(tmp_path / 'photos', {'ant': 6, 'bee': 6})}/")
    small = data.train.resized((16, 16))
    pixels = torch.from_numpy(small.read(range(len(small)))).permute(0, 3, 1, 2)
    for images in (pixels, pixels.float() / 255 - 0.5):
        mine = torch.utils.data.TensorDataset(images, torch.from_numpy(small.labels))
        loader = torch.utils.data.DataLoader(mine, batch_size=4, shuffle=True)
        task = ck.Task("mine", data, "simple_cnn", "forward_features", size=(16, 16), loader=loader)
        fit = ck.Trainer(steps=3, batch_size=4, progress=False, precision="float32").fit([task])
        assert fit.run["tasks"][0]["data"]["digest"] == data.train.digest


def test_data_sets_by_name(run: Any, tmp_path: Path) -> None:
    """One that is made in code, and a pack in a folder of packs; the names of both may be spelled otherwise."""
    pack(tmp_path)
    for name, where in (("digits", ()), ("Pets", ("--data-root", str(tmp_path)))):
        data = ck.data.load(name, root=tmp_path)
        shown = run("data", "show", name, *where, "--json")
        assert shown.code == 0, shown.out
        assert [part["digest"] for part in shown.json["parts"]] == [data.train.digest, data.test.digest]
        some = data.of_classes(data.classes[:2]).subset(8)
        assert len(some.train) == 8 and some.classes == data.classes[:2]
