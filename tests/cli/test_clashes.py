"""Two teams use one number for different components: the commands that the error advises give both teams both."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from compatkit.registry.maintenance.check import examine
from compatkit.registry.store import Store

EYE = "team/eye"


def advised(message: str) -> list[list[str]]:
    """Return the words of the commands in a message, without ``compatkit``, with a reason filled in."""
    commands = re.findall(r"`compatkit ([^`]+)`", " ".join(message.split()))
    return [shlex.split(command.replace("TEXT", "'the first team was first'")) for command in commands]


def digests(root: Path, name: str = EYE) -> dict[str, str]:
    """Return the manifest digest of every version of a name that is not withdrawn."""
    store = Store.open(root)
    return {str(version): str(store.resolve(f"{name}@{version}").digest) for version in store.versions(name)}


@pytest.fixture
def teams(parts: Path, tmp_path: Path, run: Any) -> tuple[Path, Path]:
    """Two registries with another extractor as ``team/eye@1.0.0`` each."""
    first, second = tmp_path / "first", tmp_path / "second"
    for root, task in ((first, "left"), (second, "right")):
        shutil.copytree(parts, root)
        assert run("--registry", root, "copy", f"digits/{task}.extractor", "--as", EYE).code == 0
    return first, second


@pytest.mark.parametrize("way", ["push", "pull"])
def test_two_teams_end_with_both(run: Any, teams: tuple[Path, Path], remote: str, way: str) -> None:
    first, second = teams
    theirs, mine = digests(first)["1.0.0"], digests(second)["1.0.0"]
    assert run("--registry", first, "push", "--create", remote, EYE).code == 0
    refused = run("--registry", second, way, remote, EYE, "--json")
    assert refused.code == 2
    (refusal,) = refused.json["refused"]
    assert (refusal["code"], refusal["what"]) == ("version-exists", f"{EYE}@1.0.0")
    assert str(second) in refusal["message"].partition("To keep both")[2]
    commands = advised(refusal["message"])
    assert [words[0] for words in commands] == ["copy", "drop"]
    for words in (*commands, ["pull", remote, EYE], ["push", remote, EYE]):
        done = run("--registry", second, *words)
        assert done.code == 0, done.out + done.err
    assert digests(second) == {"1.0.0": theirs, "2.0.0": mine}
    assert run("--registry", first, "pull", remote, EYE).code == 0
    assert digests(first) == digests(second)
    for root in teams:
        assert examine(Store.open(root)).sound
        assert run("--registry", root, "show", f"{EYE}@2.0.0").code == 0
    again = run("--registry", second, "push", remote, EYE, "--json").json
    assert again["made"] == [] and len(again["existing"]) == 2


@pytest.mark.parametrize("way", ["push", "pull"])
def test_an_alias_does_not_follow_to_another_component_of_the_same_number(
    run: Any, teams: tuple[Path, Path], remote: str, way: str
) -> None:
    first, second = teams
    for root in teams:
        assert run("--registry", root, "copy", "digits/left.extractor", "--as", f"{EYE}@3.0.0").code == 0
    sender, receiver = (first, second) if way == "pull" else (second, first)
    run("--registry", sender, "alias", EYE, "prod", "1.0.0")
    run("--registry", first, "push", "--create", remote, EYE)
    follow = ["--follow-aliases"] if way == "pull" else []
    moved = run("--registry", second, way, remote, EYE, *follow, "--json")
    assert moved.code == 2 and moved.json["aliases"] == []
    assert [line.partition(" ")[0] for line in moved.json["apart"]] == [f"{EYE}:prod"]
    assert Store.open(receiver).aliases(EYE) == {}


def test_an_import_gives_the_same_advice(run: Any, teams: tuple[Path, Path]) -> None:
    first, second = teams
    theirs = digests(first)["1.0.0"]
    refused = run("--registry", second, "import", first, EYE, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "version-exists"
    for words in (*advised(refused.json["error"]["message"]), ["import", first, EYE]):
        assert run("--registry", second, *words).code == 0
    assert digests(second)["1.0.0"] == theirs and len(digests(second)) == 2


def test_the_advised_number_is_free_on_both_sides(run: Any, teams: tuple[Path, Path], remote: str) -> None:
    first, second = teams
    for number in ("2.0.0", "5.0.0"):
        assert run("--registry", first, "copy", EYE, "--as", f"{EYE}@{number}").code == 0
    run("--registry", first, "push", "--create", remote, EYE)
    refused = run("--registry", second, "push", remote, EYE, "--json")
    ((_, source, _, target), _) = advised(refused.json["refused"][0]["message"])
    assert (source, target) == (f"{EYE}@1.0.0", f"{EYE}@6.0.0")


def test_another_name_resolves_it_too(run: Any, teams: tuple[Path, Path], remote: str) -> None:
    first, second = teams
    run("--registry", first, "push", "--create", remote, EYE)
    mine = digests(second)["1.0.0"]
    assert run("--registry", second, "copy", f"{EYE}@1.0.0", "--as", "second/eye").code == 0
    assert run("--registry", second, "drop", f"{EYE}@1.0.0", "--reason", "taken").code == 0
    assert run("--registry", second, "pull", remote, EYE).code == 0
    assert run("--registry", second, "push", remote, "*/eye").code == 0
    assert run("--registry", first, "pull", remote, "*/eye").code == 0
    assert digests(first, "second/eye") == {"1.0.0": mine} and digests(first) == digests(second)


def test_after_too_small_a_step_there_is_still_a_way(run: Any, teams: tuple[Path, Path], memory: str) -> None:
    """The next number of the same weights is no true step from the other team's."""
    first, second = teams
    run("--registry", first, "push", "--create", memory, EYE)
    mine = digests(second)["1.0.0"]
    run("--registry", second, "copy", f"{EYE}@1.0.0", "--as", EYE)
    run("--registry", second, "drop", f"{EYE}@1.0.0", "--reason", "taken")
    refused = run("--registry", second, "pull", memory, EYE, "--json")
    assert [refusal["code"] for refusal in refused.json["refused"]] == ["version-untrue"]
    run("--registry", second, "copy", f"{EYE}@1.0.1", "--as", EYE, "--major")
    run("--registry", second, "drop", f"{EYE}@1.0.1", "--reason", "too small a step")
    assert run("--registry", second, "pull", memory, EYE).code == 0
    assert digests(second) == {**digests(first), "2.0.0": mine}


def test_a_withdrawn_number_of_mine_is_not_freed_and_the_message_says_so(
    run: Any, teams: tuple[Path, Path], memory: str
) -> None:
    first, second = teams
    run("--registry", first, "push", "--create", memory, EYE)
    run("--registry", second, "withdraw", f"{EYE}@1.0.0", "--reason", "wrong")
    refused = run("--registry", second, "pull", memory, EYE, "--json")
    (refusal,) = refused.json["refused"]
    assert refusal["code"] == "version-exists" and "withdrawn" in refusal["message"]
    assert advised(refusal["message"]) == []


def test_a_number_that_is_published_again_is_freed_by_the_advice(run: Any, teams: tuple[Path, Path]) -> None:
    first, _ = teams
    words = ("--registry", first, "copy", "digits/right.extractor", "--as", f"{EYE}@1.0.0")
    refused = run(*words, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "version-exists"
    for command in advised(refused.json["error"]["message"]):
        assert run("--registry", first, *command).code == 0
    assert run(*words).code == 0
    assert len({*digests(first).values()}) == 2
    assert examine(Store.open(first)).sound
