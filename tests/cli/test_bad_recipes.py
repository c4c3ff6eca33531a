"""Recipes that cannot be used: one clear error, the right exit code, and not a byte written anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set

CASES: dict[str, tuple[list[tuple[str, str]], int, str]] = {
    "unknown model": (
        [('model = "resnet8_cifar"', 'model = "resnet20_cifra"')],
        2,
        "resnet20_cifar",
    ),
    "unknown cut": ([('cut = "layer2"', 'cut = "layr2"')], 2, "layer2"),
    "unknown plugin": ([('"dcc"', '"dccc"')], 2, "did you mean 'dcc'|Did you mean 'dcc'"),
    "unknown setting of a plugin": ([('"dcc"', '{ name = "dcc", weigth = 2 }')], 2, "no setting 'weigth'"),
    "weight below zero": ([('"dcc"', '{ name = "dcc", weight = -1 }')], 2, "finite number >= 0"),
    "one plugin twice": ([('"identical_init", "dcc"', '"dcc", "dcc"')], 2, "dcc"),
    "unknown class": (
        [('"dcc"', '{ name = "dcc", classes = ["0", "seventeen"] }')],
        2,
        "'seventeen' is no class",
    ),
    "unknown data set": ([('"left.npz"', '"mnits"')], 2, "Did you mean 'mnist'"),
    "missing data file": ([('"left.npz"', '"nowhere.npz"')], 2, "no data set .*nowhere.npz"),
    "data set not at hand": ([('"left.npz"', '"mnist"')], 2, "is in none of these folders.* --data-root DIR"),
    "unknown key of data": (
        [('data = "left.npz"', 'data = { name = "left.npz", half = 1, shfit = 2 }')],
        2,
        "'shift'",
    ),
    "half of data": (
        [('data = "left.npz"', 'data = { name = "left.npz", half = 3 }')],
        2,
        "half must be 1 or 2",
    ),
    "no TOML": ([('prefix = "digits"', "prefix = digits")], 2, "is not a TOML file"),
    "unknown key": (
        [('prefix = "digits"', 'prefix = "digits"\nregularizrs = []')],
        2,
        "Did you mean 'regularizers'",
    ),
    "unknown key of the trainer": ([("steps = 2", "stesp = 2")], 2, "Did you mean 'steps'"),
    "unknown key of a task": ([("size = [16, 16]", "sise = [16, 16]")], 2, "Did you mean 'size'"),
    "no prefix": ([('prefix = "digits"', "")], 2, "lacks prefix"),
    "no steps": ([("steps = 2", "")], 2, "lacks steps"),
    "no model": ([('model = "resnet8_cifar"', "")], 2, "lacks model"),
    "no trainer": ([('[trainer]\nsteps = 2\nbatch_size = 8\nprecision = "float32"', "")], 2, "lacks trainer"),
    "steps as text": ([("steps = 2", 'steps = "many"')], 2, "steps must be a whole number, got 'many'"),
    "steps as fraction": ([("steps = 2", "steps = 2.5")], 2, "steps must be a whole number"),
    "steps as truth": ([("steps = 2", "steps = true")], 2, "steps must be a whole number"),
    "steps below zero": ([("steps = 2", "steps = -1")], 2, "steps"),
    "rate as text": ([("steps = 2", 'steps = 2\nlr = "fast"')], 2, "lr must be a number"),
    "rate not finite": ([("steps = 2", "steps = 2\nlr = nan")], 2, "finite"),
    "rate below zero": ([("steps = 2", "steps = 2\nlr = -0.1")], 2, "not negative"),
    "seed below zero": ([("steps = 2", "steps = 2\nseed = -1")], 2, "not negative"),
    "optimizer": (
        [("steps = 2", 'steps = 2\noptimizer = "adma"')],
        2,
        "There is no optimizer 'adma'. Did you mean 'ada",
    ),
    "schedule": ([("steps = 2", 'steps = 2\nschedule = "stpe"')], 2, "Did you mean 'step'"),
    "batch larger than the data": ([("batch_size = 8", "batch_size = 4096")], 2, "48"),
    "device": ([("steps = 2", 'steps = 2\ndevice = "gpu9"')], 2, "gpu9"),
    "regularizers as text": ([('["identical_init", "dcc"]', '"dcc"')], 2, "must be a list"),
    "regularizer as number": ([('"dcc"]', "3]")], 2, "name"),
    "tasks as one table": ([("[[tasks]]", "[tasks.x]")], 2, "declare|no TOML|TOML|\\[\\[tasks\\]\\]"),
    "size as text": (
        [("size = [16, 16]", 'size = "16"')],
        2,
        "size must be a whole number or a list of 2, each a whole number, got '16'",
    ),
    "size zero": ([("size = [16, 16]", "size = 0")], 2, "0"),
    "size of three": (
        [("size = [16, 16]", "size = [16, 16, 3]")],
        2,
        "size must be a whole number or a list of 2",
    ),
    "size of nothing": ([("size = [16, 16]", "size = [0, 16]")], 2, "0"),
    "augment": ([("size = [16, 16]", 'size = [16, 16]\naugment = ["spin"]')], 2, "crop and flip"),
    "augment in a text": (
        [("size = [16, 16]", 'size = [16, 16]\naugment = "crop, spin"')],
        2,
        "crop and flip, .*'crop, spin'",
    ),
    "augment as number": (
        [("size = [16, 16]", "size = [16, 16]\naugment = 3")],
        2,
        "augment must be a string",
    ),
    "kwargs as list": ([("size = [16, 16]", "size = [16, 16]\nkwargs = [1]")], 2, "kwargs must be a table"),
    "unknown kwargs": ([("size = [16, 16]", "size = [16, 16]\nkwargs = { depht = 3 }")], 2, "depht"),
    "name as number": ([('name = "left"', "name = 7")], 2, "name must be a string"),
    "two of one name": ([('name = "right"', 'name = "left"')], 2, "two tasks are named 'left'"),
    "prefix as number": ([('prefix = "digits"', "prefix = 7")], 2, "prefix must be a string"),
    "frozen as text": (
        [('prefix = "digits"', 'prefix = "digits"\nfrozen = "x"')],
        2,
        r"\[frozen\] must be a table",
    ),
    "frozen without heads": (
        [("[trainer]", '[frozen]\nstatistics = "batch"\n[trainer]')],
        2,
        "needs heads",
    ),
    "frozen statistics": (
        [("[trainer]", '[frozen]\nheads = "x"\nstatistics = "bath"\n[trainer]')],
        2,
        "Did you mean 'batch'",
    ),
    "weights not there": (
        [("size = [16, 16]", 'size = [16, 16]\nweights = "none.safetensors"')],
        2,
        "none.safetensors",
    ),
    "pretrained where there are none": (
        [("size = [16, 16]", 'size = [16, 16]\nweights = "pretrained"')],
        2,
        "no pretrained",
    ),
    "networks that differ": (
        [
            (
                'name = "left"\ndata = "left.npz"\nmodel = "resnet8_cifar"',
                'name = "left"\ndata = "left.npz"\nmodel = "resnet32_cifar"',
            )
        ],
        2,
        "identical_init|same features",
    ),
}
HOSTILE = [
    "../up",
    "a/../b",
    "/etc",
    "A",
    "a/b/c",
    "con",
    "a\\b",
    "",
    "-",
    "a b",
    "\u202ea",
    "a" * 80,
    "a@1.0.0",
    "a:prod",
    "*",
]


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error_and_nothing_written(
    run: Any, recipe: Any, tmp_path: Path, untouched: Any, case: str
) -> None:
    changes, code, expected = CASES[case]
    file = recipe(*changes)
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert result.code == code, result.err
    assert result.out == "" and "Traceback" not in result.err
    error = result.err[result.err.index("error [") :]
    assert re.search(expected, error), error


@pytest.mark.case("B1")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_before_the_training(
    run: Any, recipe: Any, tmp_path: Path, untouched: Any, name: str
) -> None:
    file = recipe(('name = "left"', f"name = {name!r}"))
    with untouched(tmp_path):
        tasks = run("train", file, "--registry", tmp_path / "parts", "--json")
        assert tasks.code == 2 and tasks.json["error"]["code"] in ("invalid-name", "usage")
    recipe()
    with untouched(tmp_path):
        prefix = run("train", file, "--registry", tmp_path / "parts", "--prefix", f"x/{name}/y", "--json")
        assert prefix.code == 2 and prefix.json["error"]["code"] == "invalid-name"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "There is no recipe"),
        (b"", "lacks"),
        (b"\xff\xfe\x00", "is not a TOML file"),
        (b"\x80\x04\x95pickle", "is not a TOML file"),
        (b"[[" * 20000, "is not a TOML file"),
        (b"a = " + b"[" * 20000, "is not a TOML file"),
    ],
    ids=["missing", "empty", "not text", "pickle", "brackets", "deep"],
)
def test_a_file_that_is_no_recipe(
    run: Any, tmp_path: Path, untouched: Any, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "recipe.toml"
    if content is not None:
        file.write_bytes(content)
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert result.code == 2 and expected in result.err


def test_a_folder_is_no_recipe(run: Any, tmp_path: Path) -> None:
    result = run("train", tmp_path, "--registry", tmp_path / "parts")
    assert result.code == 2 and "name the recipe file in it" in result.err


def test_a_recipe_with_a_byte_order_mark_is_read(recipe: Callable[..., Path]) -> None:
    from swept import read_recipe as read

    file = recipe()
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read(file).prefix == "digits"


def test_two_tasks_without_a_common_class_under_dcc(
    run: Any, recipe: Any, tmp_path: Path, untouched: Any
) -> None:
    file = recipe()
    data = data_set("right", classes=("cat", "dog", "owl"))
    np.savez(
        file.parent / "right.npz",
        x_train=data.train.images,
        y_train=data.train.labels,
        x_test=data.test.images,
        y_test=data.test.labels,
        classes=np.array(data.classes),
    )
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert result.code == 2
    for word in ("here tasks share none", "left: 0, 1, 2", "right: cat, dog, owl"):
        assert word in result.err


@pytest.mark.case("A10")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.", "a pickle"),
        (b"PK\x03\x04" + b"\0" * 60, "torch.save writes"),
        (b"<!doctype html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (b"", "truncated or empty"),
    ],
    ids=["pickle", "torch.save", "web page", "pointer", "empty"],
)
def test_a_foreign_file_as_weights_is_named_for_what_it_is(
    run: Any, recipe: Any, tmp_path: Path, untouched: Any, content: bytes, expected: str
) -> None:
    file = recipe(("size = [16, 16]", 'size = [16, 16]\nweights = "start.safetensors"'))
    (file.parent / "start.safetensors").write_bytes(content)
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert result.code == 3 and "start.safetensors: " in result.err and expected in result.err


def test_a_damaged_pack(run: Any, recipe: Any, tmp_path: Path, untouched: Any) -> None:
    file = recipe()
    pack = file.parent / "left.npz"
    pack.write_bytes(pack.read_bytes()[:-200])
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert result.code == 2 and "left.npz is damaged" in result.err


@pytest.mark.case("A8")
def test_a_loss_that_is_not_finite_publishes_nothing(
    run: Any, recipe: Any, tmp_path: Path, untouched: Any
) -> None:
    file = recipe(("steps = 2", "steps = 20\nlr = 1e30"))
    with untouched(tmp_path):
        result = run("train", file, "--registry", tmp_path / "parts")
    assert (
        result.code == 1
        and ("is inf" in result.err or "is nan" in result.err)
        and "Lower the learning rate" in result.err
    )
