"""One layer of a chain undone: the transposed map, the size before it, and the layer before applied once more."""

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
    """Return M'(back - b), brought to the size that the state had before pooling or reshaping.

    Args:
        layer: The linear layer of ``stage``.
        stage: Whose layer it is.
        back: Shaped as the layer's output, or reshapes to it.
        like: Input of the layer.
        size: Of the state that is to be compared.
    """
    back = adjoint(layer, like, without_bias(layer, back))
    if stage.taken is None or stage.pooled is None:
        return back.reshape(size)
    wanted = size if len(size) == 1 + len(stage.taken) else torch.Size((size[0], *stage.taken))
    if back.dim() != len(wanted):
        shape = (
            *stage.pooled,
            *(1,) * (len(stage.taken) - len(stage.pooled)),
        )  # pooled to a pixel, and flattened
        back = back.reshape(size[0], *shape)
    return resized(back, wanted).reshape(size)


def resized(value: Tensor, size: torch.Size) -> Tensor:
    """Return maps at another size: the nearest pixel where they grow, means of pixels where they shrink."""
    wanted = size[2:]
    if all(there >= here for there, here in zip(wanted, value.shape[2:], strict=True)):
        return F.interpolate(value, size=wanted, mode="nearest")
    shrink = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
    return shrink[len(wanted)](value, tuple(wanted))  # type: ignore[arg-type]


def again(
    norm: nn.Module | None,
    act: nn.Module | None,
    back: Tensor,
    forward: Tensor | None,
    statistics: Statistics,
) -> Tensor:
    """Apply normalisation and activation again; no buffer is updated.

    Args:
        norm: Of the layer that made the state which ``back`` stands for.
        act: Its activation.
        back: ``(batch, channels, ...)``.
        forward: Input of the normalisation in the forward pass.
        statistics: See ``full.Walk``.

    Raises:
        UsageError: There are no such statistics.
    """
    if norm is not None:
        back = _normalised(norm, back, forward, statistics)
    # Not called as a module: hooks are for what happens on the way forward.
    return back if act is None else act.forward(back)


def _normalised(norm: nn.Module, back: Tensor, forward: Tensor | None, statistics: Statistics) -> Tensor:
    if not isinstance(norm, _BatchNorm):
        return norm.forward(back)
    weight, bias, eps = norm.weight, norm.bias, norm.eps
    if statistics == "batch":
        return F.batch_norm(back, None, None, weight, bias, True, 0.0, eps)
    if statistics == "running":
        if norm.running_mean is None or norm.running_var is None:
            raise UsageError(
                f'A {type(norm).__name__} keeps no running statistics, which bn_reverse="running" asks for. Use '
                '"batch" or "forward_batch".'
            )
        return F.batch_norm(back, norm.running_mean, norm.running_var, weight, bias, False, 0.0, eps)
    taken = wide(back if forward is None else forward)
    places = [0, *range(2, taken.dim())]
    variance, mean = torch.var_mean(taken, places, correction=0, keepdim=True)
    given = (wide(back) - mean) * torch.rsqrt(variance + eps)
    shape = (1, -1, *(1,) * (back.dim() - 2))
    if weight is not None:
        given = given * weight.view(shape) + bias.view(shape)
    return given.to(back.dtype)
