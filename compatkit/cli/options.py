"""Declaration of commands and their options.

Each option is declared once, as a field of its command's class of options: the field's name is the option's name, its
annotation the option's type. ``--registry``, ``--json``, ``--quiet`` and ``--plugin`` may also precede the command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from compatkit.cli.command_line import (
    command_line,
    completions,
    json_option,
    plugin_option,
    quiet_option,
    registry_option,
)
from compatkit.cli.examples import Command, Group, divided
from compatkit.cli.output import clean
from compatkit.cli.writable import check_outputs
from compatkit.contracts.batchnorm import DEFAULT, POLICIES, check_policy
from compatkit.foundation.addresses import local


class PathType(click.Path):
    """Click type of a local path; URLs, and anything that looks like one, are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        return super().convert(local(value, f"{param.opts[-1] if param else 'it'}"), param, ctx)


TYPES: Mapping[str, Callable[..., click.ParamType[Any]]] = {
    "str": lambda: click.STRING,
    "Path": lambda **settings: PathType(path_type=Path, **settings),
    "int": lambda **limits: click.IntRange(**limits) if limits else click.INT,
    "float": lambda **limits: click.FloatRange(**limits) if limits else click.FLOAT,
}
"""Click type by annotation."""
METAVARS = {"str": "NAME", "Path": "FILE"}
"""Default placeholder of an option's value in ``--help``, by annotation."""
TYPE_SETTINGS = ("min", "max", "min_open", "exists", "dir_okay")
"""Keyword arguments of the click type (``IntRange``, ``Path``), not of the click parameter."""


class Declaration(NamedTuple):
    """An argument or option, as the value of a field of ``Options``.

    Attributes:
        kind: ``click.Argument`` or ``click.Option``.
        flags: Spellings on the command line; empty: derived from the name of the field.
        settings: Keyword arguments of the click parameter and of its type.
        convert: Converts the value that click read, or None.
        is_output: Whether the command writes this file.
    """

    kind: type[click.Argument] | type[click.Option]
    flags: tuple[str, ...]
    settings: Mapping[str, Any]
    convert: Callable[[Any], Any] | None = None
    is_output: bool = False

    def parameter(self, name: str, annotation: str) -> click.Parameter:
        """Return click's parameter.

        Args:
            name: Name of the field.
            annotation: Annotation of the field as text: ``bool`` makes a flag, ``tuple[str, ...]`` a repeatable
                option. It is required unless it allows ``None`` or has a default. Ignored for converted options.
        """
        settings = {key: value for key, value in self.settings.items() if key not in TYPE_SETTINGS}
        if annotation == "bool":
            settings["is_flag"] = True
        elif self.convert is not None:
            convert = self.convert
            settings["callback"] = lambda context, _, value: None if value is None else convert(value)
        else:
            value = annotation.removesuffix(" | None")
            if value.endswith(", ...]"):
                value = value.removeprefix("tuple[").removesuffix(", ...]")
                settings |= {"nargs": -1} if self.kind is click.Argument else {"multiple": True}
            elif "default" not in settings:
                settings["required"] = value == annotation
            if "type" not in settings:
                limits = {key: limit for key, limit in self.settings.items() if key in TYPE_SETTINGS}
                settings["type"] = TYPES[value](**limits)
                if value in METAVARS and self.kind is click.Option:
                    settings.setdefault("metavar", METAVARS[value])
        settings.setdefault("shell_complete", completions)
        flags = self.flags or ((name,) if self.kind is click.Argument else (f"--{name.replace('_', '-')}",))
        return self.kind([*flags, *([] if name in flags else [name])], **settings)


def argument(metavar: str | None = None, **settings: Any) -> Any:
    """Declare an argument.

    Args:
        metavar: Name in ``--help``; None for the field's.
        settings: Settings of ``click.Argument``.
    """
    return Declaration(click.Argument, (), {"metavar": metavar, **settings})


def option(
    help: str,
    *flags: str,
    choices: tuple[str, ...] = (),
    convert: Callable[[Any], Any] | None = None,
    is_output: bool = False,
    **settings: Any,
) -> Any:
    """Declare an option.

    Args:
        help: Text for ``--help``.
        flags: Spellings on the command line, if they differ from the field's name.
        choices: Accepted values; empty for all of the type.
        convert: Converts the value that click read.
        is_output: Whether the command writes this file. Its path is checked before and printed after the command.
        settings: Settings of ``click.Option``; ``min``, ``max`` and ``min_open`` limit a number.
    """
    if choices:
        settings["type"] = click.Choice(choices)
    shown = {"show_default": settings.get("default", "") != ""}
    return Declaration(click.Option, flags, {"help": help, **shown, **settings}, convert, is_output)


