"""diff: what changed between two components, level by level, with the weights tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from compatkit.contracts.manifest import About
from compatkit.registry.store import Store

HEAD = "digits/left.head"


@pytest.fixture
def store(parts: Path) -> Store:
    """The registry; ``digits/left.head`` has a 1.0.1, which only says more, and a 2.0.0 with other weights."""
    made = Store.open(parts)
    first = made.manifest(HEAD)
    made.publish(HEAD, attrs.evolve(first, about=attrs.evolve(first.about, title="better")))
    state = made.load_state(first)
    weight = next(name for name, value in state.items() if value.ndim == 4)
    state[weight] = state[weight].clone()
    state[weight][0, 0, 0, 0] += 0.5
    state["extra"] = torch.zeros(3, dtype=torch.int64)
    payload = made.put_state(state, parameters=first.payload.parameters)
    made.publish(HEAD, attrs.evolve(first, payload=payload))
    return made


@pytest.mark.usefixtures("store")
def test_a_person_sees_levels_reasons_tensors_and_the_step(run: Any) -> None:
    result = run("diff", f"{HEAD}@1.0.0", f"{HEAD}@2.0.0")
    assert result.code == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[:4] == [
        f"{HEAD}@1.0.0 -> {HEAD}@2.0.0",
        "",
        "weights",
        "  MAJOR  new weights, without a passed measurement",
    ]
    assert lines[4].split()[0] == "tensors" and " -> tensors:sha256:" in lines[4]
    table = result.out.split("\ntensors\n")[1]
    assert "2 differ:" in table and "extra" in table and "added int64 3" in table
    assert any(line.split()[-2:] == ["1", "0.5"] for line in table.splitlines())
    assert "least step  MAJOR: 2.0.0 after 1.0.0" in result.out
    assert "Equal shapes are not compatibility." in result.out
    assert max(map(len, lines)) <= 110


@pytest.mark.usefixtures("store")
def test_only_the_about_changed(run: Any) -> None:
    result = run("diff", f"{HEAD}@1.0.0", f"{HEAD}@1.0.1")
    assert '  PATCH  for people only\n         title  "' in result.out and '-> "better"' in result.out
    assert "no difference, bit by bit" in result.out and "least step  PATCH: 1.0.1 after 1.0.0" in result.out
    assert "Equal shapes" not in result.out


@pytest.mark.usefixtures("store")
def test_programs_get_everything(run: Any, parts: Path) -> None:
    document = run("diff", f"{HEAD}@1.0.0", f"{HEAD}@^2", "--json").json
    assert (document["bump"], document["equal"], document["equal_shapes"]) == ("major", False, True)
    assert document["old"]["version"] == "1.0.0" and document["new"]["version"] == "2.0.0"
    assert document["new"]["digest"] == Store.open(parts).resolve(HEAD).digest
    assert [change["level"] for change in document["changes"]] == ["weights"] * len(document["changes"])
    assert {change["path"] for change in document["changes"]} >= {
        "tensors",
        "count",
        "file.blob",
        "file.bytes",
    }
    assert [tensor["largest"] for tensor in document["tensors"] if tensor["name"] != "extra"] == [
        pytest.approx(0.5)
    ]
    assert run("diff", HEAD, HEAD, "--json").json["changes"] == []


@pytest.mark.usefixtures("store")
def test_the_exit_code_tells_only_if_asked(run: Any) -> None:
    same, other = (HEAD, f"{HEAD}@2.0.0"), (HEAD, f"{HEAD}@1.0.0")
    assert run("diff", *same).code == run("diff", *other).code == run("diff", *same, "--exit-code").code == 0
    assert run("diff", *other, "--exit-code").code == run("diff", *other, "--exit-code", "--json").code == 1
    assert "no difference" in run("diff", *same).out


@pytest.mark.usefixtures("parts")
def test_components_of_different_names_and_kinds(run: Any) -> None:
    result = run("diff", "digits/left.head", "digits/right.head")
    assert "training" in result.out and "least step  MAJOR, if B were to follow A" in result.out
    result = run("diff", "digits/left.extractor", "digits/right.extractor")
    assert "the 12 that differ most:" in result.out and "--json lists all" in result.out
    result = run("diff", "digits/left.extractor", "digits/left.head")
    assert "another kind of component" in result.out and "parts that take the layout NCHW from" in result.out


def test_a_withdrawn_version_is_compared_by_its_digest(run: Any, store: Store) -> None:
    digest = store.resolve(f"{HEAD}@1.0.1").digest
    store.withdraw(HEAD, "1.0.1", "wrong title")
    result = run("diff", f"{HEAD}@{digest}", HEAD)
    assert result.code == 0 and result.out.startswith(f"{HEAD}@1.0.1 -> {HEAD}@2.0.0")
    assert run("diff", f"{HEAD}@1.0.1", HEAD).code == 2


@pytest.mark.parametrize("place", [0, 1])
def test_damaged_and_missing_weights(run: Any, store: Store, damage: Any, place: int) -> None:
    words = [f"{HEAD}@1.0.0", f"{HEAD}@2.0.0"]
    path = damage(store.manifest(words[place]).payload.file.blob)
    result = run("diff", *words)
    assert result.code == 3 and result.out == "" and str(path) in result.err
    again = run("diff", *words, "--json")  # it is in quarantine now
    assert again.code == 3 and "is missing" in again.json["error"]["message"]
    without = run("diff", *words, "--no-tensors")
    assert without.code == 0 and "\ntensors\n" not in without.out and "MAJOR" in without.out
    assert run("diff", *words, "--no-tensors", "--json").json["tensors"] is None


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("words", [(HEAD, "digits/lft.head"), ("digits/lft.head", HEAD)])
def test_a_reference_that_points_at_nothing(run: Any, words: tuple[str, str]) -> None:
    result = run("diff", *words)
    assert result.code == 2 and result.out == "" and "perhaps digits/left.head" in result.err


def test_a_damaged_manifest(run: Any, store: Store, damage: Any) -> None:
    damage(str(store.resolve(HEAD).digest))
    assert run("diff", f"{HEAD}@1.0.0", HEAD).code == 3


def test_text_from_a_registry_cannot_drive_the_terminal(run: Any, store: Store) -> None:
    manifest = store.manifest(HEAD)
    evil = {"\x1b[2J\u202e": {"\x1b": "\x1b[31m"}}
    store.publish(HEAD, attrs.evolve(manifest, about=About(title="\x1b[2Jgone"), extensions=evil))
    result = run("diff", f"{HEAD}@2.0.0", HEAD, "--no-tensors")
    assert result.code == 0 and "\x1b" not in result.out and "\u202e" not in result.out


def test_nothing_is_written(run: Any, store: Store, untouched: Any) -> None:
    with untouched(store.root):
        assert run("diff", f"{HEAD}@1.0.0", HEAD).code == 0
