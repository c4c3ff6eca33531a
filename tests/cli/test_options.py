"""A field of a class of options is one parameter of click, whose type and presence the annotation decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compatkit.cli.options import Options, argument, command, option


class Shared(Options):
    """Options of several commands."""

    count: int = option("How many.", default=2, min=1, max=5)


class Own(Shared):
    """Options of one command."""

    source: str = argument()
    targets: tuple[str, ...] = argument("[TARGET]...")
    label: str = option("Needed.", "--as")
    speed: float | None = option("How fast.", min=0, min_open=True)
    exact: bool = option("A flag.")
    word: tuple[str, ...] = option("Repeated.", choices=("a", "b"))
    file: Path | None = option("A path.")
    pair: tuple[int, int] | None = option("Two numbers.", type=(int, int))
    length: int | None = option("Converted.", convert=len)


def run(*words: str) -> Any:
    """Return the values that the command receives, or the message of click's error."""
    received: list[Own] = []

    @command("run", Own, registry=False)
    def run_command(options: Own) -> None:
        """Run.

        Examples:
            # it
            compatkit run a --as b
        """
        received.append(options)

    ended = CliRunner().invoke(run_command, list(words))
    return ended.output if ended.exit_code else received[0]


def test_values_have_the_types_of_their_annotations() -> None:
    words = ("a", "b", "c", "--as", "x", "--speed", ".5", "--exact", "--word", "b", "--word", "a")
    values = vars(
        run(*words, "--file", "f", "--pair", "1", "2", "--length", "four", "--count", "3", "--json")
    )
    assert values == {
        "json": True,
        "source": "a",
        "targets": ("b", "c"),
        "label": "x",
        "speed": 0.5,
        "exact": True,
        "word": ("b", "a"),
        "file": Path("f"),
        "pair": (1, 2),
        "length": 4,
        "count": 3,
    }


def test_what_is_left_out_is_none_empty_or_the_default() -> None:
    options = run("a", "--as", "x")
    assert options.only("targets", "speed", "exact", "word", "file", "pair", "length", "json") == {
        **dict.fromkeys(("speed", "file", "pair", "length")),
        **dict.fromkeys(("targets", "word"), ()),
        **dict.fromkeys(("exact", "json"), False),
    }
    assert options.values_of(Shared) == {"count": 2}


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (("--as", "x"), "SOURCE"),
        (("a",), "--as"),
        (("a", "--as", "x", "--count", "6"), "--count"),
        (("a", "--as", "x", "--speed", "0"), "--speed"),
        (("a", "--as", "x", "--word", "c"), "--word"),
        (("a", "--as", "x", "--file", "s3://bucket/f"), "s3://bucket/f"),
        (("a", "--as", "x", "--pair", "1", "b"), "--pair"),
    ],
)
def test_other_values_are_refused(words: tuple[str, ...], subject: str) -> None:
    runner = CliRunner()

    @command("run", Own, registry=False)
    def run_command(options: Own) -> None:
        """Run.

        Examples:
            # it
            compatkit run a --as b
        """
        raise AssertionError

    ended = runner.invoke(run_command, list(words))
    assert ended.exit_code and subject in (ended.output or str(ended.exception))


def test_own_options_come_before_those_of_groups_and_defaults_are_shown() -> None:
    names = [parameter.name for parameter in Own.parameters()]
    assert names[-1] == "count" and names[0] == "source"
    shown = {
        entry.name for entry in Own.parameters() if isinstance(entry, click.Option) and entry.show_default
    }
    assert shown == {"count"}
