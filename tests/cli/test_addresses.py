"""Every door of the command line and of Python refuses an address that would become a local folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compatkit as ck
from compatkit.errors import CompatkitError, UsageError
from compatkit.reports.writing import write as write_report

HEAD, EXTRACTOR = "digits/left.head", "digits/left.extractor"
MISSPELT = ("s3:/bucket/x", "http//:host/x", "abc:/x", "gs:bucket", "C:\\x", "file:/x")
COMMANDS: dict[str, tuple[str, ...]] = {
    "push": ("push", "@", "--create"),
    "pull": ("pull", "@"),
    "clone from": ("clone", "@", "copy"),
    "clone to": ("clone", "far", "@"),
    "import": ("import", "@"),
    "export": ("export", HEAD, "@"),
    "init": ("init", "@"),
    "registry": ("--registry", "@", "ls"),
    "new registry": ("--registry", "@", "split", "resnet8_cifar", "--cut", "layer2", "--publish", "a/b"),
    "verify": ("verify", "--from", "@"),
    "inspect": ("inspect", "@"),
    "adopt": ("adopt", "@", "--model", "resnet18", "--cut", "layer2", "--name", "a/b"),
    "train": ("train", "@"),
    "train out": ("train", "recipe.toml", "--out", "@"),
    "sweep": ("sweep", "@"),
    "sweep out": ("sweep", "recipe.toml", "--out", "@"),
    "study": ("study", "run", "1", "--out", "@"),
    "demo": ("demo", "--out", "@"),
    "data": ("data", "show", "@/x"),
    "data root": ("data", "show", "digits", "--data-root", "@"),
    "data sheet": ("data", "show", "digits", "--sheet", "@"),
    "arrays": ("metric", "cka", "--arrays", "@/a.npy", "@/b.npy"),
    "matrix": ("matrix", "*.extractor", "*.head", "--csv", "@"),
    "similarity": ("similarity", EXTRACTOR, EXTRACTOR, "--layers", "*", "--png", "@"),
    "check": ("check", EXTRACTOR, HEAD, "--markdown", "@"),
    "recombine": ("recombine", EXTRACTOR, HEAD, "--recipe", "@"),
    "keys": ("keys", "new", "me", "--out", "@"),
    "trusted": ("keys", "list", "--trusted", "@"),
}


@pytest.mark.parametrize("door", COMMANDS)
@pytest.mark.parametrize("address", MISSPELT[:3])
def test_no_command_takes_a_misspelt_address_for_a_path(door: str, address: str, run: Any, parts: Path):
    before = {path.name for path in Path.cwd().iterdir()}
    result = run(*(word.replace("@", address) for word in COMMANDS[door]))
    assert result.code == 2, result
    assert address.partition(":")[0] in result.err, result.err
    assert {path.name for path in Path.cwd().iterdir()} == before


@pytest.mark.parametrize("address", ["s3://bucket/x", "HF://datasets/me/x"])
@pytest.mark.parametrize("door", ["export", "init", "clone to", "matrix", "demo", "inspect", "sweep out"])
def test_no_command_takes_a_remote_where_it_needs_a_path(door: str, address: str, run: Any, parts: Path):
    before = {path.name for path in Path.cwd().iterdir()}
    assert run(*(word.replace("@", address) for word in COMMANDS[door])).code == 2
    assert {path.name for path in Path.cwd().iterdir()} == before


def test_a_folder_with_a_colon_is_named_so_that_it_is_plainly_one(run: Any, parts: Path):
    assert run("push", "./s3:parts", "--create").code == 0
    assert Path("s3:parts/compatkit.json").is_file()
    assert HEAD in run("--registry", "./s3:parts", "ls").out
    assert run("init", "./a:b").code == 0
    assert Path("a:b/compatkit.json").is_file()


ARRAY = np.zeros((4, 2))
DOORS: dict[str, Callable[[Any], object]] = {
    "init": lambda place: ck.Registry.init(place),
    "open": lambda place: ck.Registry.open(place),
    "open damaged": lambda place: ck.Registry.open(place, damaged=True),
    "clone": lambda place: ck.Registry.clone("far", place),
    "load": lambda place: ck.data.load(place),
    "load root": lambda place: ck.data.load("mnist", root=place),
    "checkpoint": lambda place: ck.Trainer(checkpoint=place),
    "logger": lambda place: ck.Trainer(loggers={"csv": place}),
    "exported": lambda place: ck.load_exported(place),
    "report": lambda place: write_report(place, "text"),
    "activations": lambda place: ck.activations(None, (ARRAY, ARRAY), layers=["a"], folder=place),
}


@pytest.mark.parametrize(
    "address", [*MISSPELT, Path("s3://bucket/x"), Path("abc://x"), Path("gs://b").joinpath("c")]
)
@pytest.mark.parametrize("door", DOORS)
def test_no_function_takes_a_misspelt_address_for_a_path(
    door: str, address: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompatkitError) as error:
        DOORS[door](address)
    assert isinstance(error.value, UsageError)
    assert not list(tmp_path.iterdir())
