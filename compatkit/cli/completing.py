"""What completes an argument or an option: names, versions and aliases of the registry in force, plugins, remotes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from compatkit.cli.command_line import command_line
from compatkit.cli.examples import Group
from compatkit.errors import EnvironmentFailure
from compatkit.foundation.addresses import is_url, remote_name

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Index

FEW = 500
"""Most names that are read to bring the index up to date."""
MANY = 60
"""Most names offered one by one; more are offered by their next segment, like folders."""
Source = Callable[[click.Context, str], Iterable["str | CompletionItem[str]"]]
"""Returns values for the beginning of a word; those that do not begin with it are left out."""
DIRECTORY, FILE = CompletionItem("", type="dir"), CompletionItem("", type="file")


def complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return what can stand for a parameter; ``click`` calls this.

    Args:
        context: Context of the command, with what is typed so far.
        parameter: The argument or option.
        incomplete: What is typed of its value.
    """
    name = parameter.name or ""
    command = context.command_path.split(" ", 1)[-1]
    source = SOURCES.get(f"{command}.{name}") or (
        SOURCES.get(name) if parameter.type is click.STRING or parameter.multiple else None
    )
    if source is None:
        return parameter.type.shell_complete(context, parameter, incomplete)
    with context.scope(cleanup=False):
        items = [_item(value) for value in source(context, incomplete)]
    return [item for item in items if item.type in ("file", "dir") or item.value.startswith(incomplete)]


def _item(value: str | CompletionItem[str]) -> CompletionItem[str]:
    return CompletionItem(value) if isinstance(value, str) else value


class Behind(Exception):
    """The index lacks so many names that reading them would take seconds."""


def _only_few(done: int, total: int, what: str) -> None:
    if total > FEW:
        raise Behind


def root() -> Path | None:
    """Return the root of the registry in force; None for a remote, which would take seconds to ask."""
    from compatkit.registry.layout import VARIABLE, locate

    named = command_line().registry or os.environ.get(VARIABLE)
    if named and (remote_name(named) is not None or is_url(named)):
        return None
    return Path(named).expanduser() if named else locate(None)


def index_of(root: Path) -> Index:
    """Return the index of a registry, without opening the registry, which imports much more."""
    from compatkit.registry import layout
    from compatkit.registry.index.lookup import Index

    return Index.of(root, layout.inspect(root).id)


