"""Find the state dict in a checkpoint, and note which entries were used and left out."""

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
MAX_DEPTH = 8
MAX_LISTED = 8
"""Limit of entries listed in a message."""


@attrs.frozen
class Unwrapped:
    """A state dict found in a checkpoint.

    Attributes:
        tensors: Tensors by name.
        notes: Notes on entries used and left out, one sentence each.
    """

    tensors: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def unwrapped(value: Any, is_tensor: Callable[[Any], bool], *, key: str | None = None) -> Unwrapped:
    """Return the state dict inside a checkpoint.

    Args:
        value: Content of the file: a state dict, or nested mappings with one.
        is_tensor: Returns whether a value is a tensor.
        key: Entry such as ``"model_ema"``, or a path of entries joined by ``/``; None to search the usual entries.

    Raises:
        UsageError: There is no state dict, the choice is ambiguous, or the entry does not exist.
    """
    notes: list[str] = []
    steps = key.split("/") if key else []
    for depth in range(MAX_DEPTH):
        if not isinstance(value, Mapping):
            break
        step = steps.pop(0) if steps else None if key and not steps else _next_entry(value, is_tensor, notes)
        if step is None:
            return _without_other_entries(value, is_tensor, notes)
        if step not in value:
            raise UsageError(
                f"no entry {step!r:.80}; at depth {depth} there are {_listed(value)}.", subject=step
            )
        notes.append(f"used the entry {step!r}{_left_out(value, step)}")
        value = value[step]
    actual = f"mappings nested more than {MAX_DEPTH} deep" if isinstance(value, Mapping) else type_of(value)
    raise UsageError(f"expected a state dict (tensors by name), got {actual}. Save model.state_dict().")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "untyped_storage")


def _next_entry(value: Mapping[Any, Any], is_tensor: Callable[[Any], bool], notes: list[str]) -> str | None:
    """Return the entry to descend into; None if the mapping itself is the state dict."""
    inner = [
        name for name, entry in value.items() if isinstance(name, str) and _contains_tensors(entry, is_tensor)
    ]
    for names in (PLAIN, AVERAGED):
        matches = [name for name in names if name in inner]
        if matches:
            others = [name for name in (*PLAIN, *AVERAGED) if name in inner and name != matches[0]]
            if others:
                notes.append(f"also found weights in {', '.join(map(repr, others))}; key selects one")
            return matches[0]
    if any(is_tensor(entry) for entry in value.values()):
        return None
    if len(inner) == 1:
        return inner[0]
    if inner:
        raise UsageError(
            f"{len(inner)} entries contain tensors: {', '.join(map(repr, inner[:MAX_LISTED]))}. Select one with key.",
            subject=inner,
        )
    raise _no_tensors(value)


def _no_tensors(value: Mapping[Any, Any]) -> UsageError:
    return UsageError(f"no entry contains tensors; there are {_listed(value)}. Save model.state_dict().")


def _contains_tensors(value: Any, is_tensor: Callable[[Any], bool], depth: int = 0) -> bool:
    """Return whether a value is a mapping with tensors, directly or in the usual entries."""
    if not isinstance(value, Mapping) or depth > MAX_DEPTH:
        return False
    return any(is_tensor(entry) for entry in value.values()) or any(
        _contains_tensors(value[name], is_tensor, depth + 1) for name in (*PLAIN, *AVERAGED) if name in value
    )


def _without_other_entries(
    value: Mapping[Any, Any], is_tensor: Callable[[Any], bool], notes: list[str]
) -> Unwrapped:
    tensors = {name: entry for name, entry in value.items() if isinstance(name, str) and is_tensor(entry)}
    rest = {name: entry for name, entry in value.items() if name not in tensors}
    if not tensors:
        raise _no_tensors(value)
    if rest:
        notes.append(f"left out entries that are not tensors: {_listed(rest)}")
    return Unwrapped(tensors, tuple(notes))


def stripped(names: Mapping[str, Any], own: Mapping[str, Any]) -> Unwrapped:
    """Return the tensors, without wrapper prefixes if the network's names have none.

    Args:
        names: Tensors by name.
        own: Tensors of the network by name.
    """
    tensors, notes = dict(names), list[str]()
    for _ in range(MAX_DEPTH):
        if own.keys() & tensors.keys():
            break  # some names match: the prefix is part of the names
        prefix = next(
            (candidate for candidate in PREFIXES if any(name.startswith(candidate) for name in tensors)), None
        )
        if prefix is None:
            break
        rest = [name for name in tensors if not name.startswith(prefix)]
        tensors = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        notes.append(f"removed the prefix {prefix!r}")
        if rest:
            notes.append(f"left out tensors without this prefix: {_listed(rest)}")
    return Unwrapped(tensors, tuple(notes))


def _left_out(value: Mapping[Any, Any], step: str) -> str:
    others = [name for name in value if name != step]
    return f", left out {_listed(others)}" if others else ""


def _listed(names: Any) -> str:
    shown = [f"{name!r:.60}" for name in list(names)[:MAX_LISTED]]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(shown)}{more}" if shown else "none"
