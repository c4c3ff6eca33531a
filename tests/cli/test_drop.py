"""drop: a number is freed, and the command says what the component is called now and what brings the other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import compatkit as ck

HEAD = "digits/left.head"


def test_a_number_is_freed_and_the_history_says_why(run: Any, parts: Path) -> None:
    digest = ck.Registry(parts)[HEAD].digest
    refused = run("drop", f"{HEAD}@1.0.0", "--reason", "taken", "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "usage"
    assert f"compatkit copy {HEAD}@1.0.0 --as {HEAD}@2.0.0" in refused.json["error"]["message"]
    run("copy", f"{HEAD}@1.0.0", "--as", f"{HEAD}@2.0.0")
    dropped = run("drop", f"{HEAD}@1.0.0", "--reason", "taken")
    assert dropped.code == 0
    assert f"{digest} is kept as {HEAD}@2.0.0" in dropped.out and f"pull REMOTE {HEAD}" in dropped.out
    again = run("drop", f"{HEAD}@1.0.0", "--reason", "taken", "--json").json
    assert again.pop("time") and again == {
        "name": HEAD,
        "version": "1.0.0",
        "digest": digest,
        "kept": f"{HEAD}@2.0.0",
        "reason": "taken",
    }
    (entries,) = run("log", HEAD, "--json").json
    (entry,) = (entry for entry in entries["entries"] if entry["what"] == "dropped")
    assert (entry["version"], entry["detail"]) == ("1.0.0", f"taken; kept as {HEAD}@2.0.0")
    assert "dropped" in run("log", HEAD).out
    missing = run("show", f"{HEAD}@1.0.0")
    assert missing.code == 2 and "taken" in missing.err and f"{HEAD}@2.0.0" in missing.err
    assert run("ls", "--json").code == 0 and run("verify").code == 0
    assert [match.version for match in ck.Registry(parts).search(pattern=HEAD)] == ["2.0.0"]


def test_in_python(parts: Path) -> None:
    registry = ck.Registry(parts)
    name = registry.copy(HEAD, "other/left.head")
    assert registry.drop(f"{HEAD}@1.0.0", reason="taken") == name
    assert HEAD not in registry and name in registry
    assert registry.recombine("digits/left.extractor", name) is not None


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((HEAD, "--reason", "x"), "usage"),
        ((f"{HEAD}@7.0.0", "--reason", "x"), "not-found"),
        ((f"{HEAD}@1.0.0", "--reason", " "), "usage"),
        ((f"{HEAD}@1.0.0",), "usage"),
        (("nobody@1.0.0", "--reason", "x"), "not-found"),
    ],
)
def test_what_cannot_be_dropped(run: Any, words: tuple[str, ...], code: str) -> None:
    refused = run("drop", *words, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == code
