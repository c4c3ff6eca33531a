"""Batch normalisation of several views in one pass: each view by its own statistics, buffers by those of the first.

A pass over four views in one batch launches a quarter of the operations, but batch normalisation would take the
statistics of all of them together, which gives other gradients, and would move its buffers by views that are never
evaluated. Here every call of ``F.batch_norm`` on the way is made view by view, whichever module makes it: torch's
layers, timm's with activation, traced graphs. No module is changed, so that none has to be changed back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compatkit.evaluation.normalisation import batch_statistics

CLOSE = 1e-3
"""Largest difference of features in a pass of all views and in passes of their own, as a share of the largest one."""


class Viewwise(TorchFunctionMode):
    """Within it, batches are ``views`` equal parts one after the other, and are normalised part by part."""

    def __init__(self, views: int) -> None:
        """See the class."""
        super().__init__()
        self.views = views

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Take the place of ``F.batch_norm``, and of nothing else."""
        named = kwargs or {}
        return _batch_norm(self.views, *args, **named) if func is F.batch_norm else func(*args, **named)


def _batch_norm(
    views: int,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Do what ``F.batch_norm`` does, which takes the same arguments, view by view."""
    if not training:  # stored statistics know no batch
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if torch.compiler.is_compiling():
        running = None if running_mean is None or running_var is None else (running_mean, running_var)
        return _reduced(views, input, running, weight, bias, momentum, eps)
    first, *others = input.chunk(views)
    parts = [F.batch_norm(first, running_mean, running_var, weight, bias, True, momentum, eps)]
    parts += [F.batch_norm(one, None, None, weight, bias, True, momentum, eps) for one in others]
    return torch.cat(parts)


def _reduced(
    views: int,
    input: Tensor,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalise by one reduction over all but views and channels: what a compiler makes the fewest kernels of."""
    parts = input.unflatten(0, (views, -1)).to(torch.promote_types(input.dtype, torch.float32))
    dims = (1, *range(3, parts.dim()))
    variance, mean = torch.var_mean(parts, dim=dims, correction=0, keepdim=True)
    if running is not None:
        count = parts[0].numel() // parts.shape[2]
        found = mean[0].detach().flatten(), variance[0].detach().flatten() * (count / (count - 1))
        for value, one in zip(running, found, strict=True):
            value.lerp_(one.to(value.dtype), momentum)
    scaled = (parts - mean) * torch.rsqrt(variance + eps)
    shape = (-1, *(1 for _ in range(3, parts.dim())))
    if weight is not None:
        scaled = scaled * weight.view(shape)
    if bias is not None:
        scaled = scaled + bias.view(shape)
    return scaled.to(input.dtype).flatten(0, 1)


def mixes(extractor: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return why an extractor would mix views that pass together, or None where it keeps them apart.

    Args:
        extractor: Tried in evaluation mode, but for batch normalisation; left as it was.
        shape: Of a batch of images, ``(batch, channels, height, width)``.
    """
    for name, module in extractor.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            return f"{name!r} synchronises statistics of whole batches between processes"
    first = next(extractor.parameters(), torch.empty(0))
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(2 * shape[0], *shape[1:], generator=draw).to(first.device, first.dtype)
    with torch.no_grad(), batch_statistics(extractor):
        apart = torch.cat([extractor(one) for one in images.chunk(2)])
        with Viewwise(2):
            together = extractor(images)
    if float((apart - together).abs().max()) > CLOSE * float(apart.abs().max()):
        return "features of images depend on the others in their batch in a way of their own"
    return None