class Options:
    """Values of a command's arguments and options; the fields of each subclass declare them.

    Attributes:
        json: Whether to print JSON.
    """

    json: bool

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def declared(cls) -> dict[str, tuple[Declaration, str]]:
        """Return declaration and annotation by field: those of the class itself, then those of its bases."""
        return {
            name: (declaration, owner.__annotations__[name])
            for owner in cls.__mro__
            for name, declaration in vars(owner).items()
            if isinstance(declaration, Declaration)
        }

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        """Return click's parameters in the order of ``declared``."""
        return [declaration.parameter(name, text) for name, (declaration, text) in cls.declared().items()]

    def only(self, *names: str) -> dict[str, Any]:
        """Return the values of these fields, by name."""
        return {name: getattr(self, name) for name in names}

    def values_of(self, options: type[Options]) -> dict[str, Any]:
        """Return the values of the fields that ``options`` itself declares, by name."""
        return self.only(*(name for name, value in vars(options).items() if isinstance(value, Declaration)))

    def outputs(self) -> dict[str, Path]:
        """Return the requested output files by option."""
        return {
            f"--{name}": path
            for name, (declaration, _) in self.declared().items()
            if declaration.is_output and (path := getattr(self, name)) is not None
        }


OptionsT = TypeVar("OptionsT", bound=Options)


def command(
    name: str, options: type[OptionsT], *, registry: bool = True, group: click.Group | None = None
) -> Callable[[Callable[[OptionsT], int | None]], click.Command]:
    """Return a decorator that turns a function into a command, with its docstring as help text and examples.

    The function returns the exit code, or None for 0.

    Args:
        name: Name of the command.
        options: Class of its arguments and options.
        registry: Whether it has ``--registry``.
        group: Group to add it to, or None.
    """

    def make(function: Callable[[OptionsT], int | None]) -> click.Command:
        def run(**arguments: Any) -> None:
            line = command_line()
            line.options = values = options(json=line.json, **arguments)
            check_outputs(values.outputs())
            with ExitStack() as stack:
                if line.quiet:
                    from compatkit.foundation.bars import silent

                    stack.enter_context(silent())
                if line.plugins:
                    from compatkit.plugins.files import offered

                    stack.enter_context(offered(line.plugins))
                code = function(values) or 0
            for path in () if values.json else values.outputs().values():
                click.echo(f"wrote {clean(str(path))}")
            click.get_current_context().exit(code)

        shared = [*([registry_option] if registry else []), json_option, quiet_option, plugin_option]
        text, examples = divided(function.__doc__)
        parameters = [*options.parameters(), *shared]
        command = Command(name, callback=run, help=text, params=parameters, examples=examples)
        if group is not None:
            group.add_command(command)
        return command

    return make


def group(name: str, help: str, *, default: str = "") -> click.Group:
    """Return a group of commands; ``--json`` may precede the command.

    Args:
        name: Word on the command line.
        help: Text for ``--help``, with examples as in the docstring of a command.
        default: Command that runs where none is named; empty if one must be.
    """
    text, examples = divided(help)
    result = Group(name, help=text, params=[json_option], examples=examples)
    result.default = default
    return result


def tags(values: tuple[str, ...]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` options."""
    texts: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"expected KEY=VALUE, got {value!r:.100}.")
        if texts.setdefault(key, text) != text:
            raise click.BadParameter(f"{key!r} is given twice, as {texts[key]!r} and {text!r}.")
    return texts


def logger_tables(values: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Parse ``NAME``, ``NAME=FOLDER`` and ``NAME:KEY=VALUE`` options; those of one name are joined."""
    tables: dict[str, dict[str, Any]] = {}
    for value in values:
        name, sign, rest = re.fullmatch(r"([^=:]*)([=:]?)(.*)", value, re.DOTALL).groups()  # type: ignore[union-attr]
        key, equals, text = rest.partition("=") if sign == ":" else ("folder", sign, rest)
        if not name or (sign and not (key and equals)):
            raise click.BadParameter(
                f"expected NAME, NAME=FOLDER or NAME:KEY=VALUE, got {name + sign!r:.100}."
            )
        table = tables.setdefault(name, {})
        if sign and key in table:
            raise click.BadParameter(f"{key!r} of {name!r} is given twice.")
        if sign:
            table[key] = text if key == "folder" else _plain(text)
    return tables


def _plain(text: str) -> Any:
    """Return a number or truth value that a text spells, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


logger_option: Any = option(
    "Log figures: NAME (csv, tensorboard, mlflow, wandb, or a plugin's) to the run's folder, NAME=FOLDER, and "
    "NAME:KEY=VALUE for its settings; may be repeated.",
    "--logger",
    multiple=True,
    metavar="NAME[=FOLDER]",
    convert=logger_tables,
)
batch_size_option = option("Images per batch.", min=2, default=256)
device_option = option("Device: cpu, cuda, ...", default="cpu")
BN_POLICY_SETTINGS: dict[str, Any] = {"metavar": f"[{'|'.join(POLICIES)}]", "convert": check_policy}
bn_policy_option = option(
    "Batch-norm statistics. batch: of each batch (as in the paper); reestimate: of all test images, without labels; "
    "mix:N: that estimate mixed with the stored ones, which count as N images; running: the stored ones.",
    "--bn-policy",
    default=DEFAULT,
    **BN_POLICY_SETTINGS,
)
