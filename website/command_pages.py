"""The commands of the command line with their options and examples, from their declarations."""

from __future__ import annotations

from collections.abc import Iterator

import click
from markdown_text import code, escaped, table

from compatkit.cli import COMMANDS, SECTIONS, program
from compatkit.cli.command_line import json_option, plugin_option, quiet_option, registry_option
from compatkit.cli.examples import folded

SHARED = (registry_option, json_option, quiet_option, plugin_option)
WIDTH = 100


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command and group under its words, such as ``keys new``, in the order of ``--help``."""
    with click.Context(program, info_name="compatkit") as context:
        for name in COMMANDS:
            yield from _below(name, program.get_command(context, name), context)


def _below(
    words: str, command: click.Command | None, parent: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    assert command is not None, words
    with click.Context(command, parent=parent, info_name=words.split()[-1]) as context:
        yield words, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                yield from _below(f"{words} {name}", command.get_command(context, name), context)


def page() -> str:
    """Return the commands as Markdown, by task."""
    sections = {name: title for title, names in SECTIONS.items() for name in names}
    blocks, title = [], None
    for words, command, context in commands():
        if sections[words.split()[0]] != title:
            title = sections[words.split()[0]]
            blocks.append(f"## {title}")
        blocks.extend(described(words, command, context))
    return "\n\n".join(filter(None, blocks))


def described(words: str, command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield heading, usage, help text, options and examples of a command."""
    yield f"{'#' * (2 + len(words.split()))} {words}"
    yield from (escaped(part).replace("\n", " ") for part in (command.help or "").split("\n\n"))
    if isinstance(command, click.Group):
        return
    usage = context.get_usage().removeprefix("Usage: ")
    yield f"```text\n{' '.join(usage.split())}\n```"
    yield options([given for given in command.params if given not in SHARED], context)
    lines = [f"# {does}\n{folded(line, WIDTH)}" for line, does in getattr(command, "examples", {}).items()]
    if lines:
        text = "\n".join(lines).replace("\n  ", "\n")
        yield f"```bash\n{text}\n```"


def shared() -> str:
    """Return the options that every command takes, and those of the program alone."""
    with click.Context(program, info_name="compatkit") as context:
        return options(program.get_params(context), context)


def options(parameters: list[click.Parameter], context: click.Context) -> str:
    """Return a table of options, each with its placeholder, meaning, limits and default."""
    rows = []
    for parameter in parameters:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        extra = parameter.get_help_extra(context)
        spelled = " ".join(map(code, (*parameter.opts, *parameter.secondary_opts)))
        if not (parameter.is_flag or parameter.count):
            spelled += f" {code(parameter.make_metavar(context).replace(' RANGE', ''))}"
        limits = f" ({code(extra['range'])})" if "range" in extra else ""
        default = "required" if parameter.required else code(str(extra.get("default", "")))
        rows.append((spelled, escaped(parameter.help or "") + limits, default))
    return table(("option", "meaning", "default"), rows)
