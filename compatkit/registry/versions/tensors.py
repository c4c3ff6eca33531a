"""Compare two sets of weights tensor by tensor, without building modules."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen
class TensorForm:
    """Dtype (torch's name) and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@attrs.frozen
class TensorChange:
    """Tensor that differs between two sets of weights.

    Attributes:
        name: Name of the tensor.
        before: Dtype and shape before; None if it was added.
        after: Dtype and shape after; None if it was removed.
        values: Number of values that differ bitwise (by value if the dtype changed); None if they cannot be compared.
        largest: Largest absolute difference in float64; None if not finite or not comparable.
    """

    name: str
    before: TensorForm | None
    after: TensorForm | None
    values: int | None = None
    largest: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)

    @property
    def form(self) -> str:
        """Dtype and shape for display, and their change."""
        if self.before is None:
            return f"added {self.after}"
        if self.after is None:
            return f"removed {self.before}"
        return str(self.after) if self.before == self.after else f"{self.before} -> {self.after}"

    @property
    def distance(self) -> str:
        """Largest difference for display; empty if values were not compared."""
        if self.values is None:
            return ""
        return "not finite" if self.largest is None else f"{self.largest:.3g}"

    def __str__(self) -> str:
        differ = "" if self.values is None else f", {self.values} values differ, at most by {self.distance}"
        return f"{self.name}: {self.form}{differ}"


def tensor_changes(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> tuple[TensorChange, ...]:
    """Compare two state dicts.

    Args:
        old: Tensors by name, on the CPU.
        new: Tensors by name, on the CPU.

    Returns:
        Tensors that differ bitwise, sorted by name.
    """
    changes: list[TensorChange] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            changes.append(TensorChange(name, _form(before), _form(after)))
        elif before.shape != after.shape:
            changes.append(TensorChange(name, _form(before), _form(after)))
        else:
            values, largest = _compare(before, after)
            if values or before.dtype != after.dtype:
                changes.append(TensorChange(name, _form(before), _form(after), values, largest))
    return tuple(changes)


def _form(tensor: Tensor | None) -> TensorForm | None:
    return (
        None if tensor is None else TensorForm(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    )


def _compare(before: Tensor, after: Tensor) -> tuple[int, float | None]:
    """Return the number of differing values, and the largest difference, or None if it is not finite."""
    import torch

    left, right = before.contiguous().reshape(-1), after.contiguous().reshape(-1)
    wide = torch.complex128 if before.is_complex() or after.is_complex() else torch.float64
    if left.numel() == 0:
        return 0, 0.0
    if left.dtype == right.dtype:
        size = left.element_size()
        bits = (side.view(torch.uint8).reshape(-1, size) for side in (left, right))
        differ = torch.ne(*bits).any(1)
        left, right = left[differ], right[differ]
        distance = (left.to(wide) - right.to(wide)).abs()
    else:
        distance = (left.to(wide) - right.to(wide)).abs()
        distance = distance[distance != 0]  # keeps NaN, which counts as different
    largest = float(distance.max()) if distance.numel() else 0.0
    return distance.numel(), largest if isfinite(largest) else None
