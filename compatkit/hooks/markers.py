"""Markers of hooks: what declares one, what implements one, its side effects and its precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import pluggy

from compatkit.foundation.limits import OneOf

PROJECT = "compatkit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Effect = Literal["pure", "device", "host"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
Function = TypeVar("Function", bound=Callable[..., Any])


def effect(kind: Effect) -> Callable[[Function], Function]:
    """Declare the side effects of a training hook.

    ``pure``: tensors in, tensors out, no host synchronization; may be compiled. A pure view draws random numbers only
    from ``step.rng``, so torch's global generators need not be seeded for it. ``device``: changes device buffers in
    place; may be captured, not compiled. ``host`` (the default): Python side effects; keeps the run eager.

    Raises:
        UsageError: ``kind`` is not one of these.
    """
    OneOf(EFFECTS).check("effect", kind=kind)

    def mark(function: Function) -> Function:
        function.compatkit_effect = kind  # type: ignore[attr-defined]
        return function

    return mark


def autocast(function: Function) -> Function:
    """Run ``compatkit_losses`` in the precision of the run's forward passes, such as bf16.

    Without it the hook runs in float32: ``step.features``, ``logits``, ``views`` and ``layers`` are cast up, and
    networks that it calls run in float32 too. Mark hooks that call heads or extractors, since bf16 saves time there,
    and compute their losses from ``logits.float()``.
    """
    function.compatkit_autocast = True  # type: ignore[attr-defined]
    return function
