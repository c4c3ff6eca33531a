"""Declaration of commands and their options, and the options that many commands share.

Each option is declared once, as a field of its command's class of options: the field's name is the option's name, its
annotation the option's type. ``--registry``, ``--json``, ``--quiet`` and ``--plugin`` may also precede the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from compatkit.contracts.batchnorm import DEFAULT, POLICIES, check_policy
from compatkit.errors import UsageError
from compatkit.foundation.addresses import local, normalized

if TYPE_CHECKING:
    from compatkit.contracts.manifest import About

REGISTRY_HELP = "Registry folder; default: COMPATKIT_REGISTRY, else the nearest folder above that is one."


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
        """Return the path, as text unless ``path_type`` says otherwise."""
        return super().convert(local(value, f"{param.opts[-1] if param else 'it'}"), param, ctx)


TYPES: Mapping[str, Callable[..., click.ParamType]] = {
    "str": lambda: click.STRING,
    "Path": lambda: PathType(path_type=Path),
    "int": lambda **limits: click.IntRange(**limits) if limits else click.INT,
    "float": lambda **limits: click.FloatRange(**limits) if limits else click.FLOAT,
}
"""Click type by annotation."""
LIMITS = ("min", "max", "min_open")
"""Settings of numbers."""


@attrs.frozen
class Declaration:
    """An argument or option, as the value of a field of ``Options``.

    Attributes:
        kind: ``click.Argument`` or ``click.Option``.
        words: On the command line; empty for the field's name.
        settings: Of click's parameter, and ``LIMITS``.
    """

    kind: type[click.Argument] | type[click.Option]
    words: tuple[str, ...]
    settings: Mapping[str, Any]

    def parameter(self, name: str, annotation: str) -> click.Parameter:
        """Return click's parameter.

        Args:
            name: The field's.
            annotation: The field's, as text. ``bool`` makes a flag, ``tuple[str, ...]`` may be repeated, and what has
                neither ``None`` nor a default is required. It says nothing of an option that a callback converts.
        """
        settings = {key: value for key, value in self.settings.items() if key not in LIMITS}
        if annotation == "bool":
            settings["is_flag"] = True
        elif "callback" not in settings:
            value = annotation.removesuffix(" | None")
            if value.endswith(", ...]"):
                value = value.removeprefix("tuple[").removesuffix(", ...]")
                settings |= {"nargs": -1} if self.kind is click.Argument else {"multiple": True}
            elif "default" not in settings:
                settings["required"] = value == annotation
            if "type" not in settings:
                limits = {key: limit for key, limit in self.settings.items() if key in LIMITS}
                settings["type"] = TYPES[value](**limits)
        words = self.words or ((name,) if self.kind is click.Argument else (f"--{name.replace('_', '-')}",))
        return self.kind([*words, *([] if name in words else [name])], **settings)


def argument(metavar: str | None = None, **settings: Any) -> Any:
    """Declare an argument.

    Args:
        metavar: Its name in ``--help``; None for the field's.
        settings: Of ``click.Argument``.
    """
    return Declaration(click.Argument, (), {"metavar": metavar, **settings})


def option(help: str, *words: str, choices: tuple[str, ...] = (), **settings: Any) -> Any:
    """Declare an option.

    Args:
        help: Text for ``--help``.
        words: On the command line, if they are not the field's name.
        choices: The values that it accepts; empty for all of its type.
        settings: Of ``click.Option``; ``min``, ``max`` and ``min_open`` limit a number.
    """
    if choices:
        settings["type"] = click.Choice(choices)
    shown = {"show_default": settings.get("default", "") != ""}
    return Declaration(click.Option, words, {"help": help, **shown, **settings})


class Options:
    """Values of a command's arguments and options; the fields of each subclass declare them.

    Attributes:
        json: Whether to print JSON.
    """

    json: bool

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        """Return click's parameters: those of the class itself, then those of its bases."""
        return [
            declaration.parameter(name, owner.__annotations__[name])
            for owner in cls.__mro__
            for name, declaration in vars(owner).items()
            if isinstance(declaration, Declaration)
        ]

    def only(self, *names: str) -> dict[str, Any]:
        """Return some values by name."""
        return {name: getattr(self, name) for name in names}

    def of(self, group: type[Options]) -> dict[str, Any]:
        """Return the values that a group of options declares itself, by name."""
        return self.only(*(name for name, value in vars(group).items() if isinstance(value, Declaration)))


