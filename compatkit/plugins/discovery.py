"""Find installed plugins one at a time.

A run looks up keys such as ``regularizers.dcc`` in the entry-point group ``compatkit``. It imports only the plugins
that it names, so an installed package never changes a result, and a broken plugin never stops another.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

from packaging.utils import canonicalize_name

from compatkit.errors import PluginError, UnknownName
from compatkit.plugins.installed import installed, is_own, is_shadowed, own, package_of, split_name
from compatkit.plugins.isolation import PluginWarning, suggestion
from compatkit.plugins.loading import KINDS, WITHOUT, Offer, load, own_keys, owner_of

ONLY = "COMPATKIT_PLUGINS"


def names(kind: str) -> list[str]:
    """Return the installed names of a kind, sorted; nothing is imported except plugin files that the user names.

    A name that several distributions have is also listed as ``package:name`` for each, except compatkit's own.
    """
    _check_kind(kind)
    mine = [point for point in installed() if _kind(point) == kind]
    claims = Counter(point.name for point in mine)
    plain = {_plain(point) for point in mine}
    return sorted(
        plain | {qualified(point) for point in mine if claims[point.name] > 1 and not is_own(point)}
    )


def require(kind: str, name: str) -> str:
    """Return the name without its kind if a plugin of that name is installed; nothing is imported.

    Args:
        kind: ``"regularizers"``, ``"metrics"``, ...
        name: ``"dcc"``, ``"regularizers.dcc"`` or ``"package:dcc"``.

    Raises:
        UnknownName: It is not installed; the message lists the installed names.
    """
    _check_kind(kind)
    package, name = split_name(name, kind)
    if not package and own(f"{kind}.{name}") is not None:
        return name
    known = names(kind)
    if package:
        if not _claimed(kind, package, name):
            raise UnknownName(
                f"The distribution {package!r} has no plugin {kind}.{name}. Installed {kind}: {', '.join(known)}.",
                subject=f"{package}:{kind}.{name}",
            )
        return f"{package}:{name}"
    if name not in known:
        elsewhere = [other for other in KINDS if other != kind and name in names(other)]
        hint = f" There is {elsewhere[0]}.{name}." if elsewhere else suggestion(name, known)
        raise UnknownName(
            f"There is no plugin {kind}.{name}.{hint} Installed {kind}: {', '.join(known) or 'none'}. "
            "Install its package, name its file (--plugin FILE.py), or choose one of these.",
            subject=f"{kind}.{name}",
        )
    return name


def find(kind: str, name: str) -> Offer:
    """Import and check a plugin, and return its offer.

    Args:
        kind: One of KINDS.
        name: ``"dcc"``, ``"regularizers.dcc"``, or ``"package:dcc"`` if several distributions have the name.

    Raises:
        UnknownName: It is not installed.
        PluginError: Two distributions have it, it is blocked, its import fails, or it violates the hook specifications.
    """
    package, name = split_name(require(kind, name), kind)
    claims = _claimed(kind, package, name)
    free = [point for point in claims if not blocked(point)]
    if not free:
        raise owner_of(claims[0]).error(
            f"it is blocked by {blocked(claims[0])}. Change the variable to use it."
        )
    if len(free) > 1:
        raise clash(free)
    loaded = load(free[0])
    for note in loaded.notes:
        warnings.warn(note, PluginWarning, stacklevel=2)
    return loaded.offer


def providers() -> dict[str, Callable[..., Any]]:
    """Return the data sets of plugins for ``data.load``; a plugin is imported when its data set is loaded.

    compatkit's own come first, because ``load`` takes the first of names that differ only in spelling.
    """

    def make(name: str, **settings: Any) -> Any:
        return find("data_sets", name).make(settings)

    mine = [point for point in installed() if _kind(point) == "data_sets"]
    plain = sorted(names("data_sets"), key=lambda name: f"data_sets.{name}" not in own_keys())
    return {name: partial(make, name) for name in (*plain, *map(qualified, mine))}


def _claimed(kind: str, package: str, name: str) -> list[EntryPoint]:
    """Return the entry points of a name: compatkit's own if it has one, else all."""
    if not package and (mine := own(f"{kind}.{name}")) is not None:
        return [mine]
    claims = installed(name=f"{kind}.{name}")
    return [point for point in claims if package_of(point) == package] if package else claims


def qualified(point: EntryPoint) -> str:
    """Return ``package:name``, which no other plugin of the kind has."""
    return f"{package_of(point)}:{_plain(point)}"


def _kind(point: EntryPoint) -> str:
    return point.name.partition(".")[0]


def _plain(point: EntryPoint) -> str:
    return point.name.partition(".")[2]


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UnknownName(
            f"There is no kind of plugin {kind!r}.{suggestion(kind, KINDS)} "
            f"The kinds are {', '.join(KINDS)}.",
            subject=kind,
        )


def clash(twins: Sequence[EntryPoint]) -> PluginError:
    """Return the error for a key that several distributions other than compatkit offer."""
    owners = [owner_of(point) for point in twins]
    who = " and ".join(f"{owner.distribution} {owner.version}" for owner in owners)
    return PluginError(
        f"Plugin {twins[0].name!r} is offered by {who}. Name one as "
        f"{' or '.join(map(qualified, twins))}, block one with {WITHOUT}={package_of(twins[-1])}, or "
        "uninstall it.",
        plugin=twins[0].name,
        distribution=owners[0].distribution,
    )


def blocked(point: EntryPoint) -> str:
    """Return the setting of an environment variable that blocks a plugin, or "".

    Both variables list keys, names or distributions, and ``package:name`` or ``package:key``. A plain name that
    compatkit has itself means compatkit's own, as in a recipe.
    """
    package = package_of(point)
    mine = (
        {package, *(f"{package}:{name}" for name in (point.name, _plain(point)))} if package else set[str]()
    )
    if not is_shadowed(point):
        mine |= {point.name, _plain(point)}

    def listed(text: str) -> bool:
        patterns = {part.strip() for part in text.split(",") if part.strip()}
        patterns |= {canonicalize_name(pattern) for pattern in patterns}
        return any(fnmatchcase(name, pattern) for name in mine for pattern in patterns)

    only, without = os.environ.get(ONLY), os.environ.get(WITHOUT, "")
    if listed(without):
        return f"{WITHOUT}={without}"
    return f"{ONLY}={only} (only these)" if only is not None and not listed(only) else ""


def rivals(other: EntryPoint, point: EntryPoint) -> bool:
    """Return whether two plugins share a plain name that may mean either."""
    return other.name == point.name and not (is_shadowed(other) or is_shadowed(point) or blocked(other))
