"""matrix and recombine: figures for people and programs, where test images come from, reports on disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, write_packs

import compatkit as ck
from compatkit.registry.store import Store

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"


@pytest.mark.usefixtures("parts")
def test_matrix_prints_a_table_and_writes_every_report(run: Any, tmp_path: Path) -> None:
    files = {name: tmp_path / f"matrix.{name}" for name in ("html", "png", "markdown", "csv")}
    result = run(
        "matrix", "digits/*.extractor", "digits/*.head", *(w for n, f in files.items() for w in (f"--{n}", f))
    )
    assert result.code == 0 and result.err == ""
    assert "digits/left.extractor" in result.out and "own pair" in result.out
    assert all(f"wrote {path}" in result.out for path in files.values())
    assert (
        files["html"].read_text().startswith("<!doctype html>")
        and files["png"].read_bytes()[:4] == b"\x89PNG"
    )
    assert (
        len(list(csv.DictReader(files["csv"].read_text().splitlines()))) == 4
        and "|" in files["markdown"].read_text()
    )


def test_matrix_prints_the_same_figures_as_json(run: Any, parts: Path) -> None:
    result = run("matrix", "digits/*.extractor", "digits/*.head", "--batch-size", 48, "--json")
    read = ck.Matrix.from_json(result.out)
    data = [ck.data.load(parts.parent / f"{name}.npz").test for name in ("left", "right")]
    direct = ck.Registry.open(parts).matrix("digits/*.extractor", "digits/*.head", data, batch_size=48)
    assert read.cells == direct.cells and read.settings["batch_size"] == 48


@pytest.mark.usefixtures("parts")
def test_cells_measured_in_channels_last_are_taken_without_it(run: Any) -> None:
    words = "matrix", "digits/*.extractor", "digits/*.head", "--json"
    first, second = (run(*words, *more).json for more in (["--channels-last"], []))
    assert first["settings"]["cells"] == {"taken": 0, "measured": 4}
    assert second["settings"]["cells"] == {"taken": 4, "measured": 0}
    assert all(
        cell["settings"]["channels_last"] is True for table in (first, second) for cell in table["cells"]
    )


@pytest.mark.usefixtures("parts")
def test_recombine_tells_accuracy_bound_and_verdict(run: Any) -> None:
    output = run("recombine", LEFT, RIGHT)
    assert "Accuracy, common classes" in output.out and "Bound" in output.out
    result = run("recombine", LEFT, RIGHT, "--json")
    cell = result.json["cell"]
    assert (
        result.json["check"]["evidence"] == cell["grade"]
        and cell["restricted"]["count"] == 48
        and cell["bound"]
    )
    assert result.code == output.code == (1 if cell["grade"] == "chance" else 0)


@pytest.mark.usefixtures("parts")
def test_recombine_without_measuring_needs_no_images(run: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    result = run("recombine", LEFT, RIGHT, "--no-measure")
    assert result.code == 0 and "built; not measured" in result.out
    assert run("recombine", LEFT, RIGHT, "--no-measure", "--json").json["cell"] is None


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("policy", ["batch", "reestimate", "mix:16", "running"])
def test_every_policy_is_named_in_the_result(run: Any, policy: str) -> None:
    result = run("recombine", LEFT, RIGHT, "--bn-policy", policy, "--json")
    assert result.code in (0, 1) and result.json["cell"]["settings"]["policy"] == policy


@pytest.mark.usefixtures("parts")
def test_a_prior_that_is_no_number_is_refused_as_an_option(run: Any) -> None:
    result = run("recombine", LEFT, RIGHT, "--bn-policy", "mix:few")
    assert result.code == 2 and "for example mix:16" in " ".join(result.err.split())


@pytest.mark.usefixtures("parts")
def test_a_head_is_at_chance_by_exit_code_1(run: Any, monkeypatch: Any) -> None:
    """The grade alone decides; what makes a grade is tested with the figures."""
    from compatkit.components.registry import Registry

    measure = Registry.matrix

    def at_chance(self: Registry, *args: Any, **kwargs: Any) -> Any:
        matrix = measure(self, *args, **kwargs)
        return attrs.evolve(matrix, cells=tuple(attrs.evolve(cell, grade="chance") for cell in matrix.cells))

    monkeypatch.setattr(Registry, "matrix", at_chance)
    result = run("recombine", LEFT, RIGHT)
    assert result.code == 1 and "incompatible" in result.out


def test_images_without_a_common_class_are_told_by_exit_code_1(run: Any, parts: Path) -> None:
    data = data_set("cats", classes=("cat", "dog", "owl"))
    arrays = {"x_train": data.train.images, "y_train": data.train.labels}
    arrays |= {"x_test": data.test.images, "y_test": data.test.labels, "classes": np.array(data.classes)}
    np.savez(parts.parent / "cats.npz", **arrays)
    result = run("recombine", LEFT, RIGHT, "--data", "cats")
    assert result.code == 1 and "no class in common with cats/test" in result.out


def test_the_bound_is_found_wherever_the_own_head_is(run: Any, parts: Path) -> None:
    """Also under a name that does not tell, and past a damaged component."""
    store = Store.open(parts)
    own = store.manifest("digits/left.head")
    store.publish("zoo/elsewhere", own)
    for version in store.versions("digits/left.head"):
        store.withdraw("digits/left.head", version, "moved")
    result = run("recombine", LEFT, RIGHT, "--json")
    assert result.json["cell"]["bound"] is not None


@pytest.mark.usefixtures("parts")
def test_images_of_a_recipe(run: Any, recipe: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    result = run("matrix", "digits/*.extractor", "digits/*.head", "--recipe", recipe(), "--json")
    assert (
        result.code == 0
        and [cell["settings"]["data"] for cell in result.json["cells"]]
        == ["left/test"] * 2 + ["right/test"] * 2
    )


BOTH = "matrix", "digits/*.extractor", "digits/*.head"


def test_images_are_found_again_where_training_found_them(run: Any, recipe: Any, tmp_path: Path) -> None:
    root = "--registry", tmp_path / "parts"
    path = recipe(('data = "left.npz"', 'data = { name = "left.npz", train = 24, test = 12 }'))
    assert run(*root, "train", path).code == 0
    result = run(*root, *BOTH, "--json")
    assert result.code == 0 and result.err == ""
    assert [cell["settings"]["data"] for cell in result.json["cells"]] == ["left/test"] * 2 + [
        "right/test"
    ] * 2
    assert result.json["cells"][0]["restricted"]["count"] == 12  # the recipe's own subset
    assert run(*root, "recombine", LEFT, RIGHT).code == 0
    texts = [file.read_bytes() for file in (tmp_path / "parts").rglob("*") if file.is_file()]
    assert texts and not any(str(path.parent).encode() in text for text in texts)  # nothing of it travels


@pytest.mark.filterwarnings("default:.* was trained on")
def test_images_that_moved_or_changed_since_training_are_told(run: Any, recipe: Any, tmp_path: Path) -> None:
    root, path = ("--registry", tmp_path / "parts"), recipe()
    assert run(*root, "train", path).code == 0
    pack = path.parent / "left.npz"
    write_packs(path.parent, count=30)
    changed = run(*root, *BOTH)
    assert changed.code == 2 and f"was trained on {pack}, which contains other images now." in unwrapped(
        changed
    )
    pack.unlink()
    gone = run(*root, *BOTH)
    assert gone.code == 2 and f"was trained on {pack}, which can no longer be loaded" in unwrapped(gone)
    assert "--data with a name, path or address" in gone.err


def unwrapped(text: Any) -> str:
    return " ".join(text.err.split())


def test_images_by_path_and_name(run: Any, parts: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    by_path = run("recombine", LEFT, RIGHT, "--data", parts.parent / "left.npz", "--json")
    by_name = run("recombine", LEFT, RIGHT, "--data", "left", "--data-root", parts.parent, "--json")
    assert (
        by_path.json["cell"] == by_name.json["cell"]
        and by_path.json["cell"]["settings"]["data"] == "left/test"
    )
    other = run("recombine", LEFT, RIGHT, "--data", parts.parent / "right.npz", "--json")
    assert (
        other.json["cell"]["settings"]["data"] == "right/test"
    )  # one extractor, one data set: taken as asked


@pytest.mark.usefixtures("parts")
def test_an_extractor_without_its_own_images_gets_no_other_ones(run: Any) -> None:
    result = run("matrix", "digits/*.extractor", "digits/*.head", "--data", "left")
    assert (
        result.code == 2
        and "digits/right.extractor@1.0.0 is trained on right" in result.err
        and "--recipe" in result.err
    )


@pytest.mark.usefixtures("parts")
def test_images_that_cannot_be_found_teach_where_to_say_so(run: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    result = run("recombine", LEFT, RIGHT)
    assert result.code == 2 and "was trained on 'left'" in result.err
    for way in (
        "--recipe FILE",
        "--data with a name, path or address",
        "--data-root DIR",
        "--download",
        "--no-measure",
    ):
        assert way in result.err


@pytest.mark.filterwarnings("default:.* was trained on")
def test_other_images_under_the_same_name_are_warned_of(run: Any, parts: Path) -> None:
    import shutil

    shutil.copy(parts.parent / "right.npz", parts.parent / "left.npz")
    result = run("recombine", LEFT, RIGHT, "--json")
    assert "warning" in result.err and "trained on other images than the 'left' found here" in result.err
    assert result.json["cell"]["settings"]["data"] == "left/test"


@pytest.mark.usefixtures("parts")
def test_reports_that_could_not_be_written_are_refused_before_anything_is_measured(
    run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from compatkit.components.registry import Registry

    monkeypatch.setattr(Registry, "matrix", lambda *args, **kwargs: pytest.fail("measured"))
    both = "digits/*.extractor", "digits/*.head"
    result = run("matrix", *both, "--html", tmp_path / "none" / "m.html")
    assert result.code == 4 and "does not exist" in result.err
    result = run("matrix", *both, "--png", tmp_path)
    assert result.code == 2 and "is a folder" in result.err
    result = run("matrix", *both, "--png", tmp_path / "m", "--csv", tmp_path / "m")
    assert result.code == 2 and "both name" in result.err


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("width", [80, 120])
def test_a_matrix_fits_the_terminal(run: Any, monkeypatch: Any, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    result = run("matrix", "digits/*.extractor", "digits/*.head")
    assert max(map(len, result.out.splitlines())) <= width


def test_marks_without_words_are_explained(run: Any, parts: Path, monkeypatch: Any) -> None:
    """Seven heads leave no room for words in 80 columns."""
    store = Store.open(parts)
    manifest = store.manifest("digits/right.head")
    for copy in range(5):
        store.publish(
            f"digits/{copy}.head", attrs.evolve(manifest, about=attrs.evolve(manifest.about, title=f"{copy}"))
        )
    monkeypatch.setenv("COLUMNS", "80")
    result = run("matrix", "digits/*.extractor", "digits/*.head")
    assert result.code == 0 and result.out.count("own pair") == 1
    assert "\N{BLACK DIAMOND} own pair, " in result.out


def test_equal_manifests_are_one_component(run: Any, parts: Path) -> None:
    store = Store.open(parts)
    store.publish("copy.head", store.manifest("digits/right.head"))
    assert len(run("matrix", "digits/*.extractor", "*.head", "--json").json["heads"]) == 2


def test_nothing_else_is_printed_beside_json(run: Any, parts: Path, monkeypatch: Any) -> None:
    """A plugin or library that prints does not break a program that reads."""
    from compatkit.components.registry import Registry

    measure = Registry.matrix

    def loud(self: Registry, *args: Any, **kwargs: Any) -> Any:
        print("downloading ...")
        return measure(self, *args, **kwargs)

    monkeypatch.setattr(Registry, "matrix", loud)
    result = run("matrix", "digits/*.extractor", "digits/*.head", "--json")
    assert json.loads(result.out) and "downloading ..." in result.err


@pytest.mark.usefixtures("parts")
def test_the_random_state_is_left_as_it_was(run: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run("recombine", LEFT, RIGHT)
    assert torch.equal(torch.rand(2), expected)


def test_a_matrix_is_compared_with_an_earlier_one(run: Any, parts: Path, tmp_path: Path) -> None:
    names = "digits/*.extractor", "digits/*.head"
    earlier = tmp_path / "before.json"
    metric = "--metric", "accuracy", "--set", "accuracy.top=2"
    earlier.write_text(run("matrix", *names, *metric, "--batch-size", 48, "--json").out)
    files = {name: tmp_path / f"c.{name}" for name in ("html", "csv")}
    outputs = (word for name, path in files.items() for word in (f"--{name}", path))
    words = *names, *metric, "--batch-size", 24, "--against", earlier
    later = run("matrix", *words, *outputs, "--json").json
    (change,) = later["pairs"][0]["metrics"]
    assert change["name"] == "accuracy@2" and change["difference"] == change["after"] - change["before"]
    assert later["kind"] == "matrix-comparison" and len(later["pairs"]) == 4
    assert {tuple(pair["conditions"]["batch_size"]) for pair in later["pairs"]} == {(48, 24)}
    before, after = (
        ck.Matrix.from_json(earlier.read_text()),
        ck.Registry.open(parts).matrix(*names, batch_size=24, metrics={"accuracy": {"top": 2}}),
    )
    compared = after.compare(before)
    assert later["counts"] == compared.counts() and compared.to_csv() == files["csv"].read_text()
    assert "Comparison of two matrices" in files["html"].read_text()
    text = run("matrix", *names, "--batch-size", 24, "--against", earlier)
    assert (
        text.out.startswith("Of 4 pairs measured in both: ")
        and "Conditions that differ: batch size" in text.out
    )


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("content", "more", "code"),
    [(None, (), 4), ("{}", (), 3), ("{", (), 3), ("{}", ("--png", "x.png"), 2)],
    ids=["missing", "other", "damaged", "picture"],
)
def test_a_bad_earlier_matrix_is_refused_before_anything_is_measured(
    run: Any, tmp_path: Path, monkeypatch: Any, content: str | None, more: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(ck.Registry, "matrix", lambda *a, **k: pytest.fail("measured"))
    path = tmp_path / "before.json"
    if content is not None:
        path.write_text(content)
    result = run("matrix", LEFT, RIGHT, "--against", path, *more)
    assert result.code == code, result.err
    assert "--png" in result.err if more else str(path) in "".join(result.err.split("\n"))