Kind = TypeVar("Kind", bound=Options)


@attrs.define
class CommandLine:
    """The command line, as ``context.obj``.

    Attributes:
        registry: Folder of the registry, or None.
        json: Whether to print JSON.
        quiet: Whether to show no progress.
        plugins: Python files whose plugins count too.
        arguments: All words of the command line.
        options: Those of the command, once it runs.
    """

    registry: str | None = None
    json: bool = False
    quiet: bool = False
    plugins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    options: Options | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Words that select the same registry and plugin files in a suggested command."""
        root = () if self.registry is None else ("--registry", self.registry)
        return (*root, *(word for file in self.plugins for word in ("--plugin", file)))


def command_line(context: click.Context) -> CommandLine:
    """Return the command line of a context."""
    return context.ensure_object(CommandLine)


def command(
    name: str, options: type[Kind], help: str, *, registry: bool = True, group: click.Group | None = None
) -> Callable[[Callable[[click.Context, Kind], None]], click.Command]:
    """Make a function a command.

    Args:
        name: Name of the command.
        options: Class of its arguments and options.
        help: Text for ``--help``.
        registry: Whether it has ``--registry``.
        group: Group to add it to, or None.
    """

    def make(function: Callable[[click.Context, Kind], None]) -> click.Command:
        def run(**values: Any) -> None:
            context = click.get_current_context()
            line = command_line(context)
            line.options = known = options(**values)
            with (
                _quiet() if line.quiet else nullcontext(),
                _offered(line.plugins) if line.plugins else nullcontext(),
            ):
                function(context, known)

        shared = [*([registry_option] if registry else []), json_option, quiet_option, plugin_option]
        command = click.Command(name, callback=run, help=help, params=[*options.parameters(), *shared])
        if group is not None:
            group.add_command(command)
        return command

    return make


def _quiet() -> AbstractContextManager[None]:
    """Show no progress inside."""
    from compatkit.foundation.bars import silent

    return silent()


def _offered(files: tuple[str, ...]) -> AbstractContextManager[None]:
    """Offer the plugins of files inside."""
    from compatkit.plugins.files import offered

    return offered(files)


def group(name: str, help: str) -> click.Group:
    """Return a group of commands; ``--json`` may precede the command.

    Args:
        name: Word on the command line.
        help: Text for ``--help``.
    """

    def run(json: bool) -> None:
        command_line(click.get_current_context()).json |= json

    return click.Group(name, help=help, callback=run, params=[json_option])


def _stored(
    word: str, field: str, convert: Callable[..., Any] | None = None, **settings: Any
) -> click.Option:
    """Return an option that is stored in ``CommandLine`` and may precede or follow the command.

    Args:
        word: The option, such as ``--registry``.
        field: Field of ``CommandLine``.
        convert: Callback that returns the value to store.
        settings: Arguments of ``click.Option``.
    """

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        value = value if convert is None else convert(context, parameter, value)
        if value:
            setattr(command_line(context), field, value)

    return click.Option([word, field], expose_value=False, callback=store, **settings)


def _folder(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("expected a folder, got an empty text.", context, parameter)
    return None if value is None else normalized(value)


registry_option = _stored("--registry", "registry", _folder, metavar="ROOT", help=REGISTRY_HELP)
json_option = click.Option(
    ["--json"],
    is_flag=True,
    callback=lambda context, _, value: value or command_line(context).json,
    help="Print only JSON, for programs.",
)
quiet_option = _stored("--quiet", "quiet", is_flag=True, help="Show no progress; results and warnings stay.")
plugin_option = _stored(
    "--plugin",
    "plugins",
    lambda context, _, values: (*command_line(context).plugins, *values),
    multiple=True,
    metavar="FILE",
    help="Also use what this Python file registers, such as a builder; it is run. May be repeated.",
)


def tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` options."""
    texts: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            problem = f"expected KEY=VALUE, such as domain=digits, got {value!r:.100}."
            raise click.BadParameter(problem, context, parameter)
        if texts.setdefault(key, text) != text:
            problem = f"{key!r} is given twice, as {texts[key]!r} and as {text!r}; give it once."
            raise click.BadParameter(problem, context, parameter)
    return texts


