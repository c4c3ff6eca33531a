"""A step's batch worked through in pieces: less memory at a time, and the gradients of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compatkit.training.ledger import Measured
from compatkit.training.step import Batch


def pieces(batch: Batch, count: int) -> list[Batch]:
    """Return a batch as ``count`` batches of the same size, in order; they hold the very same images."""
    parts = zip(batch.images.chunk(count), batch.labels.chunk(count), batch.index.chunk(count), strict=True)
    if batch.stacked is None:
        return [Batch(*part) for part in parts]
    views = batch.stacked.unflatten(0, (-1, len(batch.labels))).chunk(count, 1)
    stacks = [one.flatten(0, 1) for one in views]
    return [
        Batch(stack[: len(labels)], labels, index, stack)
        for stack, (_, labels, index) in zip(stacks, parts, strict=True)
    ]


def first(batch: Batch, count: int) -> Batch:
    """Return the first ``count`` images of a batch, in all their views."""
    images, labels, index = batch.images[:count], batch.labels[:count], batch.index[:count]
    if batch.stacked is None:
        return Batch(images, labels, index)
    stack = batch.stacked.unflatten(0, (-1, len(batch.labels)))[:, :count].flatten(0, 1)
    return Batch(stack[:count], labels, index, stack)


def together(measured: Sequence[Measured]) -> Measured:
    """Return what the whole batch measured: the mean of the pieces' losses, and all answers; nothing is read.

    A loss that is absent from a piece added nothing there.
    """
    whole: dict[str, Tensor | tuple[Tensor, Tensor]] = {}
    for name in dict.fromkeys(name for one in measured for name in one):
        found = [one[name] for one in measured if name in one]
        losses = [one for one in found if isinstance(one, Tensor)]
        pairs = [one for one in found if not isinstance(one, Tensor)]
        if losses:
            whole[name] = torch.stack(losses).sum(0) / len(measured)
        else:
            predicted, true = zip(*pairs, strict=True)
            whole[name] = torch.cat(predicted), torch.cat(true)
    return whole