def names(*kinds: str) -> Source:
    """Return a source of names of components of some kinds; of all without one."""

    def source(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
        if (place := root()) is None:
            return []
        index = index_of(place)
        try:
            found = index.names(incomplete, kinds, _only_few)
        except (Behind, EnvironmentFailure):  # of all kinds
            found = [name for name in index.references.names() if name.startswith(incomplete)]
        return by_segment(found, incomplete)

    return source


def references(*kinds: str) -> Source:
    """Return a source of names of components, and of versions after ``@`` and aliases after ``:``."""
    bare = names(*kinds)

    def source(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
        for mark, of in (("@", versions_of), (":", aliases_of)):
            name, marked, _ = incomplete.partition(mark)
            if marked:
                return [f"{name}{mark}{part}" for part in of(name)]
        return bare(context, incomplete)

    return source


def versions_of(name: str) -> list[str]:
    """Return the versions of a component that are not withdrawn, latest first."""
    if (place := root()) is None:
        return []
    found = index_of(place).references
    return [str(version) for version in sorted({*found.versions(name)} - found.withdrawn(name), reverse=True)]


def aliases_of(name: str) -> list[str]:
    """Return the aliases of a component."""
    from compatkit.registry.aliases import Aliases

    return (
        [] if (place := root()) is None else [*Aliases(index_of(place).references.folder(name), place).all()]
    )


def by_segment(found: list[str], incomplete: str) -> list[str | CompletionItem[str]]:
    """Return names, or the beginnings of many up to the next slash."""
    if len(found) <= MANY:
        return [*found]
    at = incomplete.count("/") + 1
    parts = dict.fromkeys("/".join(name.split("/")[:at]) + "/" * (name.count("/") >= at) for name in found)
    return [CompletionItem(part, type="part") if part.endswith("/") else part for part in parts]


def joined(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
    """Return references, also after ``+``, by which parts of a network are joined."""
    before, plus, last = incomplete.rpartition("+")
    for value in references()(context, last):
        item = _item(value)
        yield CompletionItem(f"{before}{plus}{item.value}", type=item.type)


def plugins(kind: str, *more: str) -> Source:
    """Return a source of names of installed plugins of a kind, and further values; no plugin is imported."""

    def source(context: click.Context, incomplete: str) -> Iterable[str]:
        from compatkit.plugins.discovery import names as installed

        return [*more, *installed(kind)]

    return source


def listed(kind: str) -> Source:
    """Return a source of values joined by commas that are names of plugins of a kind."""

    def source(context: click.Context, incomplete: str) -> Iterable[str]:
        from compatkit.plugins.discovery import names as installed

        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in installed(kind)]

    return source


def every_plugin(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return kinds and names of plugins, and the commands that may stand in their place."""
    from compatkit.plugins.discovery import names as installed
    from compatkit.plugins.loading import KINDS

    group = context.parent.command if context.parent is not None else None
    commands = [*group.commands] if isinstance(group, Group) else []
    return [*commands, *KINDS, *sorted({name for kind in KINDS for name in installed(kind)})]


def data(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
    """Return names of data sets, and paths."""
    from compatkit.plugins.discovery import names as installed

    return [FILE, *installed("data_sets")]


def models(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return models of timm, whose sources are read and not run."""
    from compatkit.adapters.registered_models import registered_models

    return registered_models("timm")


def indexed_models(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return models of components of the registry."""
    return [] if (place := root()) is None else index_of(place).models(_only_few)


def kinds(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return kinds of components."""
    from compatkit.registry.index.query import KINDS

    return KINDS


def remotes(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
    """Return saved remotes as ``NAME:``, and folders."""
    from compatkit.registry.remotes import named

    return [DIRECTORY, *(f"{name}:" for name in named.names())]


def remote_names(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return the names of saved remotes."""
    from compatkit.registry.remotes import named

    return named.names()


def aliases(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return the aliases of the component that is named before."""
    return aliases_of(str(context.params.get("name")))


def versions(context: click.Context, incomplete: str) -> Iterable[str]:
    """Return the versions of the component that is named before."""
    return versions_of(str(context.params.get("name")))


def private_keys(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
    """Return the user's private keys by name, and files."""
    from compatkit.registry.signing.private_keys import key_folder

    return [FILE, *(file.stem for file in sorted(key_folder().glob("*.pem")))]


def public_keys(context: click.Context, incomplete: str) -> Iterable[str | CompletionItem[str]]:
    """Return the names of trusted keys, and files."""
    from compatkit.registry.signing.trust import Folder

    return [FILE, *sorted(key.name for key in Folder.of_user().read().keys.values() if key.name)]


def files(context: click.Context, incomplete: str) -> Iterable[CompletionItem[Any]]:
    """Return paths."""
    return [FILE]


def fixed(*values: str) -> Source:
    """Return a source of these values."""
    return lambda context, incomplete: values


SOURCES: dict[str, Source] = {
    "extractor": references("extractor", "encoder"),
    "extractors": references("extractor", "encoder"),
    "head": references("head", "auxiliary_head"),
    "heads": references("head", "auxiliary_head"),
    "aux": references("auxiliary_head"),
    "part": references(),
    "reference": references(),
    "references": references(),
    "patterns": references(),
    "parent": references(),
    "against": references(),
    "old": references(),
    "new": references(),
    "left": joined,
    "right": joined,
    "pattern": names(),
    "scope": names(),
    "target": references(),
    "alias.name": names(),
    "alias.alias": aliases,
    "alias.version": versions,
    "alias.expected": versions,
    "log.name": names(),
    "policy show.name": names(),
    "policy test.name": names(),
    "name": data,
    "names": data,
    "dataset": data,
    "head_data": data,
    "test": data,
    "predict.data": data,
    "bridge.labels": data,
    "keys new.name": fixed(),
    "keys trust.name": fixed(),
    "adopt.name": fixed(),
    "remote add.name": fixed(),
    "remote show.name": remote_names,
    "remote remove.name": remote_names,
    "remote": remotes,
    "registry": remotes,
    "address": lambda context, incomplete: [DIRECTORY],
    "plugins": files,
    "photos": files,
    "word": every_plugin,
    "words": references(),
    "kind": kinds,
    "cuts.model": models,
    "split.model": models,
    "adopt.model": models,
    "search.model": indexed_models,
    "number": plugins("studies"),
    "study run.size": fixed("cpu", "paper"),
    "builder": plugins("builders", "timm"),
    "launcher": plugins("launchers", "auto"),
    "format": plugins("exporters", "safetensors"),
    "metric": plugins("metrics"),
    "metrics": plugins("metrics"),
    "scores": plugins("metrics"),
    "rung": plugins("rungs"),
    "rungs": listed("rungs"),
    "sign_with": private_keys,
    "sign.key": private_keys,
    "keys trust.key": files,
    "keys distrust.key": public_keys,
    "owners": public_keys,
    "maintainers": public_keys,
    "publishers": public_keys,
    "revoked": public_keys,
    "trusted": public_keys,
    "device": fixed("cpu", "cuda"),
    "interpolation": fixed("bilinear", "bicubic", "lanczos", "nearest"),
}
"""Sources by parameter, or by command and parameter. Paths and choices complete themselves."""
