"""Hooks of several plugins behind one guard: what three idle plugins cost a step is mostly guards of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compatkit.errors import PluginError
from compatkit.plugins.calls import Bound, attributed, check_batch, written, wrote

if TYPE_CHECKING:
    from compatkit.training.step import Batch


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


def views_chain(bounds: Sequence[Bound]) -> Callable[[Any, Batch], Batch]:
    """Return one call of ``compatkit_views`` of plugins, each of which sees what the one before it gave.

    A batch is looked at once for all who were given it: where it was written into, they are named together. The first
    step of a span looks after each of them, so that who always writes is named alone.

    The call raises PluginError: a hook failed, gave no batch, or one of them wrote into the batch that it was given.
    """

    def call(step: Any, batch: Batch) -> Batch:
        first, before = 0, written(batch)
        for place, one in enumerate(bounds):
            try:
                after = one.function(step, batch)
            except (Exception, SystemExit) as error:
                raise attributed(error, one.instance, "compatkit_views") from error
            if after is batch:
                continue
            if written(batch) != before:
                raise _written_by(bounds[first : place + 1])
            batch, first = check_batch(one.instance, after), place + 1
            before = written(batch)
        if written(batch) != before:
            raise _written_by(bounds[first:])
        return batch

    return call


def _written_by(given: Sequence[Bound]) -> PluginError:
    return wrote([one.instance for one in given], "compatkit_views")
