"""check: one pair in full, sets as a table; what --require, --data, --markdown and --json do; the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from measured import cell, keep
from small import data_set

from compatkit.registry.store import Store

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"


@pytest.mark.usefixtures("parts")
def test_check_answers_by_exit_code_and_tells_why(run: Any) -> None:
    output = run("check", "digits/left.extractor", "digits/right.head")
    assert output.code == 0
    assert output.out.startswith("promised: wiring direct, promise shared-head, evidence none\n")
    assert "promises   head-shared (protocol)" in output.out
    assert max(map(len, output.out.splitlines())) <= 100 and len(output.out.splitlines()) < 12
    assert output.out.endswith(
        "next: compatkit recombine digits/left.extractor@1.0.0 digits/right.head@1.0.0\n"
    )
    full = run("check", "digits/left.extractor", "digits/right.head", "--verbose").out
    assert "normalization-needed" in full and "normalization-needed" not in output.out
    result = run("check", "digits/left.extractor", "digits/right.head", "--require", "compatible", "--json")
    assert result.code == 1 and result.json["satisfied"] is False and result.json["word"] == "promised"
    promised = run("check", "digits/left.extractor", "digits/right.head", "--require", "shared-head")
    assert promised.code == 0


@pytest.mark.usefixtures("parts")
def test_check_wants_the_extractor_first(run: Any) -> None:
    result = run("check", "digits/left.head", "digits/left.extractor")
    assert result.code == 2 and "Pass the extractor first, then the head" in result.err


@pytest.mark.usefixtures("parts")
def test_patterns_give_a_table_of_every_extractor_with_every_head(run: Any) -> None:
    result = run("check", "digits/*", "digits/*.head")
    assert result.code == 0 and result.err == ""
    assert result.out.count("◇ promised") == 5  # four cells and the legend
    assert "4 pairs: 4 promised" in result.out
    assert "promises   4 pairs, such as head-shared (protocol)" in result.out
    assert len(result.out.splitlines()) < 24 and result.out.endswith(
        "next: compatkit matrix 'digits/*' 'digits/*.head'\n"
    )
    assert (
        "promises  head-shared (protocol): 4 pairs"
        in run("check", "digits/*", "digits/*.head", "--verbose").out
    )
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.usefixtures("parts")
def test_one_pattern_is_enough_for_a_table(run: Any) -> None:
    result = run("check", LEFT, "*left.head", "--json")
    assert result.json["kind"] == "verdicts" and result.json["heads"] == ["digits/left.head@1.0.0"]
    assert "kind" not in run("check", LEFT, "digits/left.head", "--json").json


@pytest.mark.usefixtures("parts")
def test_every_pair_must_be_what_is_required(run: Any) -> None:
    assert run("check", "*", "*.head", "--require", "shared-head").code == 0
    output = run("check", "*", "*.head", "--require", "compatible")
    assert output.code == 1
    text = " ".join(output.out.split())
    assert (
        "--require compatible under bn_policy batch: not for 4 of 4 (exit code 1): digits/left.extractor@1.0.0 with"
        in text
    )
    assert "and 1 more next: compatkit matrix" in text
    result = run("check", "*", "*.head", "--require", "compatible", "--json")
    assert result.code == 1 and result.json["required"] == "compatible"
    assert result.json["unsatisfied"][0] == {"extractor": f"{LEFT}@1.0.0", "head": "digits/left.head@1.0.0"}


def test_a_pair_at_chance_satisfies_nothing_and_a_measured_one_says_its_figures(
    run: Any, parts: Path
) -> None:
    store = Store.open(parts)
    keep(store, store.manifest(LEFT), store.manifest(RIGHT), cell("chance", 10, policy="batch"))
    result = run("check", "*", "*.head")
    assert (
        result.code == 1
        and "4 pairs: 3 promised, 1 incompatible" in result.out
        and "○ incompatible" in result.out
    )
    single = run("check", LEFT, RIGHT)
    assert (
        single.code == 1
        and single.out.startswith("incompatible: wiring direct")
        and "0.100 [0.000, 0.200]" in " ".join(single.out.split())
    )


def test_what_is_required_is_measured_under_the_normalization_that_is_meant(run: Any, parts: Path) -> None:
    """Measured under batch statistics first, then at chance under stored ones: both questions have their answer."""
    store = Store.open(parts)
    for measured in (cell("perfect", 90, policy="batch"), cell("chance", 10, policy="running")):
        keep(store, store.manifest(LEFT), store.manifest(RIGHT), measured)
    assert run("check", LEFT, RIGHT, "--require", "compatible").code == 0
    output = run("check", LEFT, RIGHT, "--require", "compatible", "--bn-policy", "running")
    assert output.code == 1 and "--require compatible under bn_policy running: no (exit code 1)" in output.out
    result = run("check", LEFT, "*right.head", "--require", "perfect", "--bn-policy", "running", "--json")
    assert result.code == 1 and result.json["bn_policy"] == "running" and result.json["unsatisfied"]
    assert run("check", LEFT, RIGHT, "--json").json["bn_policy"] == "batch"


def unproven(parts: Path) -> None:
    """Publish the right head as if it had been trained alone."""
    store = Store.open(parts)
    manifest = store.manifest(RIGHT)
    protocol = attrs.evolve(manifest.contract.protocol, anchors=())
    alone = attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, protocol=protocol))
    store.publish("other/alone.head", alone)


def test_equal_shapes_are_said_to_be_no_compatibility(run: Any, parts: Path) -> None:
    unproven(parts)
    single = run("check", LEFT, "other/alone.head")
    assert single.code == 0 and single.out.startswith("unproven: wiring direct")
    assert "Equal shapes are not compatibility." in single.out
    assert "next: compatkit recombine digits/left.extractor@1.0.0 other/alone.head@1.0.0" in single.out
    table = run("check", "digits/*", "other/*")
    assert "Equal shapes are not compatibility." in table.out and "≟ unproven" in table.out
    assert run("check", LEFT, "other/alone.head", "--require", "shared-init").code == 1
    machine = run("check", "*", "other/*", "--json").json
    assert any("equal shapes are not compatibility" in finding["actual"] for finding in machine["findings"])


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("words", [(LEFT, RIGHT), ("*", "*.head")])
def test_the_verdicts_are_written_as_markdown(run: Any, tmp_path: Path, words: tuple[str, str]) -> None:
    file = tmp_path / "verdicts.md"
    result = run("check", *words, "--markdown", file)
    assert result.code == 0 and result.out.endswith(f"wrote {file}\n")
    assert "| `head-shared` | protocol | promises |" in file.read_text()


@pytest.mark.usefixtures("parts")
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_read(run: Any, tmp_path: Path) -> None:
    result = run("check", LEFT, "nothing", "--markdown", tmp_path / "none" / "x.md")
    assert result.code == 4 and "does not exist" in result.err


def test_classes_are_compared_with_a_data_set(run: Any, parts: Path) -> None:
    data = data_set("some", classes=("0", "1", "cat"))
    arrays = {"x_train": data.train.images, "y_train": data.train.labels}
    arrays |= {"x_test": data.test.images, "y_test": data.test.labels, "classes": np.array(data.classes)}
    np.savez(parts.parent / "some.npz", **arrays)
    assert "labels-partial" not in run("check", LEFT, RIGHT, "--data", "right", "--verbose").out
    result = run("check", LEFT, RIGHT, "--data", "some", "--verbose")
    assert result.code == 0 and "labels-partial (data)" in result.out and "0, 1, cat" in result.out
    table = run("check", "*", "*.head", "--data", "some", "--verbose")
    assert "info  labels-partial (data): 4 pairs" in table.out
    assert run("check", "*", "*.head", "--data", "no-such-data").code == 2


@pytest.mark.usefixtures("parts")
def test_patterns_that_match_no_extractor_or_no_head_are_told(run: Any) -> None:
    result = run("check", "*.head", "*.head")
    assert result.code == 2 and "matches 2 components, none of kind extractor or encoder" in " ".join(
        result.err.split()
    )
    assert run("check", "nothing*", "*").code == 2


def test_a_damaged_manifest_is_an_integrity_error(run: Any, parts: Path, damage: Any) -> None:
    damage(str(Store.open(parts).resolve("digits/left.head").digest))
    result = run("check", "*", "*.head")
    assert result.code == 3 and "does not match its digest" in result.err
