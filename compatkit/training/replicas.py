"""Several processes hold the same weights; what each has of its own share of the batches is brought together here."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compatkit.evaluation.normalisation import norm_layers
from compatkit.registry.weights.tensorfile import state_digest
from compatkit.training.loop import Loop

RUNNING = ("running_mean", "running_var")


def even_statistics(loop: Loop) -> None:
    """Give every process the mean of the running statistics of batch normalisation, and process 0's other buffers.

    Running statistics are moving averages, and so are averages of them: their mean is what averaging in every step
    would have given.
    """
    world = loop.world
    if world.size == 1:
        return
    running: list[Tensor] = []
    for owner, module in loop.setup.owners.items():
        layers = {id(one) for one in norm_layers(module)}
        names = [f"{name}." if name else "" for name, one in module.named_modules() if id(one) in layers]
        kept = loop.averages.kept[owner] if loop.averages is not None else {}
        for state in (module.state_dict(), kept):
            running += [state[name + which] for name in names for which in RUNNING if name + which in state]
        known = {name + which for name in names for which in (*RUNNING, "num_batches_tracked")}
        for name, value in module.named_buffers():
            if name not in known:
                world.copy_first(value)
    if running:
        flat = torch.cat([value.flatten() for value in running])
        world.add_up(flat)
        flat /= world.size
        parts = flat.split([value.numel() for value in running])
        for value, part in zip(running, parts, strict=True):
            value.copy_(part.view_as(value))


def check_replicas(loop: Loop) -> None:
    """Check that all processes hold the same weights and buffers, bit by bit.

    Raises:
        TrainingError: They drifted apart; the owner module is named.
    """
    owners: dict[str, nn.Module] = loop.setup.owners
    if loop.world.size > 1:
        digests = {owner: state_digest(module.state_dict()) for owner, module in owners.items()}
        remedy = "They began alike and move by the same gradients: a plugin changed them in one process only."
        loop.world.check_same(digests, "weights", remedy)
