"""Cheap estimates of the reverse-pass loss: the batch's first images, or layers drawn in every step.

Both are unbiased. A batch is a random part of the training set in random order, so its first images are as random as
any: nothing has to be drawn, and steps can be compiled. Of a loader whose order is not random they are what comes
first, and the estimate is one of that. Layers are drawn, each with the same probability, by whose inverse their losses
are weighted.

What estimates cost is variance. Of n images k, the loss has about n / k times the variance between batches that comes
from images. Of l layers, drawn with a share p of which p l is whole, losses that differ between layers by a standard
deviation of s add one of s l sqrt((1 - p) / (p (l - 1))) to their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from compatkit import LayerCall

from .local import Records


def drawn_layers(names: Sequence[str], share: float, draw: torch.Generator) -> list[str]:
    """Return some layers, each with a probability of ``share``, in their order.

    How many is ``share`` of them all, rounded down or up by chance; it may be none.
    """
    expected = share * len(names)
    count = math.floor(expected)
    count += float(torch.rand((), generator=draw, dtype=torch.float64)) < expected - count
    chosen: list[int] = sorted(torch.randperm(len(names), generator=draw)[:count].tolist())
    return [names[place] for place in chosen]


def first_images(records: Records, images: int, share: float) -> Records:
    """Return the records of every layer for the batch's first images.

    Args:
        records: Of all images; a layer that sees windows or tokens has several rows for each, side by side.
        images: How many there are.
        share: Of them that is taken, rounded, at least one image.
    """
    count = max(1, round(share * images))
    return {
        name: [
            LayerCall(_first(call.input, count, images), _first(call.output, count, images), call.layer)
            for call in calls
        ]
        for name, calls in records.items()
    }


def _first(value: Tensor, count: int, images: int) -> Tensor:
    """Return the first rows, without a copy.

    Dimensions are put into their order in memory first: the gradient of torch's ``narrow`` is always contiguous, and
    one that is not laid out as its tensor is slow to add and to convolve.
    """
    if len(value) % images:
        return value  # what knows no images is taken whole
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).narrow(order.index(0), 0, len(value) // images * count).permute(back)
