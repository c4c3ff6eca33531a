"""Find plugins among the installed distributions, one at a time, and list what each offers.

A run looks up keys such as ``regularizers.dcc`` in the entry-point group ``compatkit``. It imports only the plugins
that it names, so a package that happens to be installed never changes a result, and one broken plugin never stops
another.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from traceback import format_exception
from typing import Any, Literal

import attrs
from packaging.utils import canonicalize_name

from compatkit.errors import PluginError, UnknownName
from compatkit.hooks import PROJECT, Training
from compatkit.plugins.builders import library_of, models_of
from compatkit.plugins.implementations import implementations
from compatkit.plugins.isolation import Owner, PluginWarning, suggestion
from compatkit.plugins.loading import KINDS, WITHOUT, Incompatible, Loaded, Offer, load, owner_of
from compatkit.plugins.settings import Setting, plain

ONLY = "COMPATKIT_PLUGINS"
Status = Literal["active", "blocked", "failed", "incompatible", "clash"]


def names(kind: str) -> list[str]:
    """Return the names that are installed for a kind, sorted, without importing any."""
    _check_kind(kind)
    installed = entry_points(group=PROJECT)
    return sorted({point.name.partition(".")[2] for point in installed if _kind(point) == kind})


def require(kind: str, name: str) -> str:
    """Return the plain name if a plugin of that name is installed; nothing is imported.

    Args:
        kind: ``"regularizers"``, ``"metrics"``, ...
        name: Plain, or with the kind and a dot in front.

    Raises:
        UnknownName: There is none; the message lists those installed.
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
    """Import one plugin, check it, and return its offer of that name.

    Args:
        kind: One of KINDS.
        name: For example ``"dcc"``, or with its kind ``"regularizers.dcc"``.

    Raises:
        UnknownName: No installed distribution has it.
        PluginError: Two have it, it is blocked, its import fails, or it does not follow the hook specifications.
    """
    name = require(kind, name)
    found = points(name=f"{kind}.{name}")
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
    """Return the data sets of plugins, for ``data.load``; a plugin is imported when its data set is loaded."""

    def make(name: str, **given: Any) -> Any:
        return find("data_sets", name).make(given)

    return {name: partial(make, name) for name in names("data_sets")}


def points(**chosen: Any) -> list[EntryPoint]:
    """Return entry points of the group, each once, sorted by key and distribution, not by installation.

    Args:
        **chosen: As ``entry_points`` takes them, such as ``name="regularizers.dcc"``; all without any.
    """
    owners: dict[int, Owner] = {}  # one for each distribution, whose metadata takes a millisecond to read
    found: dict[tuple[str, str, str], EntryPoint] = {}
    for point in entry_points(group=PROJECT, **chosen):
        if id(point.dist) not in owners:
            owners[id(point.dist)] = owner_of(point)
        owner = attrs.evolve(owners[id(point.dist)], plugin=point.name)
        found[point.name, str(owner), point.value] = point
    return [found[key] for key in sorted(found)]


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
    """Return the environment variable that blocks a plugin, or ""; both variables list keys, names or distributions."""
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


@attrs.frozen(eq=False)
class Listed:
    """A line of ``compatkit plugins``.

    Attributes:
        status: ``blocked``: by an environment variable; ``incompatible``: written for another
            version of the hooks; ``clash``: two distributions have the same key.
        summary: First line of its docstring.
        order: Position among the plugins of its kind, from 1, unless a run states another.
        models: For a builder that lists them: the names of its models.
        hooks: Hooks implemented; for a regularizer whose factory is a class, training hooks too.
        message: Why it cannot be used, else empty.
        traceback: Python's, of the failure, else empty.
        notes: Warnings.
        seconds: Duration of the import.
    """

    kind: str
    name: str
    status: Status
    distribution: str | None
    version: str | None
    source: str | None = None
    summary: str = ""
    order: int = 0
    models: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return plain(attrs.asdict(self))


def listing() -> list[Listed]:
    """Import every installed plugin, each on its own, and describe it or why it cannot be used."""
    found, counts = points(), Counter[str]()
    lines: list[Listed] = []
    for point in found:
        kind, _, name = point.name.partition(".")
        owner = owner_of(point)
        counts[kind] += 1
        line = Listed(kind, name, "active", owner.distribution, owner.version, order=counts[kind])
        twins = [other for other in found if other.name == point.name and not blocked(other)]
        if reason := blocked(point):
            line = attrs.evolve(line, status="blocked", message=f"Blocked by {reason}.")
        elif len(twins) > 1:
            line = attrs.evolve(line, status="clash", message=str(clash(twins)))
        else:
            try:
                line = _describe(line, load(point))
            except PluginError as error:
                status: Status = "incompatible" if isinstance(error, Incompatible) else "failed"
                trace = "".join(format_exception(error))
                line = attrs.evolve(line, status=status, message=str(error), traceback=trace)
        lines.append(line)
    return lines


def _describe(line: Listed, loaded: Loaded) -> Listed:
    hooks = loaded.hooks
    if line.kind == "regularizers" and isinstance(loaded.offer.factory, type):
        hooks += implementations(loaded.offer.factory, Training, loaded.offer.owner)
    models: tuple[str, ...] = ()
    if line.kind == "builders":
        library_of(loaded.offer)  # raises if it could not be recorded in a blueprint
        models = models_of(loaded.offer) or ()
    return attrs.evolve(
        line,
        models=models,
        source=loaded.offer.source,
        summary=loaded.summary,
        hooks=tuple(one.hook for one in hooks),
        settings=loaded.offer.settings,
        notes=loaded.notes,
        seconds=loaded.seconds,
    )
