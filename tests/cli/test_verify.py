"""The command verify: what it prints for people and programs, what it exits with, and what --repair does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from damages import HEAD, OLD, TOP, Parts, build, overwrite

from compatkit.registry import disk as durable


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A sound registry with one of everything; only to be copied."""
    return build(tmp_path_factory.mktemp("whole") / "parts")


@pytest.fixture
def parts(whole: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """A registry of this test's own, which is the current folder's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setattr("compatkit.cli.verify._load_check", lambda full: None)  # these files hold no networks
    return whole.copy(tmp_path / "parts")


def struck(parts: Parts) -> None:
    """Damage a payload, a tombstone, and leave a stray file."""
    overwrite(parts.root / parts.path("weights"), b"x")
    overwrite(parts.root / parts.path("tombstone"), b"x")
    (parts.root / "refs" / ".DS_Store").write_bytes(b"x")


def test_a_sound_registry(run: Any, parts: Parts) -> None:
    result = run("verify")
    assert result.code == 0 and result.out.endswith("sound\n")
    assert re.search(
        r"4 versions, 4 manifests, 1 result, 10 blobs, [\d,]+ bytes read", result.out.replace("\n", " ")
    )
    result = run("verify", "--quick")
    assert result.code == 0 and "(quick)" in result.out


@pytest.mark.case("A9", "E1")
def test_faults_name_the_component_and_the_plan_changes_nothing(run: Any, parts: Parts) -> None:
    struck(parts)
    result = run("verify")
    assert result.code == 3
    assert f"error  blob-digest  {parts.path('weights')}" in result.out
    assert re.search(rf"affected +{TOP}\n", result.out) and re.search(rf"affected +{OLD}\n", result.out)
    assert "--repair would:" in result.out and "left to you:" in result.out
    assert "2 errors: not sound" in result.out and "next: compatkit verify --repair" in result.out
    assert "info   stray" in result.out
    assert run("verify").out == result.out


def test_warnings_and_remarks_are_no_errors(run: Any, parts: Parts) -> None:
    (parts.root / parts.path("weights")).chmod(0o644)
    (parts.root / ".DS_Store").write_bytes(b"x")
    result = run("verify")
    assert result.code == 0 and "1 warning: sound" in result.out and "blob-writable" in result.out


def test_a_repair_does_what_it_says_and_looks_again(run: Any, parts: Parts, whole: Parts) -> None:
    struck(parts)
    result = run("verify", "--repair", "--from", whole.root)
    assert result.code == 0 and result.out.count("  done ") == 3 and result.out.endswith("sound\n")
    assert run("verify").code == 0
    assert len(list((parts.root / "quarantine").iterdir())) == 2


def test_a_repair_that_cannot_do_all_says_what_is_left(run: Any, parts: Parts) -> None:
    struck(parts)
    result = run("verify", "--repair")
    assert result.code == 3 and result.out.count("  done ") == 2 and "left to you:" in result.out
    assert "blob-missing" in result.out and "1 error: not sound" in result.out
    again = run("verify", "--repair")
    assert again.code == 3 and "  done " not in again.out


def test_json_is_one_value(run: Any, parts: Parts, whole: Parts) -> None:
    struck(parts)
    result = run("verify", "--json", "--from", whole.root)
    assert result.code == 3
    assert result.json["kind"] == "soundness" and result.json["sound"] is False
    assert result.json["counts"] == {"errors": 2, "warnings": 0, "infos": 1}
    assert [fault["code"] for fault in result.json["faults"]] == ["blob-digest", "tombstone-damaged", "stray"]
    assert [action["path"] for action in result.json["repair"]["actions"]] == [
        parts.path(name) for name in ("weights", "weights", "tombstone")
    ]
    done = run("verify", "--json", "--repair", "--from", whole.root)
    assert done.code == 0 and done.json["sound"] is True and done.json["before"]["sound"] is False
    assert [outcome["done"] for outcome in done.json["outcomes"]] == [True] * 3


def test_a_pattern_limits_what_is_looked_at(run: Any, parts: Parts) -> None:
    struck(parts)
    result = run("verify", OLD)
    assert result.code == 3 and "tombstone-damaged" in result.out and "blob-digest" not in result.out
    assert f"next: compatkit verify {OLD} --repair" in result.out
    assert run("verify", f"{HEAD}@2.0.0").code == 0
    assert run("verify", "nobody").code == 2


def test_actions_that_fail_are_told(run: Any, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    struck(parts)

    def refuse(operation: str, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(durable, "step", refuse)
    result = run("verify", "--repair")
    assert result.code == 3 and result.out.count("  failed ") == 2 and "EACCES" in result.out


@pytest.mark.case("E4")
def test_a_damaged_marker_is_examined_and_left_to_people(run: Any, parts: Parts) -> None:
    overwrite(parts.root / "compatkit.json", b"{")
    result = run("verify")
    assert result.code == 3 and "marker-damaged" in result.out
    assert run("verify", "--repair").code == 3 and "compatkit init" in run("verify", "--repair").out
    shutil.rmtree(parts.root / "blobs")
    (parts.root / "compatkit.json").unlink()
    assert run("verify").code == 2 and "is not a registry" in run("verify").err


def test_wrong_copies_are_refused(run: Any, parts: Parts, tmp_path: Path) -> None:
    assert run("verify", "--from", parts.root).code == 2
    assert run("verify", "--from", tmp_path).code == 2


def test_file_names_cannot_drive_the_terminal(run: Any, parts: Parts) -> None:
    (parts.root / "refs" / "\x1b[2Jx").write_bytes(b"")
    result = run("verify")
    assert result.code == 0 and "\x1b[2J" not in result.out and "misnamed" in result.out
