"""The command line that runs, and the options that may precede or follow every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.foundation.addresses import normalized, remote_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]

COMPLETE = "COMPATKIT_COMPLETE"
"""Environment variable by which the script of a shell asks for completions, with the shell's name."""


@attrs.define
class CommandLine:
    """The command line, as the object of click's context.

    Attributes:
        registry: Folder of the registry, or None.
        json: Whether to print JSON.
        quiet: Whether to show no progress.
        plugins: Python files whose plugins count too.
        arguments: All words of the command line.
        options: ``Options`` of the command, once it runs.
        addresses: Address of the remote by folder of its copy, which messages name instead.
        complete: Returns what can stand for a parameter, while a shell asks for it.
    """

    registry: str | None = None
    json: bool = False
    quiet: bool = False
    plugins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    options: Any = None
    addresses: dict[str, str] = attrs.field(factory=dict)
    complete: Completer | None = None

    def translated(self, text: str) -> str:
        """Return a message that names a remote in place of the folder of its copy."""
        for folder, address in self.addresses.items():
            text = text.replace(folder, address)
        return text

    @property
    def words(self) -> tuple[str, ...]:
        """Words that select the same registry and plugin files in a suggested command."""
        root = () if self.registry is None else ("--registry", self.registry)
        return (*root, *(word for file in self.plugins for word in ("--plugin", file)))


def command_line() -> CommandLine:
    """Return the command line that runs."""
    return click.get_current_context().ensure_object(CommandLine)


def completions(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return what completes a parameter, as click's ``shell_complete``."""
    line = context.find_object(CommandLine)
    complete = parameter.type.shell_complete if line is None or line.complete is None else line.complete
    return complete(context, parameter, incomplete)


def _stored(
    word: str, field: str, convert: Callable[..., Any] | None = None, **settings: Any
) -> click.Option:
    """Return an option whose value, converted, is stored in a field of ``CommandLine``; ``settings`` are click's."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and (converted := convert(value) if convert else value):
            setattr(command_line(), field, converted)

    return click.Option(
        [word, field], expose_value=False, callback=store, shell_complete=completions, **settings
    )


def _folder(value: str) -> str:
    if not value.strip():
        raise click.BadParameter("expected a folder, got an empty text.")
    return value if remote_name(value) is not None else normalized(value)


registry_option = _stored(
    "--registry",
    "registry",
    _folder,
    metavar="ROOT",
    help="Folder of the registry, or a remote to read from; default: COMPATKIT_REGISTRY, else the nearest registry "
    "upwards from here.",
)
json_option = _stored("--json", "json", is_flag=True, help="Print one JSON value, for programs.")
quiet_option = _stored("--quiet", "quiet", is_flag=True, help="Show no progress; results and warnings stay.")
plugin_option = _stored(
    "--plugin",
    "plugins",
    lambda values: (*command_line().plugins, *values),
    multiple=True,
    metavar="FILE",
    help="Run this Python file and use what it registers, such as a builder; may be repeated.",
)
