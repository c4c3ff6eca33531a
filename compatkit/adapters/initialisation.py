"""Build networks without the cost of random weights that are overwritten at once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWS = {
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.exponential_,
    Tensor.bernoulli_,
    Tensor.erfinv_,
}

_CONSTANT = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_"})
"""Buffers outside the state dict may be filled with these."""
_TRUNCATED = "_no_grad_trunc_normal_"
_skipping = threading.local()


class _NoDraws(TorchFunctionMode):
    """Leaves tensors as they are where random numbers would be drawn into them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        initial = getattr(func, "__module__", None) == "torch.nn.init" and func.__name__ not in _CONSTANT
        if initial or func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def without_draws() -> Iterator[None]:
    """Skip random initialisation inside; every parameter must be loaded afterwards.

    Everything else is computed on the real device, so that buffers outside the state dict are right.
    """
    _install()
    before, _skipping.active = getattr(_skipping, "active", False), True
    try:
        with _NoDraws():
            yield
    finally:
        _skipping.active = before


def _install() -> None:
    """Let torch ask this thread before it draws a truncated normal.

    It draws again until every value lies between the bounds, which with whatever is in memory may never come true.
    The question stays in place, so that threads that build at the same time cannot undo each other's.
    """
    original = getattr(torch.nn.init, _TRUNCATED, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def ask(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor if getattr(_skipping, "active", False) else original(tensor, *args, **kwargs)

    setattr(torch.nn.init, _TRUNCATED, ask)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw from ``seed`` on the CPU inside and give the global random state back; None changes nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
