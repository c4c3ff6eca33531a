"""search, index: what they print for people and programs, and what they refuse; ls beside the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner
from handmade import Hand, child_of, part, tagged

from compatkit.cli.command_line import CommandLine
from compatkit.cli.index import index_command
from compatkit.cli.ls import ls_command
from compatkit.cli.search import search_command
from compatkit.cli.verify import verify_command
from compatkit.contracts.manifest import About
from compatkit.errors import CompatkitError, EnvironmentFailure, NotFound, UsageError
from compatkit.registry.index.lookup import Index
from compatkit.registry.store import Store


def joined(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else ""


@attrs.frozen
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    """A registry with three names, one version withdrawn."""
    made = Hand.init(tmp_path / "parts")
    extractor = made.put(part(about=About("Digits, small", "", {"domain": "digits"})))
    made.publish("digits/mnist.extractor", "1.0.0", extractor)
    for version, model in (("1.0.0", "vgg11"), ("1.1.0", "vgg13"), ("1.2.0", "vgg16")):
        about = tagged(domain="digits", team="red")
        made.publish(
            "digits/mnist.head",
            version,
            made.put(part("head", model, about=about, parents=child_of(extractor))),
        )
    made.withdraw("digits/mnist.head", "1.2.0")
    made.publish("shared.dcc", "1.0.0", made.put(part("auxiliary_head", channels=64)))
    return made


@pytest.fixture
def run(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on this registry, 110 columns wide."""
    monkeypatch.setenv("COLUMNS", "110")
    runner = CliRunner()

    def call(command: click.Command, *words: object) -> Said:
        result = runner.invoke(command, [*map(str, words), "--registry", str(hand.root)], obj=CommandLine())
        if isinstance(result.exception, CompatkitError):
            raise result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    return call


def names(text: Said) -> list[str]:
    return [f"{component['name']}@{component['version']}" for component in text.json["components"]]


def test_search_shows_a_table(run: Run) -> None:
    result = run(search_command)
    lines = result.out.splitlines()
    assert result.code == 0 and result.err == "" and len(lines) == 5
    assert lines[0].split() == "name version kind parameters channels network tags title".split()
    assert lines[1].split() == (
        "digits/mnist.extractor 1.0.0 extractor 16 32 resnet20_cifar @ layer2 domain=digits Digits, small".split()
    )
    assert "auxiliary head" in lines[4] and "team=red" in lines[2]


def test_search_says_how_many_more_there_are(run: Run) -> None:
    result = run(search_command, "digits/*", "--limit", 1)
    assert len(result.out.splitlines()) == 3 and "2 more; --limit 3 shows them all." in result.out
    assert "more" not in run(search_command, "digits/*", "--limit", 3).out
    assert run(search_command, "--limit", 0).out == "4 more; --limit 4 shows them all.\n"
    assert run(search_command, "none*").out == "no matches; `compatkit ls` lists all components.\n"


