"""Every command shows examples, which parse, name the command and fit the terminal."""

from __future__ import annotations

import shlex

import click
import pytest
from every_command import EVERY, found
from test_page_programs import parsed

from compatkit.cli import COMMANDS, SECTIONS, program
from compatkit.cli.examples import Command, divided, folded


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_each_command_has_examples_that_parse_and_name_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    command = found(words)
    assert isinstance(command, Command) and 1 <= len(command.examples) <= 3
    for line, text in command.examples.items():
        typed = shlex.split(line)
        assert typed[0] == "compatkit" and " ".join(words) in " ".join(typed)
        assert text and "\n" not in line
        parsed(line)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_examples_end_the_help_and_can_be_copied_from_a_narrow_terminal(words: tuple[str, ...]) -> None:
    command = found(words)
    assert isinstance(command, Command)
    context = click.Context(command, info_name=words[-1], terminal_width=80)
    section = command.get_help(context).partition("\nExamples:\n")[2]
    assert all(len(line) <= 80 for line in section.splitlines() if line.endswith("\\") or "#" in line)
    lines = [line.strip() for line in section.replace("\\\n", " ").splitlines() if "#" not in line]
    assert [shlex.split(line) for line in lines] == [shlex.split(line) for line in command.examples]


def test_a_docstring_without_examples_makes_no_command() -> None:
    for text in (None, "List.", "List.\n\nExamples:\n", "List.\n\nExamples:\n    compatkit ls\n"):
        with pytest.raises(TypeError):
            divided(text)


def test_a_docstring_is_divided() -> None:
    text = """List.

        More.

        Examples:
            # all of
            # them
            compatkit ls
            # some
            compatkit ls
                'a  b'
    """
    examples = {"compatkit ls": "all of them", "compatkit ls 'a  b'": "some"}
    assert divided(text) == ("List.\n\nMore.", examples)


def test_a_line_is_divided_between_words_only() -> None:
    line = "compatkit withdraw a@1 --reason 'some words in one' --json"
    assert folded(line, 100) == f"  {line}"
    assert folded(line, 40) == ("  compatkit withdraw a@1 --reason \\\n      'some words in one' --json")


def test_the_list_of_commands_is_divided_by_task_and_imports_none() -> None:
    assert len(COMMANDS) == sum(map(len, SECTIONS.values()))
    context = click.Context(program, info_name="compatkit", terminal_width=80)
    shown = program.get_help(context)
    for title, names in SECTIONS.items():
        section = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines() if line[2:3] != " "] == list(names)
