"""Cheap estimates of the reverse-pass loss: some images of the batch, some layers, in every step others.

Both are unbiased: an image is taken with the same probability as any other, and what is drawn is weighted by how
seldom it is. What they cost is variance: of n images k, the loss has about n / k times the variance between batches
that comes from images; of l layers k, losses that differ between layers by a standard deviation of s add one of
s l sqrt((l - k) / (k (l - 1))) to their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compatkit import LayerCall

from .local import Records


def drawn_layers(names: Sequence[str], share: float, draw: torch.Generator) -> tuple[list[str], float]:
    """Return some layers, and by how much their losses stand for those of all."""
    count = max(1, round(share * len(names)))
    if count >= len(names):
        return list(names), 1.0
    chosen: list[int] = sorted(torch.randperm(len(names), generator=draw)[:count].tolist())
    return [names[place] for place in chosen], len(names) / count


def drawn_images(records: Records, images: int, share: float, draw: torch.Generator) -> Records:
    """Return the rows of some images, which stand side by side in the batch (whose order is random in any case).

    Args:
        records: Of all images.
        images: How many there are.
        share: Of them that is taken, at least one image.
        draw: Decides which is the first; after the last image comes the first.
    """
    count = max(1, round(share * images))
    if count >= images:
        return records
    start = int(torch.randint(images, (), generator=draw))
    return {name: [_call(one, images, start, count) for one in calls] for name, calls in records.items()}


def _call(call: LayerCall, images: int, start: int, count: int) -> LayerCall:
    taken, given = (_rows(one, images, start, count) for one in (call.input, call.output))
    return LayerCall(taken, given, call.layer)


def _rows(value: Tensor, images: int, start: int, count: int) -> Tensor:
    """Return the rows of ``count`` images from ``start`` on; windows of an image are several rows."""
    if len(value) % images:
        return value  # what knows no images is taken whole
    each = len(value) // images
    tail: Tensor = _Narrow.apply(value, start * each, min(count, images - start) * each)  # type: ignore[assignment]
    if start + count <= images:
        return tail
    return torch.cat([tail, _Narrow.apply(value, 0, (start + count - images) * each)])  # type: ignore[list-item]


class _Narrow(torch.autograd.Function):
    """Some rows; the gradient keeps the memory format, where torch's own comes back as NCHW and is converted."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, start: int, count: int) -> Tensor:
        ctx.place = start, count
        ctx.empty = torch.empty_like(value, device="meta")
        return value.narrow(0, start, count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        whole = torch.zeros_like(ctx.empty, device=gradient.device, dtype=gradient.dtype)
        whole.narrow(0, *ctx.place).copy_(gradient)
        return whole, None, None