trusted_option = option(
    "Trust these instead of your own trusted keys (`compatkit keys`): a folder of public keys, a file of one, "
    "or a key; may be repeated.",
    metavar="WHOM",
)


class SignatureOptions(Options):
    """Whose signatures loaded components must carry."""

    require_signature: bool = option("Refuse what is not signed by a trusted key; implied by --trusted.")
    trusted: tuple[str, ...] = trusted_option

    @property
    def signed(self) -> bool:
        """Whether loaded components must be signed."""
        return self.require_signature or bool(self.trusted)


class SigningOptions(Options):
    """With which key publications are signed."""

    sign_with: str | None = option(
        "Sign what is published: file of a private key, or the name of one made by `compatkit keys new`.",
        metavar="KEY",
    )


class AboutOptions(Options):
    """Description of a publication, by field of ``About``."""

    tags: dict[str, str] = option(
        "Tag of what is published, for `compatkit search --tag`, in addition to dataset= and backbone=; may be "
        "repeated.",
        "--tag",
        multiple=True,
        metavar="KEY=VALUE",
        callback=tags,
    )
    title: str | None = option("Title of what is published; default: network, cut and data.", metavar="TEXT")
    description: str | None = option("Description of what is published.", metavar="TEXT")
    license: str | None = option("License of what is published, such as Apache-2.0.", metavar="NAME")
    source: str | None = option("Its origin: a link, a paper.", metavar="TEXT")

    def described(self) -> dict[str, Any]:
        """Return what the command line says, by field of ``About``."""
        return {name: value for name, value in self.of(AboutOptions).items() if value}

    def about(self, known: About | None = None) -> About:
        """Return the description of a publication, merged over ``known``, such as a recipe's."""
        from compatkit.contracts.manifest import About

        return (known or About()).updated(self.described())

    def check_publishes(self, publish: str | None) -> None:
        """Raise if options describe a publication but ``--publish`` is missing.

        Args:
            publish: Value of ``--publish``.

        Raises:
            UsageError: There is such an option.
        """
        names = [*self.described(), *(name for name in ("version", "sign_with") if getattr(self, name, None))]
        words = ["--tag" if name == "tags" else f"--{name.replace('_', '-')}" for name in names]
        if publish is None and words:
            raise UsageError(
                f"{', '.join(words)}: nothing is published. Add --publish NAME.", subject=words[0]
            )


class DataOptions(Options):
    """Where data sets are."""

    data_root: str | None = option(
        "Folder of data sets; default: COMPATKIT_DATA, else torchvision's root.",
        type=PathType(),
        metavar="DIR",
    )
    download: bool = option("Allow downloads of missing data sets and weights.")


class NamedDataOptions(DataOptions):
    """Where data sets are, for commands that name them; recipes say ``damaged`` themselves."""

    damaged: str = option(
        "What to do about images of data sets named here that cannot be decoded: fail when one is read, or decode all "
        "first and leave these out.",
        choices=("refuse", "skip"),
        default="refuse",
    )


class AdmissionOptions(NamedDataOptions):
    """How policies of the receiving registry are decided."""

    measure: bool = option(
        "Measure on arrival what policies of the receiving registry require and no result decides."
    )
    names: tuple[str, ...] = option("Images to measure on, by name or path.", "--data", metavar="NAME")
    unmeasured: bool = option(
        "Accept what policies of the receiving registry require but nobody measured; their logs record it."
    )


recipe_option = option("Use the test sets of this recipe's tasks.", type=PathType(), metavar="FILE")
batch_size_option = option("Images per batch.", min=2, default=256)
device_option = option("Device: cpu, cuda, ...", default="cpu")
bn_policy_option = option(
    "Batch-norm statistics: of each batch (as in the paper), re-estimated on the test images without labels, the "
    "estimate mixed with stored ones that count as N images, or as stored.",
    "--bn-policy",
    type=BatchNormPolicyType(),
    default=DEFAULT,
)
labels_option = option(
    "Class names in the order of the outputs, one per line; without them the head has no class names.",
    type=PathType(exists=True, dir_okay=False),
    metavar="FILE",
)
version_option = option(
    "Version number; default: the smallest step that the change requires.", metavar="X.Y.Z"
)
