"""Hooks of several plugins behind one guard: what three idle plugins cost a step is mostly guards of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compatkit.plugins.calls import Bound, attributed, views_guard


def after_chain(bounds: Sequence[Bound], hook: str) -> tuple[Callable[[Any], None], ...]:
    """Return one call of hooks that take the step alone, in their order; nothing where there are none.

    The call raises what a hook raised, as ``Bound.call`` would: with the name of its plugin.
    """
    if not bounds:
        return ()

    def call(step: Any) -> None:
        for one in bounds:
            try:
                one.function(step)
            except (Exception, SystemExit) as error:
                raise attributed(error, one.instance, hook) from error

    return (call,)


def views_chain(bounds: Sequence[Bound]) -> Callable[..., Any]:
    """Return one call of ``compatkit_views`` of plugins, in their order; see ``views_guard``."""
    return views_guard([(one.instance, one.function) for one in bounds])
