"""The class in which a command receives its arguments and options declares exactly those that the command has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import pytest

from compatkit.cli import COMMANDS, program
from compatkit.cli.options import Asked


def runnable(command: click.Command) -> Iterator[click.Command]:
    """Yield a command, or those of a group."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from runnable(one)
    else:
        yield command


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_declares_its_arguments_and_options(name: str) -> None:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    for command in runnable(found):
        assert command.callback is not None
        function = inspect.unwrap(command.callback)
        asked = function.__globals__[inspect.get_annotations(function)["asked"]]
        assert issubclass(asked, Asked)
        declared = {field for one in asked.__mro__ for field in inspect.get_annotations(one)}
        assert declared == {one.name for one in command.params if one.expose_value}, command.name
