"""What a new user types wrong: each error names what to type instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compatkit.cli import COMMANDS, OTHER_WORDS
from compatkit.registry.store import Store


@pytest.mark.parametrize(
    ("words", "code", "subjects"),
    [
        (("list",), "usage", ("`compatkit ls`",)),
        (("help",), "usage", ("`compatkit --help`",)),
        (("version",), "usage", ("`compatkit --version`",)),
        (("trian", "x"), "usage", ("'train'",)),
        (("train",), "usage", ("RECIPE", "compatkit train examples/mnist_usps.toml")),
        (("push",), "usage", ("REMOTE", "compatkit push s3://bucket/parts")),
        (("split", "resnet18"), "usage", ("--cut", "compatkit split resnet18 --cut layer3")),
        (("remote", "add", "team"), "usage", ("ADDRESS", "compatkit remote add team s3://bucket/parts")),
        (("ls", "parts"), "layout", ("compatkit init", "--registry", "such as parts")),
        (("--registry", "none", "ls"), "layout", ("none", "compatkit init")),
        (("--registry", "x.txt", "ls"), "environment", ("x.txt", "folder")),
        (("--registry=", "ls"), "usage", ("--registry",)),
        (("ls", "--jsn"), "usage", ("--json",)),
        (("cuts", "resnet1"), "unknown-name", ("resnet18",)),
        (("plugins", "new"), "usage", ("NAME", "compatkit plugins new lab-methods")),
        (("inspect", "parts"), "format", ("folder", "safetensors")),
        (("inspect", "x.txt"), "format", ("x.txt",)),
        (("completion", "csh"), "usage", ("bash", "zsh", "fish")),
        (("study", "run", "9.9"), "unknown-name", ("4.9",)),
        (("ls", "--plugin", "nofile.py"), "plugin", ("nofile.py", "--plugin")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_wrong_line_says_what_to_type(
    run: Any, tmp_path: Path, words: tuple[str, ...], code: str, subjects: tuple[str, ...]
) -> None:
    Store.init(tmp_path / "parts")
    (tmp_path / "x.txt").write_text("no weights")
    result = run(*words, "--json")
    error = result.json["error"]
    assert result.code != 0 and error["code"] == code
    for subject in subjects:
        assert subject in error["message"], error["message"]


def test_other_words_are_no_commands_and_lead_to_some() -> None:
    assert not OTHER_WORDS.keys() & COMMANDS.keys()
    assert {word for word in OTHER_WORDS.values() if not word.startswith("--")} <= COMMANDS.keys()
