"""The order of a run's plugins: by what they say of each other, then by name; never by installation."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Sequence

from compatkit.errors import PluginError
from compatkit.plugins.owners import suggestion
from compatkit.plugins.uses import Use


def refuse_twins(wanted: Sequence[Use]) -> None:
    """Refuse two instances of one name.

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
    """Return the uses ordered by before and after, then by instance name.

    Args:
        active: Those that take part.
        dropped: Instances of weight 0; to name them in before or after is no error.

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
        for other in one.before:
            if other in named:
                earlier[other].add(one.as_)
        earlier[one.as_] |= {other for other in one.after if other in named}
    sorter = graphlib.TopologicalSorter(earlier)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(error.args[1])
        raise PluginError(
            f"The order of the plugins is a circle: {circle}. Drop one before= or after= of these.",
            plugin=error.args[1][0],
        ) from error
    ready, result = list(sorter.get_ready()), list[Use]()
    heapq.heapify(ready)
    while ready:
        name = heapq.heappop(ready)
        result.append(named[name])
        sorter.done(name)
        for freed in sorter.get_ready():
            heapq.heappush(ready, freed)
    return result
