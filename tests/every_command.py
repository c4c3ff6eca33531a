"""Every command and group of the command line by its words."""

from __future__ import annotations

from collections.abc import Iterator

import click

from compatkit.cli import program


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*above, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)


EVERY = sorted(commands(program))


def found(words: tuple[str, ...]) -> click.Command:
    """Return the command of these words."""
    command: click.Command = program
    for word in words:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), word)
        assert below is not None
        command = below
    return command
