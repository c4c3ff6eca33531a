"""Train weights of a bridge on fixed features, with batch statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from compatkit.components.bridges.rungs import batch_statistics
from compatkit.errors import DataError

BATCH = 64
"""Batch size."""


def train(
    network: nn.Module,
    weights: Iterable[nn.Parameter],
    features: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    settings: Mapping[str, float],
    seed: int,
) -> None:
    """Train selected weights of a network on fixed features.

    Args:
        network: From features to logits.
        weights: Those to train; the others stay.
        features: ``(n, c, ...)``, all in memory.
        loss_of: Loss of logits, given with the positions of their images.
        settings: ``lr`` and ``steps``.
        seed: Seed of the batches.

    Raises:
        DataError: A loss is not finite.
    """
    chosen = list(weights)
    network.requires_grad_(False)
    for parameter in chosen:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(chosen, lr=settings["lr"])
    draw = torch.Generator().manual_seed(seed)
    size = min(BATCH, len(features))
    with batch_statistics(network), torch.enable_grad():
        for step in range(int(settings["steps"])):
            indices = torch.randperm(len(features), generator=draw)[:size]
            loss = loss_of(network(features[indices]).float(), indices)
            if not bool(torch.isfinite(loss)):
                raise DataError(
                    f"The loss of step {step} is not finite; check the features, or leave this rung out."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.requires_grad_(True)
    network.zero_grad(set_to_none=True)
