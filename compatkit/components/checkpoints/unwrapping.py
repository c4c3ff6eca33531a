"""Find the state dict inside what training programs save, and report what was used and left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from compatkit.errors import UsageError, type_of

PLAIN = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "network",
    "net",
    "weights",
    "params",
)
"""Entries that commonly contain a network's state dict, the most common first."""
AVERAGED = ("model_ema", "state_dict_ema", "ema_state_dict", "ema", "params_ema")
"""Entries with averaged weights, used if there is nothing else."""
PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.")
"""Prefixes added by DistributedDataParallel, torch.compile and Lightning."""
DEEPEST = 8
NAMED = 8
"""Most entries listed in a message."""


@attrs.frozen
class Unwrapped:
    """A state dict found in a checkpoint.

    Attributes:
        tensors: Tensors by name.
        notes: Notes on what was used and left out, one sentence each, for people and for the record.
    """

    tensors: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def unwrapped(value: Any, is_tensor: Callable[[Any], bool], *, key: str | None = None) -> Unwrapped:
    """Return the state dict inside a checkpoint.

    Args:
        value: Contents of the file: a state dict, or mappings around one.
        is_tensor: Predicate for tensors.
        key: Entry such as ``"model_ema"``, or several joined by ``/``; None for the common one.

    Raises:
        UsageError: There is no state dict, the choice is ambiguous, or the entry does not exist.
    """
    notes: list[str] = []
    steps = key.split("/") if key else []
    for depth in range(DEEPEST):
        if not isinstance(value, Mapping):
            break
        step = steps.pop(0) if steps else None if key and not steps else _step(value, is_tensor, notes)
        if step is None:
            return _cleaned(value, is_tensor, notes)
        if step not in value:
            raise UsageError(
                f"there is no entry {step!r:.80}; at depth {depth} there are {_listed(value)}.", subject=step
            )
        notes.append(f"took the entry {step!r}{_rest(value, step)}")
        value = value[step]
    what = "mappings deeper than expected" if isinstance(value, Mapping) else f"{type_of(value)}"
    raise UsageError(
        f"expected a state dict, a mapping from names to tensors, got {what}. Save model.state_dict()."
    )


def _step(value: Mapping[Any, Any], is_tensor: Callable[[Any], bool], notes: list[str]) -> str | None:
    """Return the entry to descend into; None if the mapping itself is the state dict."""
    inner = [name for name, entry in value.items() if isinstance(name, str) and _holds(entry, is_tensor)]
    for names in (PLAIN, AVERAGED):
        matches = [name for name in names if name in inner]
        if matches:
            others = [name for name in (*PLAIN, *AVERAGED) if name in inner and name != matches[0]]
            if others:
                notes.append(f"there are also weights in {', '.join(map(repr, others))}; name one as key")
            return matches[0]
    if any(is_tensor(entry) for entry in value.values()):
        return None
    if len(inner) == 1:
        return inner[0]
    if inner:
        raise UsageError(
            f"{len(inner)} entries are possible: {', '.join(map(repr, inner[:NAMED]))}. Name one of them as key.",
            subject=inner,
        )
    raise UsageError(f"no entry holds tensors; there are {_listed(value)}. Save model.state_dict().")


def _holds(value: Any, is_tensor: Callable[[Any], bool], depth: int = 0) -> bool:
    """Return whether a value is a mapping that contains tensors, directly or in common entries."""
    if not isinstance(value, Mapping) or depth > DEEPEST:
        return False
    return any(is_tensor(entry) for entry in value.values()) or any(
        _holds(value[name], is_tensor, depth + 1) for name in (*PLAIN, *AVERAGED) if name in value
    )


def _cleaned(value: Mapping[Any, Any], is_tensor: Callable[[Any], bool], notes: list[str]) -> Unwrapped:
    tensors = {name: entry for name, entry in value.items() if isinstance(name, str) and is_tensor(entry)}
    rest = {name: entry for name, entry in value.items() if name not in tensors}
    if not tensors:
        raise UsageError(f"no entry holds tensors; there are {_listed(value)}. Save model.state_dict().")
    if rest:
        notes.append(f"left out what is no tensor: {_listed(rest)}")
    return Unwrapped(tensors, tuple(notes))


def stripped(names: Mapping[str, Any], own: Mapping[str, Any]) -> Unwrapped:
    """Return the tensors without wrapper prefixes, as far as the network's names require.

    Args:
        names: Tensors by name.
        own: Tensors of the network by name.
    """
    tensors, notes = dict(names), list[str]()
    for _ in range(DEEPEST):
        if own.keys() & tensors.keys():
            break  # some names fit: the prefix belongs to the names
        prefix = next(
            (candidate for candidate in PREFIXES if any(name.startswith(candidate) for name in tensors)), None
        )
        if prefix is None:
            break
        rest = [name for name in tensors if not name.startswith(prefix)]
        tensors = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        notes.append(f"took {prefix!r} off the names")
        if rest:
            notes.append(f"left out what does not begin so: {_listed(rest)}")
    return Unwrapped(tensors, tuple(notes))


def _rest(value: Mapping[Any, Any], step: str) -> str:
    others = [name for name in value if name != step]
    return f", left out {_listed(others)}" if others else ""


def _listed(names: Any) -> str:
    shown = [f"{name!r:.60}" for name in list(names)[:NAMED]]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(shown)}{more}" if shown else "none"
