"""Options that many commands share; ``--registry`` and ``--json`` may stand before the command or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

Command = TypeVar("Command", bound=Callable[..., Any])

REGISTRY_HELP = "Registry folder; else COMPATKIT_REGISTRY, else the nearest folder above that holds one."


@attrs.define
class Given:
    """What stands before the command; ``context.obj``.

    Attributes:
        registry: Folder of the registry, or None.
        machine: Whether JSON is asked for.
    """

    registry: str | None = None
    machine: bool = False


def given(context: click.Context) -> Given:
    """Return what the command line says for all commands."""
    found = context.ensure_object(Given)
    return found


def registry_option(function: Command) -> Command:
    """Add ``--registry``; it is kept in the context, and the last one given counts."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None and not value.strip():
            raise click.BadParameter("expected a folder, got an empty text.", context, parameter)
        if value is not None:
            given(context).registry = value

    return click.option("--registry", metavar="ROOT", expose_value=False, callback=keep, help=REGISTRY_HELP)(
        function
    )


def json_option(function: Command) -> Command:
    """Add ``--json`` as the argument ``machine``."""

    def either(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        return value or given(context).machine

    return click.option(
        "--json", "machine", is_flag=True, callback=either, help="Print JSON for programs, and nothing else."
    )(function)


def data_options(function: Command) -> Command:
    """Add ``--data-root`` and ``--download``."""
    function = click.option(
        "--download", is_flag=True, help="Let missing data sets and weights be downloaded."
    )(function)
    return click.option(
        "--data-root",
        metavar="DIR",
        help="Folder of data sets; else COMPATKIT_DATA, else torchvision's root.",
    )(function)
