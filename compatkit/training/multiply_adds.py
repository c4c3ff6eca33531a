"""Multiply-adds of the products that autocast computes in bf16: convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

IMAGES = 2
"""Images of the counted pass."""
aten = torch.ops.aten


def _of_matrices(left: Tensor, right: Tensor) -> int:
    return left.numel() * right.shape[-1]


def _of_convolution(images: Tensor, weight: Tensor, result: Tensor, *, transposed: bool) -> int:
    return (images if transposed else result).numel() * (weight.numel() // weight.shape[0])


class _Count(TorchDispatchMode):
    """Counts the multiply-adds of each product."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in (aten.mm, aten.bmm):
            self.counts.append(_of_matrices(args[0], args[1]))
        elif operation in (aten.addmm, aten.baddbmm):
            self.counts.append(_of_matrices(args[1], args[2]))
        elif operation is aten.convolution:
            self.counts.append(_of_convolution(args[0], args[1], result, transposed=args[6]))
        return result


def multiply_adds(parts: Sequence[nn.Module], shape: tuple[int, ...]) -> list[float]:
    """Return the multiply-adds of each convolution and matrix product of a network, for one image.

    Args:
        parts: Modules that are called one after the other; they run in eval mode, on black images.
        shape: Shape of an image, ``(channels, height, width)``.
    """
    first = next((value for part in parts for value in part.parameters()), torch.empty(0))
    modes = [(module, module.training) for part in parts for module in part.modules()]
    values: Any = first.new_zeros((IMAGES, *shape))
    try:
        with torch.random.fork_rng(devices=[]), _Count() as count:
            for part in parts:
                values = part.eval()(values)
    finally:
        for module, training in modes:
            module.training = training
    return [number / IMAGES for number in count.counts]
