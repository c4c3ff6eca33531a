"""The command log: what happened to names, for people and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damages import EXTRACTOR, HEAD, REASON, Parts, build, overwrite


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A registry with two names, three moves of an alias and a withdrawal; only to be copied."""
    return build(tmp_path_factory.mktemp("whole") / "parts")


@pytest.fixture
def parts(whole: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path / "parts"))
    return whole.copy(tmp_path / "parts")


@pytest.mark.usefixtures("parts")
def test_a_history_in_lines(run: Any) -> None:
    result = run("log", HEAD)
    lines = result.out.splitlines()
    assert result.code == 0 and lines[0] == HEAD
    assert {tuple(line.split()[2:4]) for line in lines if line.startswith("  20")} == {
        ("alias", "1.0.0"),
        ("alias", "2.0.0"),
        ("published", "1.0.0"),
        ("published", "2.0.0"),
    }
    assert "major from 1.0.0: new weights" in result.out and ":prod 2.0.0 -> 1.0.0" in result.out


@pytest.mark.usefixtures("parts")
def test_a_pattern_shows_several_names(run: Any) -> None:
    result = run("log", "parts/*")
    assert result.code == 0 and EXTRACTOR in result.out and HEAD in result.out and REASON in result.out
    document = run("log", "parts/*", "--json").json
    assert [match["name"] for match in document] == [EXTRACTOR, HEAD]
    (withdrawn,) = (entry for entry in document[0]["entries"] if entry["what"] == "withdrawn")
    assert (withdrawn["version"], withdrawn["detail"]) == ("1.0.0", REASON)


def test_damaged_entries_are_shown_with_exit_code_3(run: Any, parts: Parts) -> None:
    overwrite(parts.root / parts.path("tombstone"), b"x")
    result = run("log", EXTRACTOR)
    assert result.code == 3 and "damaged" in result.out and "published" in result.out


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", ["nobody", "nobody/*"])
def test_unknown_names(run: Any, name: str) -> None:
    assert run("log", name).code == 2
