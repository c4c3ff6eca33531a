"""The regularizers of a run as its caller or recipe states them: which, weights, steps, settings, order."""

from __future__ import annotations

import graphlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.errors import PluginError, UsageError
from compatkit.foundation.arguments import checks_arguments
from compatkit.hooks import Phase
from compatkit.plugins.isolation import suggestion
from compatkit.plugins.settings import plain

_INSTANCE = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,62}[a-z0-9])?")


@attrs.frozen
class Use:
    """A regularizer of a run.

    Attributes:
        name: What the plugin is registered as: ``"dcc"``, with its kind ``"regularizers.dcc"``, or ``"package:dcc"``
            where several distributions have one of this name.
        weight: Factor of its losses, >= 0; at 0 it is left out, as if the run did not name it.
        as_: Name of this instance, in logs, checkpoints, ``before`` and ``after``; the plugin's by default.
        phase: Steps of a task in which it is active.
        before: Instances that come after this one.
        after: Instances that come before this one.
        settings: Keyword arguments of its factory.
    """

    name: str
    weight: float = 1.0
    as_: str = ""
    phase: Phase = attrs.field(factory=Phase)
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PluginError(f"A plugin's name is a text such as 'dcc'; got {self.name!r}.")
        put = object.__setattr__
        package, colon, plain = self.name.rpartition(":")
        put(self, "name", f"{package}{colon}{plain.removeprefix('regularizers.')}")
        put(self, "as_", self.as_ or self.name.rpartition(":")[2])
        if not isinstance(self.as_, str) or not _INSTANCE.fullmatch(self.as_):
            raise self._wrong(
                f"An instance name (as) is lower-case letters, digits and '_.-'; got {self.as_!r}."
            )
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)):
            raise self._wrong(f"A weight is a number; got {self.weight!r}.")
        if not 0 <= self.weight < math.inf:
            raise self._wrong(
                f"A weight is finite and not negative; got {self.weight!r}. Use 0 to leave the plugin out."
            )
        put(self, "weight", float(self.weight))
        for word in ("before", "after"):
            names = getattr(self, word)
            listed = (names,) if isinstance(names, str) else names
            if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
                raise self._wrong(
                    f"before and after name other instances: a text or a list of texts; got {names!r}."
                )
            put(self, word, tuple(listed))
        if not isinstance(self.settings, Mapping) or not all(isinstance(one, str) for one in self.settings):
            raise self._wrong(f"Settings are a mapping from names to values; got {self.settings!r}.")
        put(self, "settings", dict(self.settings))

    def _wrong(self, message: str) -> PluginError:
        return PluginError(f"Plugin {self.name!r}: {message}", plugin=self.name)

    def to_json(self) -> dict[str, Any]:
        """Return what ``as_use`` takes: plain JSON values, only what differs from the defaults."""
        said: dict[str, Any] = {"name": self.name, "weight": self.weight}
        if self.as_ != self.name:
            said["as"] = self.as_
        if self.phase.start:
            said["start"] = self.phase.start
        if self.phase.stop is not None:
            said["stop"] = self.phase.stop
        for word, names in (("before", self.before), ("after", self.after)):
            if names:
                said[word] = list(names)
        return said | plain(self.settings)


@checks_arguments
def use(
    name: str,
    /,
    *,
    weight: float = 1.0,
    as_: str | None = None,
    start: int = 0,
    stop: int | None = None,
    before: str | Sequence[str] = (),
    after: str | Sequence[str] = (),
    **settings: Any,
) -> Use:
    """Ask for a regularizer, for example ``use("dcc", weight=0.5, start=1000)``.

    Args:
        name: What the plugin is registered as.
        weight: Factor of its losses, finite, >= 0; 0 leaves it out.
        as_: Name of this instance; needed where a run uses one plugin twice.
        start: First step of a task in which it is active.
        stop: First step in which it no longer is; None for the end of the run.
        before: Instances that come after this one.
        after: Instances that come before this one.
        settings: Keyword arguments of the plugin's factory.

    Raises:
        PluginError: A value is not usable.
    """
    try:
        phase = Phase(start, stop)
    except UsageError as error:
        raise PluginError(f"Plugin {name!r}: {error}", plugin=name) from error
    return Use(name, weight, as_ or "", phase, before, after, settings)


def as_use(said: str | Use | Mapping[str, Any]) -> Use:
    """Return a Use from a name, a Use, or a table of a recipe (``name``, ``weight``, ``as``, ... , settings).

    Raises:
        PluginError: It is none of these, or a value is not usable.
    """
    if isinstance(said, Use):
        return said
    if isinstance(said, str):
        return use(said)
    if not isinstance(said, Mapping):
        raise PluginError(f"A regularizer is a name, use(...), or a table with a name; got {said!r}.")
    given = dict(said)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise PluginError(
            f"A regularizer's table needs a name, for example name = 'dcc'; got {dict(said)!r}."
        )
    if "as" in given:
        given["as_"] = given.pop("as")
    if not all(isinstance(key, str) for key in given):
        raise PluginError(f"Plugin {name!r}: settings are named by texts; got {list(given)!r}.", plugin=name)
    return use(name, **given)


def refuse_twins(wanted: Sequence[Use]) -> None:
    """Raise for two instances of one name.

    Raises:
        PluginError: With the remedy, ``as_``.
    """
    seen: dict[str, Use] = {}
    for one in wanted:
        if one.as_ in seen:
            raise PluginError(
                f"Two plugins of this run are called {one.as_!r} ({seen[one.as_].name} and {one.name}). "
                f"Give one another name: use({one.name!r}, as_='{one.as_}_2'), "
                f"or as = '{one.as_}_2' in a recipe.",
                plugin=one.name,
            )
        seen[one.as_] = one


def ordered(active: Sequence[Use], dropped: Sequence[str]) -> list[Use]:
    """Return the uses by ``before`` and ``after``, then by instance name; never by installation.

    Args:
        active: Uses with a weight.
        dropped: Instances of weight 0, which before and after may name too.

    Raises:
        PluginError: before or after names no instance of the run, or the order is a circle.
    """
    named = {one.as_: one for one in active}
    earlier: dict[str, set[str]] = {name: set() for name in named}
    for one in active:
        for other in (*one.before, *one.after):
            if other not in named and other not in dropped:
                raise PluginError(
                    f"Plugin {one.as_!r}: before or after names {other!r}, which this run does not have."
                    f"{suggestion(other, named)} Its instances are {', '.join(sorted(named))}.",
                    plugin=one.name,
                )
        for other in named.keys() & set(one.before):
            earlier[other].add(one.as_)
        earlier[one.as_] |= named.keys() & set(one.after)
    try:
        graphlib.TopologicalSorter(earlier).prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(error.args[1])
        raise PluginError(
            f"The order of the plugins is a circle: {circle}. Drop one before= or after= of these.",
            plugin=error.args[1][0],
        ) from error
    placed: dict[str, Use] = {}
    while len(placed) < len(named):
        name = min(name for name in named if name not in placed and earlier[name] <= placed.keys())
        placed[name] = named[name]
    return list(placed.values())
