"""Declaration of commands, and options shared by many.

``--registry``, ``--json``, ``--quiet``, ``--plugin``, signatures, and the description of a publication are stored in
the context, so that the first four may precede or follow the command.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from compatkit.contracts.batchnorm import DEFAULT, POLICIES, check_policy
from compatkit.errors import UsageError
from compatkit.foundation.addresses import local, normalized

if TYPE_CHECKING:
    from compatkit.contracts.manifest import About

Command = TypeVar("Command", bound=Callable[..., Any])

REGISTRY_HELP = "Registry folder; default: COMPATKIT_REGISTRY, else the nearest folder above that is one."


class Asked:
    """Arguments and options of a command, by their declared names; each command has a class that states their types.

    Attributes:
        machine: Whether to print JSON.
    """

    machine: bool

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def only(self, *names: str) -> dict[str, Any]:
        """Return some of them as a dict."""
        return {name: getattr(self, name) for name in names}


class DataAsked(Asked):
    """Options of ``data_options``."""

    data_root: str | None
    download: bool


class NamedDataAsked(DataAsked):
    """Options of ``named_data_options``."""

    damaged: str


class AdmissionAsked(NamedDataAsked):
    """Options of ``admission_options``."""

    measure: bool
    names: tuple[str, ...]
    unmeasured: bool


Kind = TypeVar("Kind", bound=Asked)


def command(
    name: str, asked: type[Kind], help: str, *, registry: bool = True, group: click.Group | None = None
) -> Callable[[Callable[[click.Context, Kind], None]], click.Command]:
    """Make a function a command with ``--json``, available as ``asked.machine``.

    Args:
        name: Name of the command.
        asked: Class of its arguments and options.
        help: Text for ``--help``.
        registry: Whether it has ``--registry``.
        group: Group to add it to, or None.
    """

    def made(function: Callable[[click.Context, Kind], None]) -> click.Command:
        @wraps(function)
        def run(**values: Any) -> None:
            context = click.get_current_context()
            line = given(context)
            with (
                _quiet() if line.quiet else nullcontext(),
                _offered(line.plugins) if line.plugins else nullcontext(),
            ):
                function(context, asked(**values))

        found = click.command(name, help=help)(run)
        shared = options(*([registry_option] if registry else []), json_option, quiet_option, plugin_option)
        found.params += click.command()(shared(lambda: None)).params
        if group is not None:
            group.add_command(found)
        return found

    return made


def _quiet() -> AbstractContextManager[None]:
    """Show no progress inside."""
    from compatkit.data.bars import silent

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

    def run(machine: bool) -> None:
        given(click.get_current_context()).machine |= machine

    return click.group(name, help=help)(json_option(run))


def options(*made: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options in this order."""

    def add(function: Command) -> Command:
        for one in reversed(made):
            function = one(function)
        return function

    return add


class StatisticsType(click.ParamType):
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


@attrs.define
class Given:
    """Options stored in the context, as ``context.obj``.

    Attributes:
        registry: Folder of the registry, or None.
        machine: Whether to print JSON.
        quiet: Whether to show no progress.
        plugins: Python files whose plugins count too.
        signed: Whether loaded components must be signed.
        trusted: Trusted folders, files or keys; empty for the user's own.
        key: Private key for signing publications, or None.
        about: Description of a publication, by field of ``About``.
        line: All words of the command line.
    """

    registry: str | None = None
    machine: bool = False
    quiet: bool = False
    plugins: tuple[str, ...] = ()
    signed: bool = False
    trusted: tuple[str, ...] = ()
    key: str | None = None
    about: dict[str, Any] = attrs.field(factory=dict)
    line: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Words that select the same registry and plugin files in a suggested command."""
        root = () if self.registry is None else ("--registry", self.registry)
        return (*root, *(word for file in self.plugins for word in ("--plugin", file)))


def given(context: click.Context) -> Given:
    """Return the options stored in the context."""
    return context.ensure_object(Given)


def _kept(word: str, field: str, *, check: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Return an option that is stored in ``Given`` instead of being passed to the command.

    Args:
        word: The option, such as ``--title``.
        field: Field of ``Given``, or ``about.title`` for a key of a field.
        check: Callback that returns the value to store.
        settings: Arguments of ``click.option``.
    """

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        value = value if check is None else check(context, parameter, value)
        name, _, key = field.partition(".")
        if value and key:
            getattr(given(context), name)[key] = value
        elif value:
            setattr(given(context), name, value)

    return click.option(word, field.replace(".", "_"), expose_value=False, callback=keep, **settings)


