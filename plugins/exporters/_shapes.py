"""Dynamic shapes of exported programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def any_batch(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``dynamic_shapes`` that leave the batch free: the first axis of every tensor, also inside tuples."""
    batch = torch.export.Dim("batch")

    def shapes(value: Any) -> Any:
        return {0: batch} if isinstance(value, Tensor) else tuple(map(shapes, value))

    return shapes(inputs)
