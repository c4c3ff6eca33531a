"""compatkit policy: set, shown, tested, cleared; and what training says under one."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import data_set

import compatkit as ck
from compatkit.registry.store import Store

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"
DIGEST = data_set("left").test.digest
SET = ("policy", "set", EXTRACTOR, "--mode", "backward", "--data", "left/test", "--tolerance", "0.05")


def test_a_policy_is_set_and_says_what_it_binds(run: Any, parts: Path) -> None:
    result = run(*SET)
    assert result.code == 0
    words = " ".join(result.out.split())
    assert (
        f"policy {EXTRACTOR}: backward, recombination_accuracy 1 on left/test within 0.05 of the bound"
        in words
    )
    assert f"measured on left/test, 48 images, {DIGEST}" in words and f"binds {EXTRACTOR}" in words
    assert result.out.splitlines()[-1] == f"next: compatkit policy test {EXTRACTOR}"
    content = Store.open(parts).policies.of(EXTRACTOR)
    assert content is not None and content.policy is not None and content.policy.data is not None
    assert (content.policy.data.name, content.policy.data.digest) == ("left/test", DIGEST)


@pytest.mark.usefixtures("parts")
def test_every_setting_arrives(run: Any) -> None:
    words = (
        "--cap",
        12,
        "--seed",
        4,
        "--batch-size",
        6,
        "--bn-policy",
        "batch",
        "--across-major",
        "--json",
    )
    document = run("policy", "set", "digits/", "--mode", "full_transitive", "--data", "left.npz", *words).json
    assert (
        document["revision"] == 1
        and document["binds"] == sorted(document["binds"])
        and EXTRACTOR in document["binds"]
    )
    assert document["policy"] == {
        "schema": 1,
        "scope": "digits/*",
        "mode": "full_transitive",
        "data": {"name": "left/test", "digest": DIGEST},
        "metric": {"name": "recombination_accuracy", "version": "1"},
        "normalisation": "batch",
        "tolerance": 0.0,
        "cap": 12,
        "seed": 4,
        "batch_size": 6,
        "across_major": True,
    }


def test_the_images_of_a_recipe(run: Any, parts: Path, recipe: Callable[..., Path]) -> None:
    words = ("policy", "set", EXTRACTOR, "--mode", "backward", "--recipe", recipe())
    assert "left/test, right/test; name one of them with --data" in run(*words).err
    assert run(*words, "--data", "left", "--json").json["policy"]["data"]["digest"] == DIGEST


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("set", EXTRACTOR, "--mode", "backward"), "Expected images to measure on"),
        (("set", EXTRACTOR, "--mode", "none", "--data", "left"), "leave --data"),
        (("set", "UP", "--mode", "none"), "component name 'UP'"),
        (("set", EXTRACTOR, "--mode", "sideways"), "sideways"),
        (("set", EXTRACTOR, "--mode", "backward", "--data", "nosuch"), "nosuch"),
        (
            ("set", EXTRACTOR, "--mode", "backward", "--data", "left", "--tolerance", "3"),
            "tolerance should be a fraction",
        ),
        (
            ("set", EXTRACTOR, "--mode", "backward", "--data", "left", "--metric", "top5"),
            "got 'top5'",
        ),
        (("show", EXTRACTOR), "no policy binds"),
        (("show", "--log"), "needs the NAME"),
        (("show", EXTRACTOR, "--log"), "never had a policy"),
        (("clear", EXTRACTOR), "never had a policy: there are no policies"),
        (("test", "nobody"), "nobody"),
        (("test", EXTRACTOR, "--against", HEAD), "no policy defines how"),
    ],
)
def test_what_is_not_usable_is_said(run: Any, words: tuple[str, ...], expected: str) -> None:
    result = run("policy", *words)
    assert result.code == 2 and expected in " ".join(result.err.split())


@pytest.mark.usefixtures("parts")
def test_policies_are_shown_the_most_specific_first(run: Any) -> None:
    assert run("policy", "show").out.startswith("no policies")
    run("policy", "set", "*", "--mode", "full", "--data", "left")
    run("policy", "set", HEAD, "--mode", "none")
    lines = run("policy", "show").out.splitlines()
    assert [line.split()[:2] for line in lines] == [["scope", "mode"], [HEAD, "none"], ["*", "full"]]
    assert [entry["scope"] for entry in run("policy", "show", "--json").json] == [HEAD, "*"]
    output = run("policy", "show", EXTRACTOR).out
    assert output.split()[:4] == ["scope", "*", "mode", "full"] and DIGEST in output
    assert run("policy", "show", HEAD, "--json").json["policy"]["mode"] == "none"
    assert run("policy", "show", "*", "--json").json["revision"] == 1


@pytest.mark.usefixtures("parts")
def test_changes_are_remembered(run: Any) -> None:
    run(*SET)
    run("policy", "set", EXTRACTOR, "--mode", "none")
    assert run("policy", "clear", EXTRACTOR).out == f"{EXTRACTOR} has no policy of its own; it was none\n"
    lines = run("policy", "show", EXTRACTOR, "--log").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["1", "2", "3"]
    assert [line.split(": ")[1].split(",")[0].split(" ")[0] for line in lines] == [
        "backward",
        "none",
        "cleared",
    ]
    assert all(line.endswith(f"(by {getpass.getuser()})") for line in lines)
    log = run("policy", "show", EXTRACTOR, "--log", "--json").json
    assert [entry["policy"] and entry["policy"]["mode"] for entry in log] == ["backward", "none", None]


@pytest.fixture
def second(parts: Path) -> str:
    """The other extractor's weights as a later version of the left one: as good as nothing for the left head."""
    registry = ck.Registry.open(parts)
    other = registry.load("digits/right.extractor").state_dict()
    manifest = registry.store.manifest("digits/right.extractor")
    return registry.publish(manifest, EXTRACTOR, state=other, version="2.0.0")