def test_search_as_json_gives_all_facts_and_no_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.cli.search.SHOWN", 1)
    result = run(search_command, "--kind", "head", "--json")
    assert result.json["total"] == 2 and names(result) == [
        "digits/mnist.head@1.0.0",
        "digits/mnist.head@1.1.0",
    ]
    (first, _) = result.json["components"]
    assert first["tags"] == {"domain": "digits", "team": "red"} and first["channels"] == [32]
    assert (
        first["parents"][0]["relation"] == "trained_with" and first["classes"] == 2 and not first["withdrawn"]
    )
    limited = run(search_command, "--json", "--limit", 2).json
    assert limited["total"] == 4 and len(limited["components"]) == 2
    assert run(search_command, "none*", "--json").json == {"total": 0, "components": []}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tag", "team=red", "--tag", "domain=digits"], 2),
        (["--tag", "team=red", "--withdrawn"], 3),
        (["--tag", "team=red", "--latest"], 1),
        (["--model", "vgg1[13]"], 2),
        (["--channels", "64"], 1),
        (["--class", "CAR"], 4),
        (["--anchor", "6b86"], 4),
        (["--parent", "digits/mnist.extractor"], 2),
        (["--text", "small digits"], 1),
        (["--kind", "auxiliary head"], 1),
        (["*.head", "--kind", "extractor"], 0),
        (["vgg1"], 2),
        (["mnist"], 3),
        (["Digits red VGG"], 2),
        (["digits", "--text", "small"], 1),
        (["team=red", "--latest"], 1),
        (["vgg", "--text", "dcc"], 0),
    ],
    ids=joined,
)
def test_search_filters(run: Run, words: list[str], expected: int) -> None:
    assert run(search_command, *words, "--json").json["total"] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--kind", "hed"], "Did you mean 'head'?"),
        (["a@1.0.0"], "takes no versions or aliases"),
        (["--channels", "0"], "whole number from 1"),
        (["--anchor", "zz"], "first 4 to 64 hexadecimal digits"),
        (["--parent", "digits/mnist"], "perhaps digits/mnist"),
    ],
    ids=joined,
)
def test_search_refuses_what_means_nothing(run: Run, words: list[str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        run(search_command, *words)


@pytest.mark.parametrize(
    "words", [["--tag", "domain"], ["--tag", "=x"], ["--tag", "a=1", "--tag", "a=2"]], ids=joined
)
def test_search_asks_for_tags_as_key_and_value(run: Run, words: list[str]) -> None:
    result = run(search_command, *(word for tag in words for word in ("--tag", tag)))
    assert result.code == 2 and ("KEY=VALUE" in result.err or "given twice" in result.err)


def test_text_from_manifests_cannot_drive_the_terminal(run: Run, hand: Hand) -> None:
    about = About("\x1b[2Jgone", "", {"k": "two\nlines"})
    hand.publish("evil", "1.0.0", hand.put(part(about=about)))
    result = run(search_command, "evil")
    assert "\x1b" not in result.out and "\\x1b[2Jgone" in result.out


def test_index_tells_where_it_is_and_what_it_holds(run: Run, hand: Hand) -> None:
    document = run(index_command, "--json").json
    path = Index.of(hand.root, Store.open(hand.root).id).path
    assert document["path"] == str(path) and path.is_file() and not document["rebuilt"]
    assert (document["names"], document["versions"], document["manifests"], document["damaged"]) == (
        3,
        5,
        5,
        0,
    )
    assert document["bytes"] == path.stat().st_size and document["changed"].endswith("+00:00")
    text = " ".join(run(index_command).out.split())
    assert "index.sqlite" in text.replace(" ", "") and "versions 5" in text and "damaged" not in text


@pytest.mark.case("E3")
def test_index_rebuild_reads_everything_again(run: Run, hand: Hand) -> None:
    path = Path(run(index_command, "--json").json["path"])
    path.write_bytes(b"garbage" * 1000)
    document = run(index_command, "--rebuild", "--json").json
    assert document["rebuilt"] and document["versions"] == 5
    assert path.read_bytes().startswith(b"SQLite format 3")


@pytest.mark.case("E3")
def test_an_index_that_cannot_be_used_says_why(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "file"))
    for command in (index_command, search_command):
        with pytest.raises(EnvironmentFailure, match="COMPATKIT_CACHE"):
            run(command)


def test_ls_lists_the_latest_versions(run: Run, hand: Hand) -> None:
    whole = run(ls_command).out.splitlines()
    assert whole[0].split() == ["name", "version", "kind", "parameters", "network"] and len(whole) == 4
    assert whole[2].split() == "digits/mnist.head 1.1.0 head 16 vgg13 @ layer2".split()
    Store.open(hand.root).set_alias("shared.dcc", "prod", "1.0.0")
    assert run(ls_command).out.splitlines()[3].endswith(":prod=1.0.0")
    assert run(ls_command, "digits/*", "--json").json[1] == {
        "name": "digits/mnist.head",
        "version": "1.1.0",
        "versions": ["1.0.0", "1.1.0"],
        "kind": "head",
        "parameters": 16,
        "model": "vgg13",
        "cut": "layer2",
        "aliases": {},
    }


def test_ls_lists_the_damaged_with_exit_code_3(run: Run, hand: Hand) -> None:
    assert run(ls_command).code == 0
    hand.publish("broken", "1.0.0", b"x" * 72)
    digest = Store.open(hand.root).resolve("shared.dcc").digest
    hand.blob(str(digest)).write_bytes(b"other")
    assert run(ls_command).out.count("damaged") == 1  # a file that was read once is not read again
    run(verify_command)
    result = run(ls_command)
    assert result.code == 3 and result.out.count("damaged") == 2 and "digits/mnist.head" in result.out
    assert (
        "damaged broken:" in result.err
        and "damaged shared.dcc:" in result.err
        and "not match its digest" in result.err
    )
    machine = run(ls_command, "--json")
    assert machine.code == 3 and ["error" in entry for entry in machine.json] == [True, False, False, True]


def test_ls_of_nothing(run: Run, hand: Hand) -> None:
    with pytest.raises(NotFound) as caught:
        run(ls_command, "none*")
    assert caught.value.subject == "none*"
    for name in ("digits", "shared.dcc"):
        hand.remove(name)
    assert run(ls_command).out == f"no components in {hand.root} yet\n"
    assert run(ls_command, "--json").json == []
