"""Check weights: names, shapes, kinds of dtype, and values.

Used for all weights: initial weights of a task, adopted checkpoints, registered, published and frozen parts,
checkpoints of runs, and tensors that plugins set before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import IntegrityError, near, type_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHOWN = 3
"""Names of each kind listed in a message."""
MAX_COMPARED = 2000
"""Names to search for similar ones at most: comparing all with all takes minutes."""
VARIANCE, COUNT = "running_var", "num_batches_tracked"
"""Last parts of the names of variances and of numbers of batches in torch and timm."""
UNUSABLE = "No network can use it. Take weights from before the failure of their training run."
"""Advice for weights to load."""
NOT_PUBLISHED = "The component is not published. Train again with a lower learning rate or in float32."
"""Advice for parts to publish."""


@attrs.frozen
class WeightsMismatch:
    """Differences between tensors and a network; falsy if there are none.

    Attributes:
        missing: Names of the network that no tensor has.
        unknown: Names of tensors that the network does not have.
        shapes: Name, actual and expected shape.
        kinds: Name, actual and expected dtype, for incompatible kinds of dtype.
    """

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    kinds: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.shapes or self.kinds)

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind of difference, with similar names for missing ones."""
        few = len(self.missing) + len(self.unknown) <= MAX_COMPARED
        if self.missing:
            close = (near(name, self.unknown, 1, 0.8) if few else [] for name in self.missing)
            listed = [
                f"{name} (there is {similar[0]})" if similar else name
                for name, similar in zip(self.missing, close, strict=True)
            ]
            yield f"{_count(self.missing, 'tensor is', 'tensors are')} missing: {_shortened(listed)}"
        if self.unknown:
            yield f"{_count(self.unknown, 'is', 'are')} not known to it: {_shortened(self.unknown)}"
        if self.shapes:
            listed = [
                f"{name} is {_shape_text(actual)} where {_shape_text(expected)} is expected"
                for name, actual, expected in self.shapes
            ]
            yield f"{_count(self.shapes, 'has', 'have')} another shape: {_shortened(listed)}"
        if self.kinds:
            listed = [
                f"{name} is {actual} where {expected} is expected" for name, actual, expected in self.kinds
            ]
            yield f"{_count(self.kinds, 'is', 'are')} of another kind: {_shortened(listed)}"


def compare(tensors: Mapping[str, Any], own: Mapping[str, Tensor]) -> WeightsMismatch:
    """Return the differences between tensors and a network; all floating-point dtypes fit each other.

    Args:
        tensors: Tensors by name.
        own: State dict of the network.
    """
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    kinds: list[tuple[str, str, str]] = []
    for name in (name for name in own if name in tensors):
        actual, expected = _kind(tensors[name]), _kind(own[name])
        without_data = actual[0] != "none" and tensors[name].is_meta and not own[name].is_meta
        if without_data:
            kinds.append((name, f"{actual[1]} without data (meta)", expected[1]))
        elif actual[0] != expected[0]:
            kinds.append((name, actual[1], expected[1]))
        elif tuple(tensors[name].shape) != tuple(own[name].shape):
            shapes.append((name, tuple(tensors[name].shape), tuple(own[name].shape)))
    missing = tuple(name for name in own if name not in tensors)
    unknown = tuple(str(name) for name in tensors if name not in own)
    return WeightsMismatch(missing, unknown, tuple(shapes), tuple(kinds))


def _kind(value: Any) -> tuple[str, str]:
    """Return the kind of a value, equal for compatible dtypes, and its dtype or type for messages."""
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
    """Raise for the first tensor with invalid values.

    Args:
        state: Tensors by name; tensors without data (``meta``) are skipped.
        owner: Reference, path or task, for the message.
        advice: Last sentence of the message.
        own: Tensors of the network by name, whose dtypes must be able to represent the values.

    Raises:
        IntegrityError: Values are not finite, also in the network's dtype; integers overflow its dtype; a variance or a
            number of batches is negative. ``subject`` is the name of the tensor.
    """
    if (fault := first_fault(state, own)) is not None:
        raise IntegrityError(f"{owner}: the tensor {fault[0]!r} holds {fault[1]}. {advice}", subject=fault[0])


def first_fault(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor] | None = None
) -> tuple[str, str] | None:
    """Return name and fault of the first tensor with invalid values; None if all are valid.

    Args:
        state: As for ``check_values``.
        own: As for ``check_values``.
    """
    for name, tensor in state.items():
        if not tensor.is_meta:
            fault = _fault(name, tensor.detach(), (own or {}).get(name, tensor).dtype)
            if fault is not None:
                return name, fault
    return None


def _fault(name: str, tensor: Tensor, dtype: torch.dtype) -> str | None:
    import torch

    last = name.rpartition(".")[2]
    if last == COUNT and tensor.numel() and not tensor.is_complex() and float(tensor.min()) < 0:
        return f"the negative count of batches {float(tensor.min()):g}"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        is_exact = tensor.dtype == dtype or bool(torch.equal(tensor.to(dtype).to(tensor.dtype), tensor))
        return None if is_exact else f"whole numbers that {str(dtype).removeprefix('torch.')} cannot hold"
    if not _finite(tensor):
        return "values that are not finite"
    if tensor.dtype != dtype and not _finite(tensor.to(dtype)):
        largest = float(tensor.abs().max())
        return f"{largest:.3g}, which is not finite as {str(dtype).removeprefix('torch.')}"
    if last == VARIANCE and tensor.numel():
        exact = tensor.element_size() >= 4 and not tensor.is_complex()
        smallest = float((tensor if exact else tensor.to(torch.float64)).min())
        return f"the negative variance {smallest:.3g}" if smallest < 0 else None
    return None


def _finite(tensor: Tensor) -> bool:
    import torch

    # One pass without a temporary. A sum may overflow, so that only a finite sum is conclusive.
    narrow = tensor.element_size() < 4
    if not tensor.is_complex() and math.isfinite(tensor.sum(dtype=torch.float32 if narrow else None).item()):
        return True
    return bool(torch.isfinite(tensor.to(torch.float32) if narrow else tensor).all())


def _count(names: Sequence[Any], singular: str, plural: str) -> str:
    return f"{len(names):,} {singular if len(names) == 1 else plural}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"