def test_a_released_version_is_tested_and_the_exit_code_tells(run: Any, second: str) -> None:
    run(*SET, "--across-major", "--bn-policy", "batch", "--tolerance", "0.99")
    result = run("policy", "test", EXTRACTOR)
    assert result.code == 0 and "passes; it may be published as 2.0.0" in " ".join(result.out.split())
    assert f"{HEAD}@1.0.0" in result.out and "own pair" in result.out
    run(*SET, "--across-major", "--bn-policy", "batch", "--tolerance", "0")
    result = run("policy", "test", EXTRACTOR, f"{EXTRACTOR}@1.0.0", "--json")
    first, other = result.json
    assert other["reason"] == "it is the first version" and other["passed"] is True
    assert result.code == (0 if first["passed"] else 1)
    assert (
        first["answers"][0]["head"] == f"{HEAD}@1.0.0" and first["matrix"]["kind"] == "compatibility-matrix"
    )


@pytest.mark.usefixtures("parts")
def test_another_part_is_tested_as_the_next_version(run: Any) -> None:
    run(*SET)
    result = run("policy", "test", "digits/right.extractor", "--as", EXTRACTOR, "--json")
    (outcome,) = result.json
    assert outcome["name"] == EXTRACTOR and outcome["offered"] == "2.0.0" and len(outcome["answers"]) == 1
    assert result.code == (0 if outcome["passed"] else 1)


def test_images_that_are_not_at_hand_are_named(run: Any, second: str, parts: Path, tmp_path: Path) -> None:
    run(*SET, "--across-major")
    (parts.parent / "left.npz").rename(tmp_path / "elsewhere.npz")
    result = run("policy", "test", EXTRACTOR)
    assert result.code == 2 and "[policy-data]" in result.err and DIGEST in result.err
    assert run("policy", "test", EXTRACTOR, "--data", tmp_path / "elsewhere.npz").code in (0, 1)


# Training


def strict(run: Any, mode: str = "backward") -> None:
    """A policy that two steps of training never meet: no loss at all, for another network's features."""
    words = ("--data", "left/test", "--tolerance", "0")
    assert run("policy", "set", EXTRACTOR, "--mode", mode, *words).code == 0


def test_training_tries_without_publishing(run: Any, parts: Path, recipe: Callable[..., Path]) -> None:
    strict(run)
    before = Store.open(parts).versions(EXTRACTOR)
    output = run("train", recipe(), "--seed", 5, "--dry-run")
    assert (
        output.code in (0, 1)
        and f"{EXTRACTOR}: " in output.out
        and "\nnothing was published\nnext: " in output.out
    )
    assert f"the policy {EXTRACTOR}: backward" in " ".join(output.err.split())
    assert Store.open(parts).versions(EXTRACTOR) == before
    result = run("train", recipe(), "--seed", 5, "--dry-run", "--json")
    outcome = result.json["outcomes"]["left.extractor"]
    assert (
        result.code == output.code
        and outcome["passed"] == (result.code == 0)
        and len(outcome["answers"]) == 1
    )


def test_training_that_breaks_a_policy_is_refused_with_the_figures(
    run: Any, parts: Path, recipe: Callable[..., Path]
) -> None:
    """Cut elsewhere, no head of the released extractor fits: nothing needs to be measured."""
    strict(run)
    other = recipe(('cut = "layer2"', 'cut = "layer1"'))
    output = run("train", other)
    assert output.code == 1 and "[policy-broken]" in output.err and "offered only as 2.0.0" in output.err
    assert "To publish it: compatkit publish" in output.err and "wiring needs-adapter" in output.out
    result = run("train", other, "--json")
    assert (
        result.json["error"]["code"] == "policy-broken" and result.json["error"]["report"]["passed"] is False
    )
    assert [str(version) for version in Store.open(parts).versions(EXTRACTOR)] == ["1.0.0"]


def test_training_does_not_begin_where_it_could_not_be_published(
    run: Any, parts: Path, recipe: Callable[..., Path]
) -> None:
    run("policy", "set", EXTRACTOR, "--mode", "backward", "--data", "right/test")
    (parts.parent / "right.npz").unlink()
    other = recipe(('data = "right.npz"', 'data = "left.npz"'))
    result = run("train", other)
    assert result.code == 2 and "[policy-data]" in result.err and "steps of each task" not in result.err
    assert run("train", other, "--version", "2.0.0").code == 0


@pytest.mark.usefixtures("parts")
def test_a_number_for_all_parts_or_the_next_major(run: Any, recipe: Callable[..., Path]) -> None:
    assert "exclude each other" in run("train", recipe(), "--version", "2.0.0", "--major").err
    assert run("train", recipe(), "--version", "two").code == 2
