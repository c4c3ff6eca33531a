"""Cuts that this process has made before, so that a part is rebuilt without tracing its network again."""

from __future__ import annotations

from torch import nn

from compatkit.adapters.builders import versioned_builders
from compatkit.adapters.cutting.cut import Sides, sides_of
from compatkit.adapters.cutting.planning import image_of
from compatkit.contracts.contract import Blueprint
from compatkit.foundation.codec import dumps

LARGEST = 256
"""Cuts that a process remembers; the oldest is dropped first."""

_known: dict[bytes, Sides] = {}


def remembered_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return how the parts of a blueprint's network are made, from an earlier cut if there is one.

    Args:
        whole: As built from the blueprint.
        blueprint: Says where and how to cut; networks of plugins, whose code may change, are cut anew each time.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    key = dumps(
        [blueprint.network, blueprint.kwargs, blueprint.cut, blueprint.approach, blueprint.traced_size]
    )
    sides = _known.get(key)
    if sides is None:
        sides = sides_of(whole, blueprint.cut, blueprint.approach, image_of(blueprint))
        if blueprint.network[0] in versioned_builders():
            while len(_known) >= LARGEST:
                _known.pop(next(iter(_known)), None)
            _known[key] = sides
    return sides


def forget() -> None:
    """Forget all cuts."""
    _known.clear()
