"""Costs of calls from the shapes of their arguments: a bound of the elements of the result, and operations.

Common calls of networks are worked out here. torch could do it too, but its tables of operations and its kernels of the
meta device import a compiler and a library of algebra on first use, which takes two seconds: longer than the load of a
small part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

_QUADRATIC = frozenset(
    ("block_diag", "diag", "diag_embed", "diagflat", "eye", "tril_indices", "triu_indices", "vander")
)
"""Functions whose result may have as many elements as the square of the sizes in their arguments."""
_NORMS = frozenset(("native_batch_norm", "native_group_norm", "native_layer_norm"))
"""Functions that give a tensor of the input's size, and two of statistics that are not larger."""
_ELEMENTWISE = frozenset(
    (
        "add sub mul div neg exp sqrt rsqrt abs maximum minimum clamp clamp_min clamp_max clone relu sigmoid tanh "
        "silu gelu hardtanh hardswish hardsigmoid elu leaky_relu softplus"
    ).split()
)
"""Functions whose result has the common shape of their tensors."""
_POOLS = frozenset(("max_pool2d_with_indices", "avg_pool2d"))
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_TABLED = ("conv", "mm", "attention")
"""Parts of the names of all functions in torch's table of operations."""


def largest_numel(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return a bound of the elements of a call's result.

    Functions that are not known get the product of all sizes and numbers among the arguments, a bound for elementwise
    functions, products, convolutions and repetitions. A side ``s`` that is padded by ``p`` has at most ``s (1 + p)``
    values, a range with a step below 1 counts by its reciprocal, and some results are quadratic.

    Args:
        name: Name of the function.
        args: Arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    known = _known_numel(name, args, kwargs)
    if known is not None:
        return known
    numel = 1
    stack: list[Any] = [*args, *kwargs.values()]
    while stack:
        argument = stack.pop()
        if isinstance(argument, Tensor):
            numel *= max(1, argument.numel())
        elif isinstance(argument, list | tuple):
            stack += argument
        elif isinstance(argument, int | float) and argument and math.isfinite(argument):
            size = abs(argument)
            if "pad" in name:
                numel *= 1 + math.ceil(size)
            elif size > 1:
                numel *= math.ceil(size)
            elif "range" in name:
                numel *= math.ceil(1 / max(size, 1e-12))
    return numel**2 if name in _QUADRATIC else numel


def _known_numel(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return the elements of the results of a common call; None for others."""
    if name in _NORMS:
        return 3 * args[0].numel()
    if name in _ELEMENTWISE and args and isinstance(args[0], Tensor):
        return _common_numel(value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    if name == "convolution" and len(args) == 9 and not kwargs:
        return math.prod(_convolved(args))
    if name in _PRODUCTS and all(isinstance(value, Tensor) for value in args):
        left, right = args[-2:]
        return math.prod(left.shape[:-1]) * right.shape[-1]
    if name in _POOLS and not kwargs and 3 <= len(args) <= 4 and isinstance(args[-1], list):
        source, padding = args[0], args[3] if len(args) == 4 else [0]
        # a window moves by one at least; twice for the indices
        return 2 * source.numel() * math.prod(1 + 2 * item for item in (2 * padding)[:2])
    return None


def _common_numel(shapes: Iterable[Iterable[int]]) -> int:
    """Return the elements of tensors that are broadcast to one shape."""
    sides: list[int] = []
    for shape in shapes:
        for axis, side in enumerate(reversed([*shape])):
            if axis == len(sides):
                sides.append(side)
            sides[axis] = max(sides[axis], side)
    return math.prod(sides)


def _convolved(args: tuple[Any, ...]) -> list[int]:
    """Return the shape of the result of ``aten.convolution``."""
    source, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    axes = weight.dim() - 2
    step, pad, spread, extra = (
        [*values] * axes if len(values) == 1 else values
        for values in (stride, padding, dilation, output_padding)
    )
    sides: list[int] = []
    for axis in range(axes):
        side, window = source.shape[source.dim() - axes + axis], spread[axis] * (weight.shape[2 + axis] - 1)
        sides.append(
            (side - 1) * step[axis] - 2 * pad[axis] + window + extra[axis] + 1
            if transposed
            else (side + 2 * pad[axis] - window - 1) // step[axis] + 1
        )
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return [*source.shape[: source.dim() - axes - 1], channels, *(max(0, side) for side in sides)]


def operations(packet: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> int:
    """Return the number of multiplications and additions of a call, from the shapes of inputs and outputs."""
    name = packet.__name__
    if name == "convolution" and outputs:
        source, weight, transposed = args[0], args[1], args[6]
        moved = source if transposed else outputs[0]
        return 2 * moved.numel() * (weight.numel() // max(1, weight.shape[0]))
    if name in _PRODUCTS and outputs:
        return 2 * outputs[0].numel() * args[-1].shape[-2]
    if any(part in name for part in _TABLED):
        from torch.utils.flop_counter import flop_registry

        if packet in flop_registry and outputs:
            return flop_registry[packet](*args, **kwargs, out_val=outputs[0])
    if "scaled_dot_product" in name:  # query (..., L, D), key (..., S, D)
        return 4 * args[0].numel() * args[1].shape[-2]
    # Pooling reads a window, its second argument, for each output value.
    pooled = "pool" in name and len(args) > 1 and isinstance(args[1], list)
    return (math.prod(args[1]) if pooled else 1) * sum(tensor.numel() for tensor in outputs[:1])
