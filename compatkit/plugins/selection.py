"""Selection of a run's regularizers by its caller or recipe: weights, steps, settings, order."""

from __future__ import annotations

import graphlib
import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import attrs

from compatkit.errors import PluginError, UsageError
from compatkit.foundation.arguments import checks_arguments
from compatkit.hooks import Phase
from compatkit.plugins.isolation import suggestion

_INSTANCE = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,62}[a-z0-9])?")


@attrs.frozen
class RegularizerConfig:
    """Configuration of a regularizer of a run; created by ``use``.

    Attributes:
        name: ``"dcc"``, ``"regularizers.dcc"``, or ``"package:dcc"`` if several distributions
            provide a plugin of this name.
        weight: Factor of its losses, >= 0; 0 leaves it out.
        as_: Name of this instance, in logs, checkpoints, ``before`` and ``after``; the plugin's by default.
        phase: Steps of a task in which it is active.
        before: Instances that run after this one.
        after: Instances that run before this one.
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
            raise PluginError(f"A plugin's name is a string such as 'dcc'; got {self.name!r}.")
        set_field = object.__setattr__
        package, colon, plain = self.name.rpartition(":")
        set_field(self, "name", f"{package}{colon}{plain.removeprefix('regularizers.')}")
        set_field(self, "as_", self.as_ or self.name.rpartition(":")[2])
        if not isinstance(self.as_, str) or not _INSTANCE.fullmatch(self.as_):
            raise self._error(
                f"An instance name (as) has at most 64 letters a-z, digits and inner '_.-'; got {self.as_!r}."
            )
        is_number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not is_number or not 0 <= self.weight < math.inf:
            raise self._error(f"A weight is a finite number >= 0; got {self.weight!r}.")
        set_field(self, "weight", float(self.weight))
        for field, names in (("before", self.before), ("after", self.after)):
            listed = (names,) if isinstance(names, str) else names
            if not isinstance(listed, Sequence) or not all(isinstance(text, str) for text in listed):
                raise self._error(
                    f"before and after name other instances, as a string or a list; got {names!r}."
                )
            set_field(self, field, tuple(listed))
        set_field(self, "settings", dict(self.settings))

    def _error(self, message: str) -> PluginError:
        return PluginError(f"Plugin {self.name!r}: {message}", plugin=self.name)


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
) -> RegularizerConfig:
    """Select a regularizer, for example ``use("dcc", weight=0.5, start=1000)``.

    Args:
        name: Name of the plugin, as in ``RegularizerConfig``.
        weight: Factor of its losses, finite, >= 0; 0 leaves it out.
        as_: Name of this instance; needed if a run uses one plugin twice.
        start: First step of a task in which it is active.
        stop: First step in which it is no longer active; None for the end of the task.
        before: Instances that run after this one.
        after: Instances that run before this one.
        settings: Keyword arguments of the plugin's factory.

    Raises:
        PluginError: A value is invalid.
    """
    try:
        phase = Phase(start, stop)
    except UsageError as error:
        raise PluginError(f"Plugin {name!r}: {error}", plugin=name) from error
    return RegularizerConfig(name, weight, as_ or "", phase, before, after, settings)


def regularizer_config(value: str | RegularizerConfig | Mapping[str, Any]) -> RegularizerConfig:
    """Return a configuration from a name, a configuration, or a recipe table (``name``, ``weight``, ``as``, settings).

    Args:
        value: Name, configuration or table.

    Raises:
        PluginError: It is none of these, or a value is invalid.
    """
    if isinstance(value, RegularizerConfig):
        return value
    if isinstance(value, str):
        return use(value)
    if not isinstance(value, Mapping):
        raise PluginError(f"A regularizer is a name, use(...), or a table with a name; got {value!r}.")
    settings = dict(value)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise PluginError(f"A regularizer's table needs a name, such as name = 'dcc'; got {dict(value)!r}.")
    if "as" in settings:
        settings["as_"] = settings.pop("as")
    if not all(isinstance(key, str) for key in settings):
        raise PluginError(f"Plugin {name!r}: keys must be strings; got {list(settings)!r}.", plugin=name)
    return use(name, **settings)


def check_unique_names(wanted: Sequence[RegularizerConfig]) -> None:
    """Refuse two instances of the same name.

    Raises:
        PluginError: Two instances share a name; the message suggests ``as_``.
    """
    for left, right in combinations(wanted, 2):
        if left.as_ == right.as_:
            raise PluginError(
                f"Two plugins of this run are called {left.as_!r} ({left.name} and {right.name}). Rename one: "
                f"use({right.name!r}, as_='{left.as_}_2'), or as = '{left.as_}_2' in a recipe.",
                plugin=right.name,
            )


def ordered(active: Sequence[RegularizerConfig], dropped: Sequence[str]) -> list[RegularizerConfig]:
    """Sort the uses topologically by ``before`` and ``after``, and by instance name where both orders are allowed.

    Args:
        active: Uses with a weight above 0.
        dropped: Instances of weight 0, which ``before`` and ``after`` may name.

    Raises:
        PluginError: before or after names no instance of the run, or the order has a cycle.
    """
    by_name = {use.as_: use for use in active}
    earlier = {use.as_: by_name.keys() & set(use.after) for use in active}
    for use in active:
        for other in (*use.before, *use.after):
            if other not in by_name and other not in dropped:
                raise PluginError(
                    f"Plugin {use.as_!r}: before or after names {other!r}, which this run does not have."
                    f"{suggestion(other, by_name)} The instances of the run are {', '.join(sorted(by_name))}.",
                    plugin=use.name,
                )
        for other in by_name.keys() & set(use.before):
            earlier[other].add(use.as_)
    try:
        graphlib.TopologicalSorter(earlier).prepare()
    except graphlib.CycleError as error:
        cycle = " before ".join(error.args[1])
        raise PluginError(
            f"The order of the plugins has a cycle: {cycle}. Remove one of these before= or after=.",
            plugin=error.args[1][0],
        ) from error
    result: dict[str, RegularizerConfig] = {}
    while len(result) < len(by_name):
        name = min(name for name in by_name if name not in result and earlier[name] <= result.keys())
        result[name] = by_name[name]
    return list(result.values())
