"""What is said for people of what is published: by the recipe, by options, by itself; and that it is found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick

import compatkit as ck

SAID = (
    "--tag",
    "team=vision",
    "--title",
    "Ours",
    "--license",
    "MIT",
    "--description",
    "A test.",
    "--source",
    "here",
)
EVERYTHING = {"title": "Ours", "license": "MIT", "description": "A test.", "source": "here"}
TABLE = """[about]
license = "Apache-2.0"
tags = { team = "digits", state = "trial" }
"""


def search_names(run: Any, root: Path, *words: str) -> set[str]:
    result = run("--registry", root, "search", *words, "--json")
    assert result.code == 0
    return {component["name"] for component in result.json["components"]}


def about(root: Path, name: str) -> dict[str, Any]:
    result = ck.Registry.open(root).store.manifest(name).about
    return {
        "title": result.title,
        "license": result.license,
        "description": result.description,
        "source": result.source,
    }


def test_parts_of_a_run_are_found_by_data_set_backbone_and_what_was_said(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    root = tmp_path / "parts"
    path = recipe(("[trainer]", f"{TABLE}\n[trainer]"))
    result = run("--registry", root, "train", path, "--tag", "state=final")
    assert result.code == 0, result.err
    assert search_names(run, root, "--kind", "head", "--tag", "dataset=left") == {"digits/left.head"}
    both = {"digits/left.extractor", "digits/right.extractor"}
    assert search_names(run, root, "--kind", "extractor", "--tag", "backbone=resnet8_cifar") == both
    assert (
        search_names(run, root, "--kind", "extractor", "--tag", "team=digits", "--tag", "state=final") == both
    )
    assert search_names(run, root, "--tag", "state=trial") == set()
    message = about(root, "digits/left.head")
    assert message["license"] == "Apache-2.0" and message["title"].startswith("resnet8_cifar after layer2")


def test_parts_of_a_cut_and_of_a_checkpoint_say_what_they_are_told(run: Any, tmp_path: Path) -> None:
    root, kwargs = tmp_path / "parts", ("--kwargs", '{"num_classes": 7}')
    at = "--registry", root
    assert run(*at, "split", "resnet8_cifar", "--cut", "layer2", *kwargs, "--publish", "cut", *SAID).code == 0
    whole = ck.Registry.open(root).recombine("cut.extractor", "cut.head").state_dict()
    torch.save({name.partition(".")[2]: item for name, item in whole.items()}, tmp_path / "net.pth")
    words = "--model", "resnet8_cifar", "--cut", "layer2", "--name", "taken", "--tag", "backbone=mine"
    result = run(*at, "adopt", tmp_path / "net.pth", *words, *SAID)
    assert result.code == 0, result.err
    for name in ("cut.extractor", "cut.head", "taken.extractor", "taken.head"):
        assert about(root, name) == EVERYTHING
    assert search_names(run, root, "--tag", "backbone=resnet8_cifar", "--tag", "team=vision") == {
        "cut.extractor",
        "cut.head",
    }
    assert search_names(run, root, "--tag", "backbone=mine") == {"taken.extractor", "taken.head"}


def test_a_recombination_says_what_it_is_told(run: Any, parts: Path) -> None:
    words = "digits/left.extractor", "digits/right.head", "--no-measure", "--publish", "digits/mixed"
    assert run("recombine", *words, *SAID).code == 0
    assert about(parts, "digits/mixed") == EVERYTHING


def test_what_was_said_of_a_run_is_remembered_until_it_is_published(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    at, path = ("--registry", tmp_path / "parts"), recipe(("[trainer]", f"{TABLE}\n[trainer]"))
    words = "--dry-run", "--tag", "state=final", "--title", "Ours", "--out", tmp_path / "run"
    assert run(*at, "train", path, *words).code == 0
    assert run("publish", tmp_path / "run", "--tag", "when=later", "--license", "MIT").code == 0
    about = ck.Registry.open(tmp_path / "parts").store.manifest("digits/left.head").about
    assert (about.title, about.license) == ("Ours", "MIT")
    assert about.tags == {
        "backbone": "resnet8_cifar",
        "dataset": "left",
        "state": "final",
        "team": "digits",
        "when": "later",
    }


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    "command",
    [
        ("split", "resnet8_cifar", "--cut", "layer2"),
        ("recombine", "digits/left.extractor", "digits/right.head"),
        ("bridge", "digits/left.extractor", "digits/right.head", "--data", "left"),
        (
            "adapt",
            "digits/left.extractor",
            "digits/left.head",
            "--aux",
            "digits/shared.dcc",
            "--data",
            "right",
        ),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("message", [("--tag", "a=b"), ("--title", "Ours")], ids=lambda words: words[0])
def test_what_is_said_of_nothing_is_refused(
    run: Any, command: tuple[str, ...], message: tuple[str, ...]
) -> None:
    result = run(*command, *message, "--json")
    assert result.code == 2 and result.json["error"]["code"] == "usage"
    assert message[0] in result.json["error"]["message"] and "--publish" in result.json["error"]["message"]


@pytest.mark.parametrize(
    ("table", "names"),
    [("tags = { year = 2026 }", "'year'"), ('licence = "MIT"', "Did you mean 'license'")],
)
def test_a_table_that_cannot_be_used_is_refused_before_the_run(
    run: Any, recipe: Any, tmp_path: Path, table: str, names: str
) -> None:
    path = recipe(("[trainer]", f"[about]\n{table}\n\n[trainer]"))
    error = run("--registry", tmp_path / "parts", "train", path, "--json").json["error"]
    assert error["code"] == "usage" and names in error["message"] and not (tmp_path / "parts").exists()
    wrong = run("--registry", tmp_path / "parts", "train", recipe(), "--tag", "team", "--json").json["error"]
    assert wrong["code"] == "usage" and "KEY=VALUE" in wrong["message"]


def test_tags_are_public_in_python(tmp_path: Path) -> None:
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=(16, 16))
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(quick(steps=1).fit([task]), prefix="mine", about=ck.About(tags={"dataset": "other"}))
    assert registry.store.manifest("mine/left.head").about.tags == {
        "backbone": "resnet8_cifar",
        "dataset": "other",
    }
