"""What users and registries on disk rely on stays as it was on the day that the golden files were made.

What is new beside it is fine; what is gone or says something else fails. A change that is meant is written into
``MEANT`` with its reason, or, where most of a file changes, the file is made anew (see ``observe.py``).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden.observe import HERE, collected, command_output, differences, plan, public, registry, unpack

import compatkit as ck
from compatkit.contracts.manifest import from_bytes, to_bytes

MEANT: dict[str, str] = {}
"""Places, as a failure prints them, by the reason for the change."""


def unmeant(old: Any, new: Any) -> list[str]:
    return [
        difference
        for difference in differences(old, new)
        if re.split(" was | is gone", difference)[0] not in MEANT
    ]


def golden(name: str) -> Any:
    return json.loads((HERE / name).read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unpack(tmp_path)
    return tmp_path


def test_no_public_name_parameter_or_default_changes() -> None:
    assert unmeant(golden("public.json"), json.loads(json.dumps(public()))) == []


def test_a_plan_says_what_it_said() -> None:
    assert unmeant(golden("plan.json"), json.loads(json.dumps(plan()))) == []


def test_every_command_says_the_same_of_a_registry_of_that_day(folder: Path) -> None:
    assert unmeant(golden("registry.json"), registry(folder)) == []


def test_the_manifests_of_that_day_are_written_byte_for_byte(folder: Path) -> None:
    registry = ck.Registry.open(folder / "parts")
    result = [
        registry.store.resolve(f"{name}@{version}")
        for name in registry.store.names()
        for version in registry.store.versions(name)
    ]
    assert len(result) >= 14
    for reference in result:
        data = registry.store.read_blob(str(reference.digest))
        assert to_bytes(from_bytes(data)) == data, reference


def test_parts_of_that_day_load_and_pass_their_probe(folder: Path) -> None:
    registry = ck.Registry.open(folder / "parts")
    for name in registry.store.names():
        assert registry.load(name, verify="always").training is False


def test_evidence_of_that_day_lies_under_the_keys_that_are_asked_for_today(folder: Path) -> None:
    """Measured anew in a copy without any, it lands under the same keys."""
    root = folder / "parts"

    def keys() -> set[str]:
        paths = (root / "evidence").rglob("*")
        return {str(path.parent.relative_to(root)) for path in paths if path.is_file()}

    before = keys()
    assert len(before) == 4
    shutil.rmtree(root / "evidence")
    (root / "evidence").mkdir()
    assert command_output(root, "matrix digits/*.extractor@1.0.0 digits/*.head@1.0.0")["exit"] == 0
    assert keys() == before


def test_collecting_deletes_what_it_deleted_then(folder: Path) -> None:
    assert collected(folder) == golden("collected.json")
    assert command_output(folder / "parts", "verify")["exit"] == 0


def test_what_is_gone_or_changed_is_seen_and_what_is_new_is_not() -> None:
    old = {"a": {"x": 1}, "b": [1.0, 2.0]}
    assert list(differences(old, {"a": {"x": 1, "y": 2}, "b": [1.0, 2.0], "c": 0})) == []
    assert list(differences(old, {"a": {"x": 2}, "b": [1.0, 2.0]})) == ["/a/x was 1, is 2"]
    assert list(differences(old, {"a": {"x": 1}})) == ["/b is gone"]
    assert list(differences(old, {"a": {"x": 1}, "b": [1.0]})) == ["/b was [1.0, 2.0], is [1.0]"]