def _folder(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("expected a folder, got an empty text.", context, parameter)
    return None if value is None else normalized(value)


def tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` options."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            problem = f"expected KEY=VALUE, such as domain=digits, got {value!r:.100}."
            raise click.BadParameter(problem, context, parameter)
        if found.setdefault(key, text) != text:
            problem = f"{key!r} is given twice, as {found[key]!r} and as {text!r}; give it once."
            raise click.BadParameter(problem, context, parameter)
    return found


registry_option = _kept("--registry", "registry", check=_folder, metavar="ROOT", help=REGISTRY_HELP)
json_option = click.option(
    "--json",
    "machine",
    is_flag=True,
    callback=lambda context, _, value: value or given(context).machine,
    help="Print only JSON, for programs.",
)
quiet_option = _kept("--quiet", "quiet", is_flag=True, help="Show no progress; results and warnings stay.")
plugin_option = _kept(
    "--plugin",
    "plugins",
    check=lambda context, _, values: (*given(context).plugins, *values),
    multiple=True,
    metavar="FILE",
    help="Also use what this Python file registers, such as a builder; it is run. May be repeated.",
)
trusted_option = _kept(
    "--trusted",
    "trusted",
    metavar="WHOM",
    multiple=True,
    help="Trust these instead of your own trusted keys (`compatkit keys`): a folder of public keys, a file of one, "
    "or a key; may be repeated.",
)
signature_options = options(
    _kept(
        "--require-signature",
        "signed",
        is_flag=True,
        help="Refuse what is not signed by a trusted key; implied by --trusted.",
    ),
    trusted_option,
)
sign_option = _kept(
    "--sign-with",
    "key",
    metavar="KEY",
    help="Sign what is published: file of a private key, or the name of one made by `compatkit keys new`.",
)
about_options = options(
    _kept(
        "--tag",
        "about.tags",
        check=tags,
        multiple=True,
        metavar="KEY=VALUE",
        help="Tag of what is published, for `compatkit search --tag`, in addition to dataset= and backbone=; may be "
        "repeated.",
    ),
    _kept(
        "--title",
        "about.title",
        metavar="TEXT",
        help="Title of what is published; default: network, cut and data.",
    ),
    _kept("--description", "about.description", metavar="TEXT", help="Description of what is published."),
    _kept(
        "--license",
        "about.license",
        metavar="NAME",
        help="License of what is published, such as Apache-2.0.",
    ),
    _kept("--source", "about.source", metavar="TEXT", help="Its origin: a link, a paper."),
)
data_options = options(
    click.option(
        "--data-root",
        type=PathType(),
        metavar="DIR",
        help="Folder of data sets; default: COMPATKIT_DATA, else torchvision's root.",
    ),
    click.option("--download", is_flag=True, help="Allow downloads of missing data sets and weights."),
)
named_data_options = options(
    data_options,
    click.option(
        "--damaged",
        type=click.Choice(["refuse", "skip"]),
        default="refuse",
        show_default=True,
        help="What to do about images of data sets named here that cannot be decoded: fail when one is read, or decode "
        "all first and leave these out.",
    ),
)
"""``data_options`` of commands that name data sets; recipes say ``damaged`` themselves."""
admission_options = options(
    named_data_options,
    click.option(
        "--measure",
        is_flag=True,
        help="Measure on arrival what policies of the receiving registry require and no result decides.",
    ),
    click.option(
        "--data", "names", multiple=True, metavar="NAME", help="Images to measure on, by name or path."
    ),
    click.option(
        "--unmeasured",
        is_flag=True,
        help="Accept what policies of the receiving registry require but nobody measured; their logs record it.",
    ),
)
recipe_option = click.option(
    "--recipe", type=PathType(), metavar="FILE", help="Use the test sets of this recipe's tasks."
)
batch_size_option = click.option(
    "--batch-size", type=click.IntRange(2), default=256, show_default=True, help="Images per batch."
)
bn_policy_option = click.option(
    "--bn-policy",
    "--normalisation",
    "bn_policy",
    type=StatisticsType(),
    default=DEFAULT,
    show_default=True,
    help="Batch-norm statistics: of each batch (as in the paper), re-estimated on the test images without labels, the "
    "estimate mixed with stored ones that count as N images, or as stored.",
)
labels_option = click.option(
    "--labels",
    type=PathType(exists=True, dir_okay=False),
    metavar="FILE",
    help="Class names in the order of the outputs, one per line; without them the head has no class names.",
)
version_option = click.option(
    "--version", metavar="X.Y.Z", help="Version number; default: the smallest step that the change requires."
)


def about(context: click.Context, known: About | None = None) -> About:
    """Return the description of a publication on the command line, merged over ``known``.

    Args:
        context: Holds the options.
        known: Description to start from, such as a recipe's.
    """
    from compatkit.contracts.manifest import About

    return (known or About()).updated(given(context).about)


def check_publishes(context: click.Context, publish: str | None, version: str | None = None) -> None:
    """Raise if options describe a publication but ``--publish`` is missing.

    Args:
        context: Holds the options.
        publish: Value of ``--publish``.
        version: Value of ``--version``, if the command has it.

    Raises:
        UsageError: There is such an option.
    """
    said = {**given(context).about, "version": version, "sign-with": given(context).key}
    words = ["--tag" if name == "tags" else f"--{name}" for name, value in said.items() if value]
    if publish is None and words:
        raise UsageError(f"{', '.join(words)}: nothing is published. Add --publish NAME.", subject=words[0])
