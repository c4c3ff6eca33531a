"""split --labels: class names are looked at before any work, and nothing is published where they are unusable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

KWARGS = '{"in_chans": 1, "num_classes": 3}'


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\nb\nb\n", "labels[2]"),
        (b"a\n\nb\n", "labels[1]"),
        (b"a\n\x1bb\nc\n", "labels[1]"),
        (b"a\nb\n", "each of the 3 outputs of resnet8_cifar, got 2"),
        (b"a\n\xe9\nc\n", "expected UTF-8"),
    ],
)
def test_unusable_names_are_a_usage_error_and_leave_nothing(
    run: Any, tmp_path: Path, content: bytes, text: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(content)
    root = tmp_path / "parts"
    words = "split", "resnet8_cifar", "--cut", "layer2", "--kwargs", KWARGS, "--labels", names
    result = run("--registry", root, *words, "--publish", "a/b")
    assert result.code == 2 and text in result.err, result.err
    assert run("--registry", root, "ls").out.count("a/b") == 0


def test_names_reach_the_head(run: Any, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfzero\r\none\r\ntwo\r\n")
    words = "split", "resnet8_cifar", "--cut", "layer2", "--kwargs", KWARGS, "--labels", names, "--json"
    head = run(*words).json["parts"]["head"]
    assert [label["name"] for label in head["contract"]["data"]["labels"]] == ["zero", "one", "two"]
