"""Declaration of commands and their options.

Each option is declared once, as a field of its command's class of options: the field's name is the option's name, its
annotation the option's type. ``--registry``, ``--json``, ``--quiet`` and ``--plugin`` may also precede the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from compatkit.cli.command_line import (
    command_line,
    json_option,
    plugin_option,
    quiet_option,
    registry_option,
)
from compatkit.cli.output import clean
from compatkit.cli.writable import check_outputs
from compatkit.contracts.batchnorm import DEFAULT, POLICIES, check_policy
from compatkit.errors import UsageError
from compatkit.foundation.addresses import local


class BatchNormPolicyType(click.ParamType):
    """Click type of a batch-norm policy."""

    name = "policy"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the policies for ``--help``."""
        return f"[{'|'.join(POLICIES)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the policy in canonical form."""
        try:
            return check_policy(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class PathType(click.Path):
    """Click type of a path of this machine; an address, or what looks like one, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        return super().convert(local(value, f"{param.opts[-1] if param else 'it'}"), param, ctx)


TYPES: Mapping[str, Callable[..., click.ParamType]] = {
    "str": lambda: click.STRING,
    "Path": lambda **settings: PathType(path_type=Path, **settings),
    "int": lambda **limits: click.IntRange(**limits) if limits else click.INT,
    "float": lambda **limits: click.FloatRange(**limits) if limits else click.FLOAT,
}
"""Click type by annotation."""
METAVARS = {"str": "NAME", "Path": "FILE"}
"""What stands for an option's value in ``--help``, if it does not say so itself."""
LIMITS = ("min", "max", "min_open", "exists", "dir_okay")
"""Settings of types."""


@attrs.frozen
class Declaration:
    """An argument or option, as the value of a field of ``Options``.

    Attributes:
        kind: ``click.Argument`` or ``click.Option``.
        words: On the command line; empty for the field's name.
        settings: Of click's parameter, and ``LIMITS``.
        convert: Gives the option's value from what click read; None for click's.
        written: Whether the command writes this file.
    """

    kind: type[click.Argument] | type[click.Option]
    words: tuple[str, ...]
    settings: Mapping[str, Any]
    convert: Callable[[Any], Any] | None = None
    written: bool = False

    def parameter(self, name: str, annotation: str) -> click.Parameter:
        """Return click's parameter.

        Args:
            name: The field's.
            annotation: The field's, as text. ``bool`` makes a flag, ``tuple[str, ...]`` may be repeated, and what has
                neither ``None`` nor a default is required. It says nothing of an option that is converted.
        """
        settings = {key: value for key, value in self.settings.items() if key not in LIMITS}
        if annotation == "bool":
            settings["is_flag"] = True
        elif self.convert is not None:
            settings["callback"] = self._converted
        else:
            value = annotation.removesuffix(" | None")
            if value.endswith(", ...]"):
                value = value.removeprefix("tuple[").removesuffix(", ...]")
                settings |= {"nargs": -1} if self.kind is click.Argument else {"multiple": True}
            elif "default" not in settings:
                settings["required"] = value == annotation
            if "type" not in settings:
                limits = {key: limit for key, limit in self.settings.items() if key in LIMITS}
                settings["type"] = TYPES[value](**limits)
                if value in METAVARS and self.kind is click.Option:
                    settings.setdefault("metavar", METAVARS[value])
        words = self.words or ((name,) if self.kind is click.Argument else (f"--{name.replace('_', '-')}",))
        return self.kind([*words, *([] if name in words else [name])], **settings)

    def _converted(self, context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        return None if value is None or self.convert is None else self.convert(value)


def argument(metavar: str | None = None, **settings: Any) -> Any:
    """Declare an argument.

    Args:
        metavar: Its name in ``--help``; None for the field's.
        settings: Of ``click.Argument``.
    """
    return Declaration(click.Argument, (), {"metavar": metavar, **settings})


def option(
    help: str,
    *words: str,
    choices: tuple[str, ...] = (),
    convert: Callable[[Any], Any] | None = None,
    written: bool = False,
    **settings: Any,
) -> Any:
    """Declare an option.

    Args:
        help: Text for ``--help``.
        words: On the command line, if they are not the field's name.
        choices: The values that it accepts; empty for all of its type.
        convert: Gives the value from what click read.
        written: Whether it names a file that the command writes, which is checked before and printed after.
        settings: Of ``click.Option``; ``min``, ``max`` and ``min_open`` limit a number.
    """
    if choices:
        settings["type"] = click.Choice(choices)
    shown = {"show_default": settings.get("default", "") != ""}
    return Declaration(click.Option, words, {"help": help, **shown, **settings}, convert, written)


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
        """Return some values by name."""
        return {name: getattr(self, name) for name in names}

    def of(self, group: type[Options]) -> dict[str, Any]:
        """Return the values that a group of options declares itself, by name."""
        return self.only(*(name for name, value in vars(group).items() if isinstance(value, Declaration)))

    def outputs(self) -> dict[str, Path]:
        """Return the files to write by option, without those that are not asked for."""
        return {
            f"--{name}": path
            for name, (declaration, _) in self.declared().items()
            if declaration.written and (path := getattr(self, name)) is not None
        }


Kind = TypeVar("Kind", bound=Options)


def command(
    name: str, options: type[Kind], *, registry: bool = True, group: click.Group | None = None
) -> Callable[[Callable[[Kind], int | None]], click.Command]:
    """Make a function a command, whose docstring is the text of ``--help``; it returns the exit code, None for 0.

    Args:
        name: Name of the command.
        options: Class of its arguments and options.
        registry: Whether it has ``--registry``.
        group: Group to add it to, or None.
    """

    def make(function: Callable[[Kind], int | None]) -> click.Command:
        def run(**values: Any) -> None:
            line = command_line()
            line.options = known = options(**values)
            check_outputs(known.outputs())
            with ExitStack() as stack:
                if line.quiet:
                    from compatkit.foundation.bars import silent

                    stack.enter_context(silent())
                if line.plugins:
                    from compatkit.plugins.files import offered

                    stack.enter_context(offered(line.plugins))
                code = function(known) or 0
            for path in () if known.json else known.outputs().values():
                click.echo(f"wrote {clean(str(path))}")
            click.get_current_context().exit(code)

        shared = [*([registry_option] if registry else []), json_option, quiet_option, plugin_option]
        command = click.Command(
            name, callback=run, help=function.__doc__, params=[*options.parameters(), *shared]
        )
        if group is not None:
            group.add_command(command)
        return command

    return make


def group(name: str, help: str) -> click.Group:
    """Return a group of commands; ``--json`` may precede the command.

    Args:
        name: Word on the command line.
        help: Text for ``--help``.
    """

    def run(json: bool) -> None:
        command_line().json |= json

    return click.Group(name, help=help, callback=run, params=[json_option])


def tags(values: tuple[str, ...]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` options."""
    texts: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"expected KEY=VALUE, such as domain=digits, got {value!r:.100}.")
        if texts.setdefault(key, text) != text:
            raise click.BadParameter(
                f"{key!r} is given twice, as {texts[key]!r} and as {text!r}; give it once."
            )
    return texts


batch_size_option = option("Images per batch.", min=2, default=256)
device_option = option("Device: cpu, cuda, ...", default="cpu")
bn_policy_option = option(
    "Batch-norm statistics: of each batch (as in the paper), re-estimated on the test images without labels, the "
    "estimate mixed with stored ones that count as N images, or as stored.",
    "--bn-policy",
    type=BatchNormPolicyType(),
    default=DEFAULT,
)
