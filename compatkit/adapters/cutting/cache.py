"""Cache of cuts in this process, so that a part is rebuilt without tracing its network again."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import nn

from compatkit.adapters.builders import versioned_builders
from compatkit.adapters.cutting.cut import CANONICAL, Sides, sides_of
from compatkit.adapters.cutting.planning import image_of
from compatkit.contracts.contract import Blueprint
from compatkit.foundation.codec import dumps

LARGEST = 256
"""Limit on the number of cached cuts; the oldest is dropped first."""

_known: dict[tuple[Any, ...], Sides] = {}


def remembered_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return the sides of a blueprint's network, from an earlier cut if there is one.

    Args:
        whole: Network built from the blueprint.
        blueprint: Blueprint with cut and approach. Networks of plugins, whose code may change, are not cached.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    cut = [blueprint.network, blueprint.kwargs, blueprint.cut, blueprint.approach, blueprint.traced_size]
    key = (dumps(cut), *_settings(whole, blueprint.cut))
    sides = _known.get(key)
    if sides is None:
        sides = sides_of(whole, blueprint.cut, blueprint.approach, image_of(blueprint))
        if blueprint.network[0] in versioned_builders():
            while len(_known) >= LARGEST:
                _known.pop(next(iter(_known)), None)
            _known[key] = sides
    return sides


def forget() -> None:
    """Clear the cache."""
    _known.clear()


def _settings(whole: nn.Module, cut: str) -> list[Any]:
    """Return classes and settings of the modules that are traced; timm's global switches change some of them."""
    holders = [] if cut == CANONICAL else cut.split(".")[:-1]
    paths = {"", *accumulate(holders, "{}.{}".format)}
    return [
        (
            type(module),
            *module._modules,
            *((name, repr(value)) for name, value in vars(module).items() if _is_plain(name, value)),
        )
        for path, module in whole.named_modules(remove_duplicate=False)
        if path in paths
    ]


def _is_plain(name: str, value: object) -> bool:
    return name != "training" and isinstance(value, bool | int | float | str | None)
