"""Run a plugin's code without letting it change the program's random numbers or number formats."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs


class PluginWarning(UserWarning):
    """A plugin changed global state while it was imported or made; the state was put back."""


@attrs.frozen(eq=False)
class _Kept:
    """One piece of global state: how to read, compare and put it back."""

    what: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    same: Callable[[Any, Any], bool]
    before: Any


@contextmanager
def state_kept(*, drawing: bool = False) -> Iterator[list[str]]:
    """Put back random states and torch's defaults that the body changes.

    numpy and torch are looked at only where they are imported already.

    Args:
        drawing: The body is to draw from torch's random state, which is left as the body leaves it.

    Yields:
        A list that holds, after the body, what was changed and put back.
    """
    changed: list[str] = []
    had_torch, kept = "torch" in sys.modules, _snapshot(drawing)
    try:
        yield changed
    finally:
        for one in kept:
            if not one.same(one.before, one.read()):
                one.write(one.before)
                changed.append(one.what)
        if not had_torch and _restore_dtype():
            changed.append("torch's default dtype")


def _restore_dtype() -> bool:
    """Put back the default dtype of a torch that the body imported first."""
    torch = sys.modules.get("torch")
    if torch is None or torch.get_default_dtype() == torch.float32:
        return False
    torch.set_default_dtype(torch.float32)
    return True


def _snapshot(drawing: bool) -> list[_Kept]:
    def keep(what: str, read: Callable[[], Any], write: Callable[[Any], Any], same: Any = _equal) -> None:
        kept.append(_Kept(what, read, write, same, read()))

    kept: list[_Kept] = []
    keep("Python's random state", random.getstate, random.setstate)
    if "numpy" in sys.modules:
        import numpy as np

        keep(
            "numpy's random state",
            np.random.get_state,
            np.random.set_state,
            lambda one, other: all(map(np.array_equal, one, other)),
        )
    if "torch" in sys.modules:
        import torch

        if not drawing:
            keep("torch's random state", torch.get_rng_state, torch.set_rng_state, torch.equal)
        if not drawing and torch.cuda.is_available() and torch.cuda.is_initialized():
            keep(
                "torch's random state on the accelerator",
                torch.cuda.get_rng_state_all,
                torch.cuda.set_rng_state_all,
                lambda one, other: all(map(torch.equal, one, other)),
            )
        keep("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
        keep("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)
        keep("torch's thread count", torch.get_num_threads, torch.set_num_threads)
        keep(
            "torch's deterministic algorithms",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        )
        keep(
            "torch's float32 matrix product precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        )
    return kept


def _equal(one: Any, other: Any) -> bool:
    return one == other
