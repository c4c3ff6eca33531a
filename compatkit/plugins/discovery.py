"""Find plugins among the installed distributions, one at a time, and say what each offers.

A key such as ``regularizers.dcc`` in the entry-point group ``compatkit`` is what a run looks up. A run
imports only what it names, so a package that happens to be installed never changes a result, and one
broken plugin never stops another.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from packaging.utils import canonicalize_name

from compatkit.errors import PluginError, UnknownName
from compatkit.hooks import PROJECT
from compatkit.plugins.importing import PluginWarning
from compatkit.plugins.loading import KINDS, WITHOUT, Offer, load, owner_of
from compatkit.plugins.owners import suggestion

ONLY = "COMPATKIT_PLUGINS"


def names(kind: str) -> list[str]:
    """Return the names that are installed for a kind, sorted, without importing any."""
    _check_kind(kind)
    return sorted({point.name.partition(".")[2] for point in points() if _kind(point) == kind})


def require(kind: str, name: str) -> str:
    """Return the plain name if a plugin of that name is installed; nothing is imported.

    Raises:
        UnknownName: There is none; the message lists what there is.
    """
    _check_kind(kind)
    name = name.removeprefix(kind + ".")
    known = names(kind)
    if name not in known:
        elsewhere = [other for other in KINDS if other != kind and name in names(other)]
        hint = f" There is {elsewhere[0]}.{name}." if elsewhere else suggestion(name, known)
        raise UnknownName(
            f"There is no plugin {kind}.{name}.{hint} Installed {kind}: {', '.join(known) or 'none'}. "
            "Install the package that brings it, or choose one of these.",
            subject=f"{kind}.{name}",
        )
    return name


def find(kind: str, name: str) -> Offer:
    """Import the one plugin that is asked for, check it, and return what it offers under that name.

    Args:
        kind: One of KINDS.
        name: For example ``"dcc"``, or with its kind ``"regularizers.dcc"``.

    Raises:
        UnknownName: No installed distribution has it.
        PluginError: Two have it, it is blocked, its import fails, or it is not written as the hooks ask.
    """
    name = require(kind, name)
    found = [point for point in points() if point.name == f"{kind}.{name}"]
    free = [point for point in found if not blocked(point)]
    if not free:
        raise owner_of(found[0]).error(
            f"it is blocked by {blocked(found[0])}. Change the variable to use it."
        )
    if len(free) > 1:
        raise clash(free)
    loaded = load(free[0])
    for note in loaded.notes:
        warnings.warn(note, PluginWarning, stacklevel=2)
    return loaded.offer


def providers() -> dict[str, Callable[..., Any]]:
    """Return the data sets that plugins bring, for ``data.load``; a plugin is imported when its data set is loaded."""

    def make(name: str, **given: Any) -> Any:
        return find("data_sets", name).make(given)

    return {name: partial(make, name) for name in names("data_sets")}


def points() -> list[EntryPoint]:
    """Return all entry points of the group, each once, by key and distribution, never by installation."""
    found = {(point.name, owner_of(point), point.value): point for point in entry_points(group=PROJECT)}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], str(key[1]), key[2]))]


def _kind(point: EntryPoint) -> str:
    return point.name.partition(".")[0]


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UnknownName(
            f"There is no kind of plugin {kind!r}.{suggestion(kind, KINDS)} "
            f"The kinds are {', '.join(KINDS)}.",
            subject=kind,
        )


def clash(twins: Sequence[EntryPoint]) -> PluginError:
    """Return the error that names all distributions with one key."""
    owners = [owner_of(point) for point in twins]
    who = " and ".join(f"{one.distribution} {one.version}" for one in owners)
    return PluginError(
        f"Plugin {twins[0].name!r} is brought by {who}; which one is meant cannot be told. "
        f"Block one with {WITHOUT}={owners[-1].distribution}, uninstall it, or have its author choose another name.",
        plugin=twins[0].name,
        distribution=owners[0].distribution,
    )


def blocked(point: EntryPoint) -> str:
    """Return the variable that blocks a plugin, or nothing. Both name keys, names or distributions."""
    owner = owner_of(point)
    mine = {point.name, point.name.partition(".")[2]}
    if owner.distribution:
        mine.add(canonicalize_name(owner.distribution))

    def listed(text: str) -> bool:
        given = {part.strip() for part in text.split(",") if part.strip()}
        return bool(mine & (given | {canonicalize_name(part) for part in given}))

    only, without = os.environ.get(ONLY), os.environ.get(WITHOUT, "")
    if listed(without):
        return f"{WITHOUT}={without}"
    if only is not None and not listed(only):
        return f"{ONLY}={only} (only these)"
    return ""
