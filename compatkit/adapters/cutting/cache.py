"""Cache of cuts and checks, so that a network is traced once in a process and checked once on a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from torch import nn

from compatkit.adapters.builders import BUILT_IN, versioned_builders, versions
from compatkit.adapters.cutting.cut import CANONICAL, Sides, image_of, sides_of
from compatkit.contracts.contract import Blueprint
from compatkit.foundation.cache import above
from compatkit.foundation.codec import digest, dumps
from compatkit.registry.local_cache import LocalCache

MAX_CACHED = 256
"""Cached results at most; the oldest is dropped first."""

Result = TypeVar("Result")

_cache: dict[tuple[Any, ...], Any] = {}


def cached_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return the builders of both parts of a blueprint's network, from the cache if possible.

    Args:
        whole: Network built from the blueprint.
        blueprint: Blueprint with cut and approach.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    cut = [blueprint.network, blueprint.kwargs, blueprint.cut, blueprint.approach, blueprint.traced_size]
    key = (dumps(cut), *_settings(whole, blueprint.cut))
    return cached(
        [blueprint], key, lambda: sides_of(whole, blueprint.cut, blueprint.approach, image_of(blueprint))
    )


def cached(blueprints: Sequence[Blueprint], key: tuple[Any, ...], compute: Callable[[], Result]) -> Result:
    """Return the cached result for a key, or compute it.

    Results for networks of plugins are not cached, as their code may change.

    Args:
        blueprints: Blueprints of all networks that the result depends on.
        key: All values that the result depends on.
        compute: Function that returns the result; errors are not cached.

    Returns:
        Result of ``compute``.
    """
    if key in _cache:
        return _cache[key]
    result = compute()
    if {blueprint.network[0] for blueprint in blueprints} <= set(versioned_builders()):
        while len(_cache) >= MAX_CACHED:
            _cache.pop(next(iter(_cache)), None)
        _cache[key] = result
    return result


def check_once(blueprints: Sequence[Blueprint], what: str, values: Any, check: Callable[[], None]) -> None:
    """Run a check of networks unless it passed before on this machine, with the installed versions of all libraries.

    Networks whose code may change without a version are checked each time: those of plugins, and those that a program
    registers with timm.

    Args:
        blueprints: Blueprints of all networks that the result depends on.
        what: Name of the check.
        values: All other values that the result depends on, for ``dumps``.
        check: The check; it raises if it fails, which is not remembered.
    """
    builders = [blueprint.network[0] for blueprint in blueprints]
    installed = versions(sorted({*builders}))
    if installed is None or any(
        builder == BUILT_IN and not _is_timms(blueprint.model)
        for builder, blueprint in zip(builders, blueprints, strict=True)
    ):
        check()
        return
    fact = f"{what} {digest(dumps([*blueprints, values]))} {installed}"

    def unless_proved() -> None:
        memory = LocalCache(above())
        if not memory.is_proved(fact):
            check()
            memory.remember_proved(fact)

    cached(blueprints, (fact,), unless_proved)


def _is_timms(model: str) -> bool:
    from compatkit.adapters.timm import is_bundled

    return is_bundled(model)


def forget() -> None:
    """Clear the cache."""
    _cache.clear()


def _settings(whole: nn.Module, cut: str) -> list[Any]:
    """Return classes and settings of the traced modules; timm's global switches change some of them."""
    parents = [] if cut == CANONICAL else cut.split(".")[:-1]
    paths = {"", *accumulate(parents, "{}.{}".format)}
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
