"""A step's batch worked through in pieces: less memory at a time, and the gradients of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from compatkit.training.context import Batch, Step


def pieces(step: Step, count: int) -> list[Step]:
    """Return a step as ``count`` steps of the same number, each with its piece of the batch, in order."""
    if count == 1:
        return [step]
    batch = step.batch
    chunks = (one.chunk(count) for one in (batch.images, batch.labels, batch.index))
    return [
        attrs.evolve(step, batch=Batch(*parts), piece=piece)
        for piece, parts in enumerate(zip(*chunks, strict=True))
    ]


def together(worked: Sequence[tuple[dict[str, Tensor], Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the terms and answers of the whole batch: the means of the pieces' terms, and all answers.

    A term that is absent from a piece added nothing there. Nothing is read.
    """
    if len(worked) == 1:
        return worked[0]
    names = dict.fromkeys(name for terms, _ in worked for name in terms)
    means = {
        name: torch.stack([terms[name] for terms, _ in worked if name in terms]).sum(0) / len(worked)
        for name in names
    }
    return means, torch.cat([answers for _, answers in worked])


def labels(steps: Sequence[Step]) -> Tensor:
    """Return the labels of the whole batch, in the order of the answers."""
    if len(steps) == 1:
        return steps[0].batch.labels
    return torch.cat([step.batch.labels for step in steps])
