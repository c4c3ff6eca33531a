"""The one check of tensors that come from outside: names, shapes, kinds of numbers, and the values themselves.

Every door that takes weights passes here: initial weights of a task, adopted checkpoints, parts that are registered or
published, frozen parts, checkpoints of runs, and what plugins set before the first step. Each fault is named as itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import IntegrityError, near, type_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHOWN = 3
"""Names of each kind listed in a message."""
COMPARED = 2000
"""Most names for which similar ones are searched: comparing all with all takes minutes."""
VARIANCE, COUNT = "running_var", "num_batches_tracked"
"""Last parts of the names of tensors that hold variances, and counts of batches, in torch and in timm."""
UNUSABLE = "No network can use it. Take weights from before the run that made them failed."
"""Advice for weights that are brought."""
NOT_PUBLISHED = "The component is not published. Train again with a lower learning rate or in float32."
"""Advice for parts that are published."""


@attrs.frozen
class WeightsMismatch:
    """Differences between tensors and a network; falsy if there are none.

    Attributes:
        missing: Names that only the network has.
        unknown: Names that only the tensors have.
        shapes: Name, actual and expected shape.
        kinds: Name, actual and expected kind of number, where one cannot hold the other.
    """

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    kinds: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.shapes or self.kinds)

    def sentences(self) -> Iterator[str]:
        """Yield one sentence per kind of difference, with similar names for missing ones."""
        few = len(self.missing) + len(self.unknown) <= COMPARED
        if self.missing:
            close = (near(name, self.unknown, 1, 0.8) if few else [] for name in self.missing)
            listed = [
                f"{name} (there is {similar[0]})" if similar else name
                for name, similar in zip(self.missing, close, strict=True)
            ]
            yield f"{_count(self.missing, 'tensor is', 'tensors are')} missing: {_some(listed)}"
        if self.unknown:
            yield f"{_count(self.unknown, 'is', 'are')} not known to it: {_some(self.unknown)}"
        if self.shapes:
            listed = [
                f"{name} is {_by(actual)} where {_by(expected)} is expected"
                for name, actual, expected in self.shapes
            ]
            yield f"{_count(self.shapes, 'has', 'have')} another shape: {_some(listed)}"
        if self.kinds:
            listed = [
                f"{name} is {actual} where {expected} is expected" for name, actual, expected in self.kinds
            ]
            yield f"{_count(self.kinds, 'is', 'are')} of another kind: {_some(listed)}"


def compare(tensors: Mapping[str, Any], own: Mapping[str, Tensor]) -> WeightsMismatch:
    """Return the differences between tensors and a network; other floating-point precisions fit.

    Args:
        tensors: Tensors by name.
        own: The network's state dict.
    """
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    kinds: list[tuple[str, str, str]] = []
    for name in (name for name in own if name in tensors):
        actual, wanted = _kind(tensors[name]), _kind(own[name])
        empty = actual[0] != "none" and tensors[name].is_meta and not own[name].is_meta
        if empty:
            kinds.append((name, f"{actual[1]} without data (meta)", wanted[1]))
        elif actual[0] != wanted[0]:
            kinds.append((name, actual[1], wanted[1]))
        elif tuple(tensors[name].shape) != tuple(own[name].shape):
            shapes.append((name, tuple(tensors[name].shape), tuple(own[name].shape)))
    missing = tuple(name for name in own if name not in tensors)
    unknown = tuple(str(name) for name in tensors if name not in own)
    return WeightsMismatch(missing, unknown, tuple(shapes), tuple(kinds))


def _kind(value: Any) -> tuple[str, str]:
    """Return the kind of a value's numbers, kinds that hold each other under one word, and its name for messages."""
    import torch

    if not isinstance(value, torch.Tensor):
        return "none", type_of(value)
    name = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided:
        return "sparse", f"sparse {name}"
    if value.is_quantized:
        return "quantized", name
    return "complex" if value.is_complex() else "float" if value.is_floating_point() else "whole", name


def check_values(
    state: Mapping[str, Tensor],
    owner: str,
    advice: str,
    own: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise for the first tensor whose values no network can use.

    Args:
        state: Tensors by name; tensors without data (``meta``) are skipped.
        owner: Reference, path or task, for the message.
        advice: Last sentence of the message.
        own: Tensors of the network by name; values must be representable in their dtypes.

    Raises:
        IntegrityError: Values are not finite, also in the network's dtype; integers overflow its dtype; a variance or a
            number of batches is negative. ``subject`` is the name of the tensor.
    """
    if (fault := first_fault(state, own)) is not None:
        raise IntegrityError(f"{owner}: the tensor {fault[0]!r} holds {fault[1]}. {advice}", subject=fault[0])


def first_fault(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor] | None = None
) -> tuple[str, str] | None:
    """Return the name of the first tensor with invalid values, and a description; None if all are valid.

    The arguments are those of ``check_values``.
    """
    for name, tensor in state.items():
        if not tensor.is_meta:
            fault = _fault(name, tensor.detach(), (own or {}).get(name, tensor).dtype)
            if fault is not None:
                return name, fault
    return None


def _fault(name: str, tensor: Tensor, taken: torch.dtype) -> str | None:
    import torch

    last = name.rpartition(".")[2]
    if last == COUNT and tensor.numel() and not tensor.is_complex() and float(tensor.min()) < 0:
        return f"the negative count of batches {float(tensor.min()):g}"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        is_exact = tensor.dtype == taken or bool(torch.equal(tensor.to(taken).to(tensor.dtype), tensor))
        return None if is_exact else f"whole numbers that {str(taken).removeprefix('torch.')} cannot hold"
    if not _finite(tensor):
        return "values that are not finite"
    if tensor.dtype != taken and not _finite(tensor.to(taken)):
        largest = float(tensor.abs().max())
        return f"{largest:.3g}, which is not finite as {str(taken).removeprefix('torch.')}"
    if last == VARIANCE and tensor.numel():
        least = float(tensor.to(torch.float64).min())
        return f"the negative variance {least:.3g}" if least < 0 else None
    return None


def _finite(tensor: Tensor) -> bool:
    import torch

    # one pass without a temporary; a sum may overflow, so only a finite sum is conclusive
    narrow = tensor.element_size() < 4
    if bool(torch.isfinite(tensor.sum(dtype=torch.float32 if narrow else None))):
        return True
    return bool(torch.isfinite(tensor.to(torch.float32) if narrow else tensor).all())


def _count(names: Sequence[Any], singular: str, plural: str) -> str:
    return f"{len(names):,} {singular if len(names) == 1 else plural}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"
