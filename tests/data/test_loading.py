"""``load`` finds a data set by path or name and says where it looked; recipes describe one in a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compatkit.data import DataSet, load, load_spec, loading
from compatkit.errors import DataError, EnvironmentFailure, UnknownName


def test_a_path_loads_a_pack(write, arrays, tmp_path, monkeypatch):
    path = write(arrays)
    assert load(path).name == load(str(path)).name == "insects"
    monkeypatch.chdir(tmp_path)
    assert load("insects.npz").train.digest == load("./insects.npz").train.digest


def test_a_name_is_found_in_root_and_in_the_environments_folder(write, arrays, tmp_path, monkeypatch):
    write(arrays, "my_insects.webp.npz")
    assert load("my_insects", root=tmp_path).name == "my_insects"
    assert load("My-Insects", root=str(tmp_path)).name == "my_insects"
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    assert load("my-insects").test.name == "my_insects/test"
    assert load("my_insects.webp.npz").name == "my_insects"  # relative to the folder, too


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("insects/tset", "Did you mean 'test'?"),
        ("insects/test", "Load 'insects' and use its .test."),
        ("digits/validation", "with the splits train and test"),
        ("mnist/trian", "Did you mean 'train'?"),
    ],
)
def test_a_split_in_place_of_a_data_set_is_told_as_one(write, arrays, tmp_path, name, hint):
    write(arrays)
    with pytest.raises(UnknownName) as caught:
        load(name, root=tmp_path)
    assert caught.value.subject == name and hint in str(caught.value)
    with pytest.raises(DataError) as other:
        load("nothing/test", root=tmp_path)
    assert other.value.code == "data", "a path that is not there"


def test_root_wins_over_the_environment(write, arrays, tmp_path, monkeypatch):
    write(arrays)
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    with pytest.raises(UnknownName):
        load("insects", root=tmp_path / "empty")


def test_a_pack_wins_over_torchvision_and_takes_the_usual_name(write, arrays, tmp_path):
    write(arrays, "fashion_mnist.npz")
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    assert load("FashionMNIST", root=tmp_path).name == "fashion-mnist"
    assert load(tmp_path / "fashion_mnist.npz").name == "fashion-mnist"


def test_of_two_packs_of_a_name_the_first_is_taken(write, arrays, tmp_path):
    write(arrays)
    (tmp_path / "insects.webp.npz").write_bytes(b"never read")
    assert len(load("insects", root=tmp_path).train) == 9


def test_an_unknown_name_lists_what_is_known(write, arrays, tmp_path):
    write(arrays)
    with pytest.raises(UnknownName, match=r"There is no data set 'insect'. Did you mean 'insects'") as caught:
        load("insect", root=tmp_path)
    for known in ("typeset-digits", "stl10", "insects", str(tmp_path)):
        assert known in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_is_neither_a_name_nor_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load(None)
    assert caught.value.subject is None and "NoneType" in str(caught.value)
    with pytest.raises(UnknownName, match=r"There is no data set ''\. Known"):
        load("")
    with pytest.raises(DataError, match="no class folders"):
        load(".")


def test_a_file_in_place_of_a_folder_is_named(write, arrays):
    path = write(arrays)
    with pytest.raises(DataError, match="is a file; root and COMPATKIT_DATA name a folder"):
        load("insects", root=path)


def test_a_folder_that_may_not_be_read_is_the_environments_fault(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, os.strerror(13), str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(EnvironmentFailure, match=r"Permission denied. Check its permissions"):
        load("insects", root=tmp_path)


def small(make_split, name: str = "noise") -> DataSet:
    return DataSet(name, make_split([0, 1, 2] * 4), make_split([0, 1, 2] * 2, name=f"{name}/test"))


def offer(monkeypatch, **factories):
    """Let plugins offer these data sets and no others."""
    monkeypatch.setattr(loading, "providers", lambda: factories)


def test_the_factory_of_a_plugin_is_called_with_root_and_download(make_split, tmp_path, monkeypatch):
    calls = []

    def factory(root=None, download=False):
        calls.append((root, download))
        return small(make_split)

    offer(monkeypatch, noise=factory)
    assert load("Noise", root=tmp_path, download=True).name == "noise"
    assert calls == [(tmp_path, True)]
    with pytest.raises(UnknownName, match="Did you mean 'noise'"):
        load("noises")


def test_a_pack_of_the_folder_wins_over_a_plugin(make_split, write, arrays, tmp_path, monkeypatch):
    write(arrays, "noise.npz")
    offer(
        monkeypatch, **{"noise": lambda **_: small(make_split), "demo:noise": lambda **_: small(make_split)}
    )
    assert load("noise", root=tmp_path).classes == load("noise").classes
    assert len(load("noise", root=tmp_path).train) == 9
    assert len(load("noise").train) == len(load("demo:noise", root=tmp_path).train) == 12


def test_a_factory_that_returns_no_data_set_is_named(monkeypatch):
    offer(monkeypatch, noise=lambda **_: 3)
    with pytest.raises(DataError) as caught:
        load("noise")
    assert caught.value.subject == "noise"


def test_data_sets_of_plugins_are_imported_only_when_they_are_loaded():
    script = (
        "import sys\nfrom compatkit.data import load\nfrom compatkit.errors import UnknownName\n"
        "try:\n    load('spritez')\nexcept UnknownName as error:\n    print(\"'sprites'\" in str(error))\n"
        "load('peaks')\n"
        "print(sorted(name for name in sys.modules if name.startswith('compatkit_plugins.data_sets.')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["True", "['compatkit_plugins.data_sets.peaks']"]


def test_importing_data_imports_nothing_heavy():
    script = (
        "import sys, compatkit.data, compatkit.contracts.labels; "
        "print(sorted({'numpy', 'torch', 'torchvision', 'sklearn', 'matplotlib', 'PIL'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_reading_a_pack_needs_no_torch(write, arrays):
    script = (
        f"import sys; from compatkit.data import load; load({str(write(arrays))!r}).train.resized((8, 8)); "
        "print(sorted({'torch', 'torchvision', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.fixture
def source(write, arrays) -> Path:
    return write(arrays)


def test_a_recipe_may_give_just_a_name_or_path(source):
    assert load_spec(str(source)).name == load_spec({"name": str(source)}).name == "insects"
    assert load_spec("insects", root=source.parent).train.digest == load_spec(str(source)).train.digest


def test_a_recipe_takes_halves_counts_and_shifts(source):
    shift = {"hue": 0.3, "brightness": 0.8, "blur": 0.5}
    data = load_spec({"name": str(source), "half": 2, "train": 3, "test": 2, "shift": shift, "as": "dim"})
    by_hand = load(source).halves()[1].subset(3, 2).shifted(**shift)
    assert data.train.digest == by_hand.train.digest
    assert (data.name, data.train.name, len(data.test)) == ("dim", "dim/train", 2)


def test_a_recipe_draws_by_seed_and_converts(source):
    first, second = (
        load_spec({"name": str(source), "train": 3, "seed": seed, "channels": "L"}) for seed in (0, 1)
    )
    assert first.train.channels == first.test.channels == "L"
    assert first.train.digest != second.train.digest
    assert len(first.test) == 6


def test_a_relative_path_is_tried_beside_the_recipe_first(source, tmp_path, monkeypatch):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    assert load_spec("../insects.npz", relative_to=recipes).name == "insects"
    monkeypatch.chdir(tmp_path)
    assert load_spec("insects.npz", relative_to=recipes).name == "insects"


def test_a_recipe_may_name_the_data_set_of_a_plugin(make_split, monkeypatch):
    offer(monkeypatch, noise=lambda **_: small(make_split))
    assert len(load_spec({"name": "noise", "train": 3}).train) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"trian": 3},
            r"data has the unknown key 'trian'. Did you mean 'train'\? Known are name, as, classes, half",
        ),
        ({"shift": {"hoe": 0.3}}, "data.shift has the unknown key 'hoe'. Did you mean 'hue'"),
        ({"shift": 0.3}, "shift must be a table of hue, brightness, blur, got 0.3"),
        ({"shift": {"blur": "much"}}, "'blur' must be a number"),
        ({"half": 3}, "half must be 1 or 2, got 3"),
        ({"half": True}, "half must be 1 or 2, got True"),
        ({"train": 100}, "has 9 images; a subset has 1 to all of them, not 100"),
        ({"test": "all"}, "has 6 images; .* not 'all'"),
        ({"train": 3, "seed": -1}, "'seed' must be a whole number from 0"),
        ({"channels": "BGR"}, "'L' or 'RGB', not 'BGR'"),
        ({"as": ""}, "'as' must be a name"),
        ({"name": ""}, "needs 'name'"),
        ({"name": 3}, "needs 'name'"),
    ],
)
def test_a_recipe_is_read_strictly(source, change, message):
    with pytest.raises(DataError, match=message):
        load_spec({"name": str(source)} | change)


def test_a_recipe_that_is_no_table_is_refused():
    with pytest.raises(DataError, match="a name, a path or a table, got list"):
        load_spec(["mnist"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"needs 'name'.*got None"):
        load_spec({"train": 5})


def test_the_order_of_a_subset_is_that_of_the_source(source):
    data, whole = load_spec({"name": str(source), "train": 6}), load(source)
    assert (data.train.images == whole.train.images[:6]).all()
    assert np.array_equal(data.train.labels, [0, 1, 2, 0, 1, 2])


def test_a_single_image_in_place_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "cat.PNG").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for item in ("cat.PNG", "./cat.PNG", tmp_path / "cat.PNG"):
        with pytest.raises(DataError, match="is an image file; give the folder of class folders") as caught:
            load(item)
        assert caught.value.subject == item
