"""``compatkit schema``: print the JSON Schema of what a command prints with ``--json``."""

from __future__ import annotations

import json

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import emit
from compatkit.errors import UnknownName, suggest


class SchemaOptions(Options):
    """Arguments of ``schema``."""

    words: tuple[str, ...] = argument("[COMMAND]...")


@command("schema", SchemaOptions, registry=False)
def schema_command(options: SchemaOptions) -> int | None:
    """Print the JSON Schema (2020-12) of what COMMAND prints with --json; without COMMAND, list the commands.

    Within a version of a format, fields are added, and never removed or changed in meaning. So a program should ignore
    fields that it does not know.

    Examples:
        # what compatkit ls --json prints
        compatkit schema ls
        # of a command of two words
        compatkit schema remote list
    """
    from compatkit.cli.documents import documents, kinds_of, schema

    if not options.words:
        names = sorted(documents())
        return emit(names) if options.json else click.echo("\n".join(names))
    name = " ".join(options.words)
    if not kinds_of(name):
        hint = suggest(name, documents()) or " `compatkit schema` lists them."
        raise UnknownName(f"No command {name!r} prints a document.{hint}", subject=name)
    if options.json:
        return emit(schema(name))
    click.echo(json.dumps(schema(name), indent=2))
    return None
