"""Options that many commands share; ``--registry`` and ``--json`` may stand before the command or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from compatkit.contracts.batchnorm import POLICIES, check_policy
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.contracts.manifest import About

Command = TypeVar("Command", bound=Callable[..., Any])

REGISTRY_HELP = "Registry folder; else COMPATKIT_REGISTRY, else the nearest folder above that holds one."


class StatisticsType(click.ParamType):
    """A policy of batch normalisation, as it is kept."""

    name = "policy"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the words that there are."""
        return f"[{'|'.join(POLICIES)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the policy; a wrong one is told as any wrong value of an option."""
        try:
            return check_policy(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


@attrs.define
class Given:
    """What stands before the command; ``context.obj``.

    Attributes:
        registry: Folder of the registry, or None.
        machine: Whether JSON is asked for.
        signed: Whether what is loaded must be signed.
        trusted: Whose signatures count: folders, files or keys; empty for the user's own.
        key: Private key to sign with what is published, or None.
        about: What is said for people of what is published, by field of ``About``.
        line: All words of the command line.
    """

    registry: str | None = None
    machine: bool = False
    signed: bool = False
    trusted: tuple[str, ...] = ()
    key: str | None = None
    about: dict[str, Any] = attrs.field(factory=dict)
    line: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What names the same registry again, in a command that is proposed."""
        return () if self.registry is None else ("--registry", self.registry)


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


def trusted_option(function: Command) -> Command:
    """Add ``--trusted``; it is kept in the context."""

    def keep(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
        given(context).trusted += value

    return click.option(
        "--trusted",
        metavar="WHOM",
        multiple=True,
        expose_value=False,
        callback=keep,
        help="Whose signatures count, in place of the keys that you trust (`compatkit keys`): a folder of public keys, "
        "a file of one, or a key; may be given more than once.",
    )(function)


def signature_options(function: Command) -> Command:
    """Add ``--require-signature`` and ``--trusted``; they are kept in the context."""

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        given(context).signed |= value

    return click.option(
        "--require-signature",
        is_flag=True,
        expose_value=False,
        callback=keep,
        help="Refuse what no trusted key signed; so does --trusted.",
    )(trusted_option(function))


def sign_option(function: Command) -> Command:
    """Add ``--sign-with``; it is kept in the context."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        given(context).key = value

    return click.option(
        "--sign-with",
        metavar="KEY",
        expose_value=False,
        callback=keep,
        help="Sign what is published: file of a private key, or the name of one that `compatkit keys new` made.",
    )(function)


def tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read ``KEY=VALUE``, given any number of times."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(
                f"expected KEY=VALUE, such as domain=digits, got {value!r:.100}.", context, parameter
            )
        if found.setdefault(key, text) != text:
            raise click.BadParameter(
                f"{key!r} is given twice, as {found[key]!r} and as {text!r}; no component has both.",
                context,
                parameter,
            )
    return found


def about_options(function: Command) -> Command:
    """Add what is said for people of what is published; it is kept in the context."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            given(context).about[str(parameter.name)] = value

    for name, metavar, text in (
        ("--source", "TEXT", "Where it comes from: a link, a paper."),
        ("--licence", "NAME", "Licence of what is published, such as Apache-2.0."),
        ("--description", "TEXT", "Description of what is published."),
        ("--title", "TEXT", "Title of what is published; else one says network, cut and data."),
    ):
        function = click.option(name, metavar=metavar, expose_value=False, callback=keep, help=text)(function)

    def keep_tags(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
        keep(context, parameter, tags(context, parameter, values))

    return click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="KEY=VALUE",
        expose_value=False,
        callback=keep_tags,
        help="A tag of what is published, for `compatkit search --tag`, besides dataset= and backbone=; may be "
        "repeated.",
    )(function)


def about(context: click.Context, known: About | None = None) -> About:
    """Return what the command line says for people of what is published, over what is ``known`` already."""
    from compatkit.contracts.manifest import About

    return (known or About()).updated(given(context).about)


def check_publishes(context: click.Context, publish: str | None, version: str | None = None) -> None:
    """Refuse what is said of what is published, where ``--publish`` is missing.

    Raises:
        UsageError: Something is said.
    """
    said = {**given(context).about, "version": version, "sign-with": given(context).key}
    words = ["--tag" if name == "tags" else f"--{name}" for name, value in said.items() if value]
    if publish is None and words:
        raise UsageError(f"{', '.join(words)}: nothing is published. Add --publish NAME.", subject=words[0])


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


def admission_options(function: Command) -> Command:
    """Add how policies are answered of what comes in: ``--measure``, ``--data``, ``--unmeasured``, data folders."""
    for option in (
        click.option(
            "--unmeasured",
            is_flag=True,
            help="Let in what nobody measured as a policy of the receiving registry asks; its log tells of it.",
        ),
        click.option(
            "--data", "names", multiple=True, metavar="NAME", help="Images to measure on, by name or path."
        ),
        click.option(
            "--measure",
            is_flag=True,
            help="Measure, as it comes in, what a policy of the receiving registry asks and no result tells.",
        ),
    ):
        function = option(function)
    return data_options(function)
