"""Find a chain: follow the output back to the images and sort the calls into stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .stages import Parts, Stage, modules_of, not_a_chain
from .tracking import Call

LINEAR = (nn.Linear, nn.modules.conv._ConvNd)
NORM = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
ACT = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(
        nn.Tanh,
        nn.Sigmoid,
        nn.Softplus,
        nn.Softsign,
        nn.Hardtanh,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.LogSigmoid,
    ),
)
POOL = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Upsample),
)
SAME = (
    nn.Flatten,
    nn.Unflatten,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.Identity,
    nn.Sequential,
)
SAME_FUNCTIONS = frozenset(
    {
        *(torch.flatten, Tensor.flatten, torch.reshape, Tensor.reshape, Tensor.view, Tensor.unflatten),
        *(torch.squeeze, Tensor.squeeze, torch.unsqueeze, Tensor.unsqueeze, Tensor.contiguous),
        *(F.dropout, F.dropout2d),
    }
)
POOL_FUNCTIONS = frozenset(
    {
        *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.max_pool1d, F.max_pool2d, F.max_pool3d),
        *(torch.max_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.interpolate),
    }
)
Step = Callable[[Tensor], Tensor]
Between = list[list[Step]]
"""For each stage, the operations between the preceding activation and its linear layer."""


def build_stages(parts: Parts, calls: Sequence[Call]) -> tuple[tuple[Stage, ...], Between]:
    """Follow the output back to the input and sort the calls into stages.

    Args:
        parts: The network, in the order of execution.
        calls: All calls of one forward pass.

    Returns:
        The stages, first to last, and what lies between them.
    """
    building = _Building(modules_of(parts))
    for call in _path(calls):
        building.add(call)
    return building.finished()


def _path(calls: Sequence[Call]) -> list[Call]:
    """Return the calls from input to output, each of which takes the output of the one before."""
    first, output = calls[0], calls[-1]
    path: list[Call] = []
    tensor, before = output.output, len(calls) - 1
    while True:
        index = next((at for at in range(before - 1, 0, -1) if calls[at].output is tensor), None)
        if index is None:
            break
        call = calls[index]
        if len(call.inputs) != 1:
            raise not_a_chain(call.where, f"{call.what} takes {len(call.inputs)} tensors")
        path.append(call)
        tensor, before = call.inputs[0], index
    if tensor is not first.output:
        at = path[-1].where if path else "the network"
        raise not_a_chain(at, "takes what no layer gave: its input does not come from the images")
    return path[::-1]


@attrs.define
class _Building:
    """Builds stages from the calls of a chain, in order."""

    modules: Mapping[str, nn.Module]
    stages: list[Stage] = attrs.field(factory=list)
    between: Between = attrs.field(factory=lambda: [[]])
    pools: list[Call] = attrs.field(factory=list)

    def add(self, call: Call) -> None:
        """Add the next call.

        Raises:
            UsageError: The call cannot be part of a chain.
        """
        module = call.module
        if call.path in self.modules and isinstance(module, LINEAR):
            self._linear(call)
        elif isinstance(module, _BatchNorm) or (isinstance(module, NORM) and not hasattr(module, "act")):
            self._norm(call, module)
        elif isinstance(module, ACT):
            self._act(call)
        elif isinstance(module, SAME) or call.function in SAME_FUNCTIONS:
            self.between[-1].append(call.again)
        elif isinstance(module, POOL) or _pools(module) or call.function in POOL_FUNCTIONS:
            self.pools.append(call)
            self.between[-1].append(call.again)
        else:
            raise not_a_chain(call.where, f"{call.what} has no place in a chain")

    def _linear(self, call: Call) -> None:
        if any(stage.linear == call.path for stage in self.stages):
            raise not_a_chain(call.where, "is called twice")
        stage = Stage(call.name)
        if self.pools:
            first, last = self.pools[0].inputs[0], self.pools[-1]
            taken, pooled = tuple(first.shape[1:]), tuple(last.output.shape[1:])
            stage = attrs.evolve(stage, pool=last.name, taken=taken, pooled=pooled)
        self.stages.append(stage)
        self.between.append([])
        self.pools = []

    def _norm(self, call: Call, module: nn.Module) -> None:
        last = self._open(call, "normalizes")
        if last.norm is not None or last.act is not None:
            raise not_a_chain(call.where, "normalizes what was normalized or activated already")
        fused = getattr(module, "act", None)
        act = f"{call.path}.act" if fused is not None and not isinstance(fused, nn.Identity) else None
        self.stages[-1] = attrs.evolve(last, norm=call.path, act=act)

    def _act(self, call: Call) -> None:
        last = self._open(call, "activates")
        if last.act is not None:
            raise not_a_chain(call.where, "is a second activation of one layer")
        self.stages[-1] = attrs.evolve(last, act=call.path)

    def _open(self, call: Call, does: str) -> Stage:
        """Return the current stage, which may still get a norm or an activation."""
        if not self.stages:
            raise not_a_chain(call.where, f"{does} before the first layer")
        if self.pools:
            raise not_a_chain(call.where, f"{does} after the pooling {self.pools[0].what}, not before it")
        return self.stages[-1]

    def finished(self) -> tuple[tuple[Stage, ...], Between]:
        """Return the stages, and the operations between them."""
        if not self.stages:
            raise not_a_chain("the network", "has no linear or convolutional layer between images and output")
        if self.pools:
            raise not_a_chain(self.pools[0].where, "pools after the last layer")
        return tuple(self.stages), self.between


def _pools(module: nn.Module | None) -> bool:
    """Return whether this is timm's pooling layer, which may also flatten."""
    return type(module).__name__ == "SelectAdaptivePool2d"
