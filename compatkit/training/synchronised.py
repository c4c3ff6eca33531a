"""Batch normalisation over the images of all processes, while a run lasts.

torch's ``SyncBatchNorm`` computes it. Layers become synchronised ones in place and what they were before the run is
over: they stay the same objects, with the same names and tensors, so that plugins that hold them, checkpoints and
what is published know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import UsageError
from compatkit.evaluation.normalisation import norm_layers
from compatkit.training.distributed import World
from compatkit.training.set_up import SetUp


class _Activated(nn.SyncBatchNorm):
    """As timm's layers, which drop and activate what they have normalised."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        drop, act = self.get_submodule("drop"), self.get_submodule("act")
        return act(drop(super().forward(input)))


@contextmanager
def synchronised(setup: SetUp, world: World, *, on: bool) -> Iterator[None]:
    """Let batch normalisation use the statistics of the whole batch of all processes, in frozen heads too.

    Raises:
        UsageError: The run is on a CPU, or a layer is of a kind that cannot be synchronised.
        CutError: Batch normalisation is called as a function, see ``norm_layers``.
    """
    if not on or world.size == 1:
        yield
        return
    if not world.device.startswith("cuda"):
        raise UsageError(
            f"synchronise_statistics needs GPUs: torch.nn.SyncBatchNorm takes no tensors on {world.device!r}. Leave it "
            "out, so that each process normalises its share by itself, or use networks without batch normalisation."
        )
    layers = [
        (layer, _kind(layer))
        for module in (*setup.owners.values(), *(head.module for head in setup.frozen.values()))
        for layer in norm_layers(module)
        if not isinstance(layer, nn.SyncBatchNorm)
    ]
    before = [(layer, layer.__class__) for layer, _ in layers]
    try:
        for layer, kind in layers:
            layer.__class__ = kind
            layer.__dict__["process_group"] = None  # all processes
        yield
    finally:
        for layer, kind in before:
            layer.__class__ = kind
            layer.__dict__.pop("process_group", None)


def _kind(layer: _BatchNorm) -> type[nn.SyncBatchNorm]:
    """Return the synchronised kind of a layer."""
    if type(layer).forward is _BatchNorm.forward:
        return nn.SyncBatchNorm
    if isinstance(getattr(layer, "act", None), nn.Module) and isinstance(
        getattr(layer, "drop", None), nn.Module
    ):
        return _Activated
    raise UsageError(
        f"synchronise_statistics cannot synchronise a {type(layer).__module__}.{type(layer).__name__}: it "
        "normalises in its own way. Leave the setting out."
    )
