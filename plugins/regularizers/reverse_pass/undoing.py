"""Reverse one layer of a chain: transposed map, restored size, and the preceding norm and activation."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import UsageError

from .adjoint import adjoint, without_bias
from .local import wide
from .stages import Stage

Statistics = Literal["batch", "forward_batch", "running"]
STATISTICS: tuple[Statistics, ...] = ("batch", "forward_batch", "running")


def step_back(layer: nn.Module, stage: Stage, back: Tensor, like: Tensor, size: torch.Size) -> Tensor:
    """Return M'(back - b), at the size that the state had before pooling or reshaping.

    Args:
        layer: The linear layer of ``stage``.
        stage: The stage.
        back: In the shape of the layer's output, or reshapable to it.
        like: Input of the layer.
        size: Shape of the state to compare with.

    Returns:
        In the shape ``size``.
    """
    back = adjoint(layer, like, without_bias(layer, back))
    if stage.taken is None or stage.pooled is None:
        return back.reshape(size)
    target_size = size if len(size) == 1 + len(stage.taken) else torch.Size((size[0], *stage.taken))
    if back.dim() != len(target_size):
        shape = (
            *stage.pooled,
            *(1,) * (len(stage.taken) - len(stage.pooled)),
        )  # pooled to a pixel, and flattened
        back = back.reshape(size[0], *shape)
    return resized(back, target_size).reshape(size)


def resized(value: Tensor, size: torch.Size) -> Tensor:
    """Return maps at another size: nearest neighbor to enlarge, means of pixels to shrink.

    Args:
        value: ``(batch, channels, ...)``.
        size: Shape of the result; its first two entries are ignored.

    Returns:
        ``(batch, channels, *size[2:])``.
    """
    target_size = size[2:]
    if all(target >= source for target, source in zip(target_size, value.shape[2:], strict=True)):
        return F.interpolate(value, size=target_size, mode="nearest")
    shrink = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
    return shrink[len(target_size)](value, tuple(target_size))  # type: ignore[arg-type]


def again(
    norm: nn.Module | None,
    act: nn.Module | None,
    back: Tensor,
    forward: Tensor | None,
    statistics: Statistics,
) -> Tensor:
    """Apply normalization and activation; no buffer is updated.

    Args:
        norm: Norm of the layer that produced the state which ``back`` reconstructs, or None.
        act: Its activation, or None.
        back: ``(batch, channels, ...)``.
        forward: Input of the norm in the forward pass.
        statistics: See ``full.Walk``.

    Returns:
        In the shape of ``back``.

    Raises:
        UsageError: The layer has no such statistics.
    """
    if norm is not None:
        back = _normalized(norm, back, forward, statistics)
    # forward() rather than a call: hooks belong to the forward pass.
    return back if act is None else act.forward(back)


def _normalized(norm: nn.Module, back: Tensor, forward: Tensor | None, statistics: Statistics) -> Tensor:
    if not isinstance(norm, _BatchNorm):
        return norm.forward(back)
    weight, bias, eps = norm.weight, norm.bias, norm.eps
    if statistics == "batch":
        return F.batch_norm(back, None, None, weight, bias, True, 0.0, eps)
    if statistics == "running":
        if norm.running_mean is None or norm.running_var is None:
            raise UsageError(
                f'A {type(norm).__name__} has no running statistics, which bn_reverse="running" needs. Use '
                '"batch" or "forward_batch".'
            )
        return F.batch_norm(back, norm.running_mean, norm.running_var, weight, bias, False, 0.0, eps)
    taken = wide(back if forward is None else forward)
    dims = [0, *range(2, taken.dim())]
    variance, mean = torch.var_mean(taken, dims, correction=0, keepdim=True)
    normalized = (wide(back) - mean) * torch.rsqrt(variance + eps)
    shape = (1, -1, *(1,) * (back.dim() - 2))
    if weight is not None:
        normalized = normalized * weight.view(shape) + bias.view(shape)
    return normalized.to(back.dtype)
