"""Build networks without random initialization, for weights that are loaded right after."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from compatkit.adapters.functionmode import FunctionWatch

_DRAWS = {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.bernoulli_, Tensor.erfinv_}

_CONSTANT = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_"})
"""Buffers outside the state dict may be filled with these."""
_FILLS = ("_no_grad_trunc_normal_", "_no_grad_zero_", "_no_grad_fill_")
"""Functions of ``torch.nn.init`` that draw or set values without passing through a function mode."""
_skipping = threading.local()


class NoDraws(FunctionWatch):
    """Skips functions that would fill tensors with random numbers."""

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the call, or the tensor unchanged."""
        initial = getattr(func, "__module__", None) == "torch.nn.init" and func.__name__ not in _CONSTANT
        if initial or func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def without_draws(*, constants: bool = True, mode: NoDraws | None = None) -> Iterator[None]:
    """Skip random initialization in this context; every parameter must be loaded afterwards.

    Everything else is computed on the real device, so that buffers outside the state dict are right.

    Args:
        constants: Whether to still fill parameters with constants such as zeros and ones.
        mode: Function mode that also intercepts the calls; None only skips draws.
    """
    _install()
    before = getattr(_skipping, "skipped", ())
    _skipping.skipped = _FILLS[:1] if constants else _FILLS
    try:
        with mode or NoDraws():
            yield
    finally:
        _skipping.skipped = before


def _install() -> None:
    """Wrap torch's functions that draw a truncated normal or fill a constant, so that this thread can skip them.

    A truncated normal is drawn again until every value is within the bounds, which may never happen with uninitialized
    memory. The wrappers stay in place, so that threads that build at the same time cannot undo each other's.
    """
    for name in _FILLS:
        original = getattr(torch.nn.init, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(torch.nn.init, name, _skipping_wrapper(name, original))


def _skipping_wrapper(name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def wrapper(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if name in getattr(_skipping, "skipped", ()) and (name == _FILLS[0] or isinstance(tensor, Parameter)):
            return tensor
        return original(tensor, *args, **kwargs)

    return wrapper


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the CPU generator in this context and restore its state on exit; None changes nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
