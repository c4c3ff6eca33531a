"""The transposed linear part of a layer: M'y for dense layers and all kinds of convolutions.

Computed explicitly where exact: a matrix product, a transposed convolution with output padding derived from the
recorded input, a convolution for a transposed one. Any other layer that is affine in its input is transposed by its
vector-Jacobian product, at the cost of one more pass; affinity is tested numerically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from compatkit.errors import UsageError, type_of

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
"""Layer types with a linear part."""
_BACK: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
_FORTH: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CLOSE = 1e-4
"""Tolerance of the affinity test in float32, as a share of the largest output."""


def adjoint(layer: nn.Module, like: Tensor, y: Tensor) -> Tensor:
    """Return M'y, where ``layer(x)`` is Mx + b; differentiable in the weight and in ``y``.

    Args:
        layer: Dense layer or convolution.
        like: Input of the layer; an explicit transpose uses only its shape.
        y: ``(batch, ...)``, in the shape of the layer's output, without the bias.

    Returns:
        A tensor in the shape of ``like``.

    Raises:
        UsageError: The layer has no linear part.
    """
    if _plain(layer, (nn.Linear,)):
        return y @ weight_of(layer)
    if _plain(layer, CONVOLUTIONS) and _zero_padded(layer):
        return _convolution(layer, like, y)  # type: ignore[arg-type]
    if _plain(layer, TRANSPOSED):
        return _transposed(layer, like, y)  # type: ignore[arg-type]
    if isinstance(layer, LINEAR):
        return _by_jacobian(layer, like, y)
    raise UsageError(
        f"A {type(layer).__name__} has no transpose here; expected a dense layer or convolution. Name other layers in "
        "`layers`."
    )


def without_bias(layer: nn.Module, y: Tensor) -> Tensor:
    """Return ``y - b``, where ``y`` is an output of the layer.

    Args:
        layer: A linear layer or convolution.
        y: ``(batch, ..., channels)`` for linear layers, else ``(batch, channels, ...)``.

    Returns:
        In the shape and type of ``y``.
    """
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    if bias is None:
        return y
    if not isinstance(layer, nn.Linear):
        bias = bias.view(-1, *(1 for _ in layer.kernel_size))  # type: ignore[union-attr]
    return y - bias.to(y.dtype)


def written_out(layer: nn.Module) -> bool:
    """Return whether the transpose is explicit rather than a vector-Jacobian product."""
    return _plain(layer, (nn.Linear, *TRANSPOSED)) or (_plain(layer, CONVOLUTIONS) and _zero_padded(layer))


def weight_of(layer: nn.Module) -> Tensor:
    """Return the weight of the layer's last call; parametrizations with a state are not advanced.

    Returns:
        In the layer's own shape.
    """
    if not is_parametrized(layer):
        return layer.weight  # type: ignore[return-value]
    with _standing_still(layer):
        return layer.weight  # type: ignore[return-value]


def refusal(layer: nn.Module) -> str | None:
    """Return why a layer cannot be transposed, or None; layers of unknown classes are tested on noise.

    Weights and buffers are left unchanged.
    """
    if not isinstance(layer, LINEAR):
        return f"it is {type_of(layer)}, which has no transpose here"
    if written_out(layer):
        return None
    try:
        with torch.no_grad(), _standing_still(layer):
            return _affine(layer)
    except Exception as error:  # arbitrary layers may raise anything
        return f"{type_of(layer)} does not take a tensor alone ({type(error).__name__}: {error})"


def _affine(layer: nn.Module) -> str | None:
    first_input, other = (_noise(layer, seed) for seed in (0, 1))
    first = layer.forward(torch.zeros_like(first_input))  # not layer(...): hooks must not run
    bias = torch.zeros_like(first) - without_bias(layer, torch.zeros_like(first))
    left, right, both = (layer.forward(x) - first for x in (first_input, other, first_input - 2 * other))
    tolerance = CLOSE * max(1.0, float(left.abs().max()), float(right.abs().max()))
    if float((both - (left - 2 * right)).abs().max()) > tolerance:
        return f"{type_of(layer)} is not affine in its input"
    if float((first - bias).abs().max()) > tolerance:
        return f"what {type_of(layer)} gives for zeros is not its bias"
    return None


def _noise(layer: nn.Module, seed: int) -> Tensor:
    """Return two random inputs, large enough for the kernel."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    if isinstance(layer, nn.Linear):
        shape: tuple[int, ...] = (2, layer.in_features)
    else:
        reach = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)  # type: ignore[arg-type]
        shape = (2, layer.in_channels, *(2 * d * k + 2 * s + 1 for k, d, s in reach))  # type: ignore[assignment]
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(weight.device, weight.dtype)


def _plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a layer computes the same as one of torch's own types, with any weight."""
    for kind in kinds:
        if isinstance(layer, kind):
            same = type(layer).forward is kind.forward
            return same and getattr(type(layer), "_conv_forward", None) is getattr(
                kind, "_conv_forward", None
            )
    return False


def _zero_padded(layer: Any) -> bool:
    return layer.padding_mode == "zeros"


def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, like: Tensor, y: Tensor) -> Tensor:
    """Apply the transpose of a zero-padded convolution; output padding restores rows that the stride skipped."""
    back = _BACK[len(layer.kernel_size)]
    sizes = like.shape[-len(layer.kernel_size) :]
    output_size = y.shape[-len(layer.kernel_size) :]
    sides = [_padding(layer, dim) for dim in range(len(layer.kernel_size))]
    even = all(left == right for left, right in sides)
    more = [
        size + (0 if even else left + right) - ((out - 1) * s - (2 * left if even else 0) + d * (k - 1) + 1)
        for size, out, (left, right), k, s, d in zip(
            sizes, output_size, sides, layer.kernel_size, layer.stride, layer.dilation, strict=True
        )
    ]
    padding = [left for left, _ in sides] if even else 0
    weight = weight_of(layer)
    whole = back(y, weight, None, layer.stride, padding, more, layer.groups, layer.dilation)
    if even:
        return whole
    for dim, (size, (left, _)) in enumerate(zip(sizes, sides, strict=True), whole.dim() - len(sizes)):
        whole = whole.narrow(dim, left, size)
    return whole


def _padding(layer: Any, dim: int) -> tuple[int, int]:
    """Return the numbers of zeros before and after."""
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        total = layer.dilation[dim] * (layer.kernel_size[dim] - 1)
        return total // 2, total - total // 2
    return layer.padding[dim], layer.padding[dim]


def _transposed(layer: Any, like: Tensor, y: Tensor) -> Tensor:
    """Apply the transpose of a transposed convolution, which is a convolution."""
    forth = _FORTH[len(layer.kernel_size)]
    result = forth(y, weight_of(layer), None, layer.stride, layer.padding, layer.dilation, layer.groups)
    if result.shape != like.shape:  # output padding larger than the stride
        for dim, size in enumerate(
            like.shape[-len(layer.kernel_size) :], result.dim() - len(layer.kernel_size)
        ):
            result = result.narrow(dim, 0, size)
    return result


def _by_jacobian(layer: nn.Module, like: Tensor, y: Tensor) -> Tensor:
    """Return the vector-Jacobian product, which is independent of the input for an affine layer."""
    with _standing_still(layer):
        output, pull, *_ = torch.func.vjp(layer.forward, torch.zeros_like(like))
    return pull(y.to(output.dtype))[0]


@contextmanager
def _standing_still(layer: nn.Module) -> Iterator[None]:
    """Put a layer and its parametrizations into eval mode: spectral normalization iterates in train mode."""
    modes = [(module, module.training) for module in layer.modules() if module.training]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training
