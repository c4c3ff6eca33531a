"""Cache of cuts and checks in this process, so that a network is traced and checked once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

from torch import nn

from compatkit.adapters.builders import versioned_builders
from compatkit.adapters.cutting.cut import CANONICAL, Sides, image_of, sides_of
from compatkit.contracts.contract import Blueprint
from compatkit.foundation.codec import dumps

LARGEST = 256
"""Limit on the number of cached results; the oldest is dropped first."""

Result = TypeVar("Result")

_known: dict[tuple[Any, ...], Any] = {}


def remembered_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return the sides of a blueprint's network, from an earlier cut if there is one.

    Args:
        whole: Network built from the blueprint.
        blueprint: Blueprint with cut and approach.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    cut = [blueprint.network, blueprint.kwargs, blueprint.cut, blueprint.approach, blueprint.traced_size]
    key = (dumps(cut), *_settings(whole, blueprint.cut))
    return remembered(
        blueprint, key, lambda: sides_of(whole, blueprint.cut, blueprint.approach, image_of(blueprint))
    )


def remembered(blueprint: Blueprint, key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
    """Return what an earlier call computed for this key, else compute it.

    Args:
        blueprint: Blueprint of the network. Networks of plugins, whose code may change, are not cached.
        key: Everything that the result depends on.
        compute: Returns the result; errors are not cached.
    """
    if key in _known:
        return _known[key]
    result = compute()
    if blueprint.network[0] in versioned_builders():
        while len(_known) >= LARGEST:
            _known.pop(next(iter(_known)), None)
        _known[key] = result
    return result


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
