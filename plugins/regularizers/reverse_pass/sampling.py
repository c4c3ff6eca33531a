"""Cheap unbiased estimates of the reverse-pass loss: from the batch's first images, or from layers drawn per step.

Batches are random and in random order, so their first images are a random sample: nothing is drawn, and steps can be
compiled. (If a loader's order is not random, the estimate is biased.) Layers are drawn with equal probability, and
their losses are weighted by its inverse.

The cost is variance. With k of n images, the between-batch variance due to images grows by about n / k. With l layers
drawn at a share p, for whole p l, losses whose standard deviation between layers is s add a standard deviation of
s l sqrt((1 - p) / (p (l - 1))) to their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from compatkit import LayerCall

from .local import Records


def drawn_layers(names: Sequence[str], share: float, draw: torch.Generator) -> list[str]:
    """Return a random subset of the layers, each with probability ``share``, in order; it may be empty.

    Its size is ``share`` of all layers, randomly rounded up or down.

    Args:
        names: All layers.
        share: Share of the layers to draw, in (0, 1].
        draw: Source of random numbers.
    """
    expected = share * len(names)
    count = math.floor(expected)
    count += float(torch.rand((), generator=draw, dtype=torch.float64)) < expected - count
    chosen: list[int] = sorted(torch.randperm(len(names), generator=draw)[:count].tolist())
    return [names[index] for index in chosen]


def first_images(records: Records, images: int, share: float) -> Records:
    """Return the records of every layer for the batch's first images.

    Args:
        records: Records of all images; a layer on windows or tokens has several adjacent rows per image.
        images: Number of images.
        share: Share of them to use, rounded, at least one image.
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
    """Return the first rows without a copy.

    Dimensions are put in memory order first: the gradient of torch's ``narrow`` is always contiguous, and one in
    another layout than its tensor is slow to add and to convolve.
    """
    if len(value) % images:
        return value  # independent of images
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).narrow(order.index(0), 0, len(value) // images * count).permute(back)
