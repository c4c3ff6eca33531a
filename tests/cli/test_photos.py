"""Commands that take images, with folders of image files of any sizes: with class folders, and without."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from photos import class_folder, encoded, photo

PAIR = ("digits/left.extractor", "digits/right.head")


@pytest.fixture
def work(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trained registry, with folders of images beside it, which is the current folder's."""
    work = tmp_path / "work"
    shutil.copytree(trained, work)
    class_folder(work / "classes", {"0": 12, "1": 9, "2": 9})
    (work / "flat" / "deeper").mkdir(parents=True)
    for place in range(24):
        shape = 10 + place, 40 - place
        (work / "flat" / f"{'deeper/' * (place % 2)}{place}.png").write_bytes(
            encoded(photo(*shape, seed=place))
        )
    monkeypatch.chdir(work)
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    return work


@pytest.mark.usefixtures("work")
def test_a_bridge_is_built_on_images_without_labels(run: Any) -> None:
    arguments = ("--rungs", "statistics,ridge", "--all", "--json")
    result = run("bridge", *PAIR, "--data", "flat", *arguments)
    assert result.code in (0, 1) and result.json["facts"]["held_out"] == 12, result.err
    assert all(step["accuracy"] is None for step in result.json["steps"])
    mixed = run("bridge", *PAIR, "--data", "flat/", "--head-data", "classes", "--on", "mix", *arguments)
    assert mixed.code in (0, 1) and mixed.json["steps"], mixed.err


@pytest.mark.usefixtures("work")
def test_class_folders_bring_test_images(run: Any) -> None:
    for name in ("classes", "classes/"):
        result = run("bridge", *PAIR, "--data", name, "--rungs", "statistics", "--all", "--json")
        assert result.code in (0, 1), result.err
        assert [step["accuracy"]["images"] for step in result.json["steps"]] == [3]


def test_parts_are_recombined_on_class_folders(run: Any, work: Path) -> None:
    result = run("recombine", *PAIR, "--data", "classes/", "--json")
    assert result.code in (0, 1) and result.json["cell"]["restricted"]["count"] == 3, result.err
    recipe = work / "recipe.toml"
    recipe.write_text(
        'prefix = "photos"\n[trainer]\nsteps = 2\nbatch_size = 4\nprecision = "float32"\nworkers = 0\n[[tasks]]\n'
        'name = "classes"\ndata = {name = "classes/", hold_out = 0.25, seed = 1, damaged = "skip"}\n'
        'model = "simple_cnn"\ncut = "forward_features"\nsize = [16, 16]\n'
    )
    (work / "classes" / "0" / "cut.png").write_bytes(encoded(photo(30, 30))[:80])
    output = run("train", recipe)
    assert output.code == 0, output.err
    assert "training images of classes in 3 classes; left out: 1 damaged image\n" in output.err
    assert "1 damaged image left out" in run("show", "photos/classes.extractor").out
    again = run("matrix", "photos/classes.extractor", "photos/classes.head", "--json")
    assert again.code == 0 and "warning" not in again.err, again.err


def test_damaged_images_of_a_named_data_set_are_left_out_on_request(run: Any, work: Path) -> None:
    for folder in ("classes/0", "flat"):
        (work / folder / "cut.png").write_bytes(encoded(photo(30, 30))[:80])
        (work / folder / "empty.jpg").write_bytes(b"")
    bridge = ("bridge", *PAIR, "--data", "flat", "--rungs", "statistics", "--all", "--json")
    refused = run(*bridge)
    assert refused.code == 2 and refused.json["error"]["code"] == "damaged-image", refused.out
    assert "--damaged skip" in refused.json["error"]["message"]
    assert run(*bridge, "--damaged", "skip").json["facts"]["held_out"] == 12
    skipped = run("recombine", *PAIR, "--data", "classes/", "--json", "--damaged", "skip")
    assert skipped.code in (0, 1) and skipped.json["cell"]["restricted"]["count"] == 3, skipped.err
    unused = run("recombine", *PAIR, "--damaged", "skip", "--json")
    assert unused.code == 2 and unused.json["error"]["code"] == "usage"


def test_where_data_sets_may_be_is_told_of_those_that_are_not_found_alone(run: Any, work: Path) -> None:
    recipe = work / "recipe.toml"
    for share, value in (("1.5", False), ("0.5", True)):
        recipe.write_text(
            f'prefix = "a"\n[trainer]\nsteps = 2\nbatch_size = 4\n[[tasks]]\nname = "a"\nmodel = "simple_cnn"\n'
            f'cut = "forward_features"\nsize = [16, 16]\ndata = {{name = "cifar10", hold_out = {share}}}\n'
        )
        refused = run("train", recipe, "--json")
        assert refused.json["error"]["code"] == ("data-unavailable" if value else "data"), refused.out
        assert ("--data-root" in refused.json["error"]["message"]) == value
