"""Cuts that this process has made before, so that a part is rebuilt without tracing its network again."""

from __future__ import annotations

import json
from typing import Any

from torch import nn

from compatkit.adapters.builders import versioned_builders
from compatkit.adapters.cutting.cut import CANONICAL, Sides, sides_of
from compatkit.adapters.cutting.planning import image_of
from compatkit.contracts.contract import Blueprint

LARGEST = 256
"""Cuts that a process remembers; the oldest is dropped first."""

_known: dict[tuple[Any, ...], Sides] = {}


def remembered_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return how the parts of a blueprint's network are made, from an earlier cut if there is one.

    Args:
        whole: The network of the blueprint.
        blueprint: Says where and how to cut; networks of plugins, whose code may change, are cut anew each time.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    cacheable = blueprint.network[0] in versioned_builders()
    key = _key(whole, blueprint) if cacheable else ()
    if cacheable and key in _known:
        return _known[key]
    sides = sides_of(whole, blueprint.cut, blueprint.approach, image_of(blueprint))
    if cacheable:
        while len(_known) >= LARGEST:
            _known.pop(next(iter(_known)), None)
        _known[key] = sides
    return sides


def forget() -> None:
    """Forget all cuts."""
    _known.clear()


def _key(whole: nn.Module, blueprint: Blueprint) -> tuple[Any, ...]:
    """Return all that a cut depends on: the blueprint, and the classes and settings of the traced modules."""
    traced = _traced_modules(whole, blueprint.cut)
    settings = [
        [
            path,
            list(module._modules),
            {
                name: repr(value)
                for name, value in vars(module).items()
                if name != "training" and isinstance(value, bool | int | float | str | None)
            },
        ]
        for path, module in traced
    ]
    cut = [*blueprint.network, dict(blueprint.kwargs), blueprint.cut, blueprint.approach]
    text = json.dumps([cut, blueprint.traced_size, settings], sort_keys=True, default=list)
    return text, *(type(module) for _, module in traced)


def _traced_modules(whole: nn.Module, cut: str) -> list[tuple[str, nn.Module]]:
    """Return the modules whose code is traced, by path, the whole network first."""
    names = [] if cut == CANONICAL else cut.split(".")[:-1]
    traced, holder = [("", whole)], whole
    for name in names:
        child = holder._modules.get(name)
        if child is None:
            break  # cutting says what is wrong
        traced.append((name, child))
        holder = child
    return traced
