"""Keep the replicas of several processes equal: gradients, statistics, weights.

Gradients are reduced after the backward pass, in one order on all processes, not in hooks of a wrapper around each
module: a step may use a module many times or in some processes only, and plugins call modules directly
(docs/explanation/architecture.md, "Gradients are exchanged after the backward pass").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import norm_layers
from compatkit.registry.weights.tensorfile import state_digest
from compatkit.training.distributed import World
from compatkit.training.optim import Averages


@attrs.define(eq=False)
class Bucket:
    """Gradients of a step's parameters of one dtype in one flat tensor.

    Attributes:
        parameters: Parameters of one dtype.
        memory: Flat gradients, followed by a flag for each: whether this process has it.
        views: Views of ``memory`` with the strides of each parameter, as fused optimizers require.
        flags: View of ``memory`` with the flags.
    """

    parameters: tuple[Tensor, ...]
    memory: Tensor
    views: tuple[Tensor, ...]
    flags: Tensor

    @classmethod
    def of(cls, parameters: Iterable[Tensor]) -> Bucket:
        """Allocate memory for the gradients of parameters."""
        bucketed = tuple(parameters)
        size = sum(parameter.numel() for parameter in bucketed) + len(bucketed)
        memory = bucketed[0].detach().new_zeros(size)
        views, start = [], 0
        for parameter in bucketed:
            views.append(memory.as_strided(parameter.shape, _strides(parameter), start))
            start += parameter.numel()
        return cls(bucketed, memory, tuple(views), memory[start:])

    def presence(self) -> Tensor:
        """Return the flags of this process's gradients.

        Returns:
            uint8 ``(parameters,)`` on the CPU: 1 for a parameter with a gradient, else 0.
        """
        return torch.tensor([parameter.grad is not None for parameter in self.parameters], dtype=torch.uint8)

    def fill(self) -> None:
        """Copy the gradients of this process into the memory, 0 for missing ones."""
        views, grads = [], []
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                views.append(view)
                grads.append(parameter.grad)
        if grads:
            torch._foreach_copy_(views, grads)  # pyright: ignore[reportPrivateImportUsage]

    def assign(self, has_gradient: Iterable[bool]) -> None:
        """Set the gradients of the parameters with a gradient in any process."""
        for parameter, view, has in zip(self.parameters, self.views, has_gradient, strict=True):
            parameter.grad = view if has else None


class GradientAllReduce:
    """Means of gradients over processes, for the steps of one run.

    The mean is the gradient over the full batch, as every process has an equal share of it. To be called once for each
    update of the optimizers, after all backward passes.
    """

    def __init__(self, owners: Mapping[str, nn.Module], tasks: Iterable[str], world: World) -> None:
        """See the class."""
        self.world = world
        task_of = {f"{task}.{side}": task for task in tasks for side in ("extractor", "head")}
        self._buckets = {
            task: _buckets(module for owner, module in owners.items() if task_of.get(owner, task) == task)
            for task in task_of.values()
        }

    def __call__(self, task: str) -> None:
        """Average the gradients of the parameters of a task's step over all processes.

        Raises:
            ProcessLost: Another process does not answer.
        """
        for bucket in self._buckets[task]:
            present, on_cpu = bucket.presence(), bucket.memory.device.type == "cpu"
            bucket.fill()
            if on_cpu:
                bucket.flags.copy_(present)
            else:
                self.world.all_reduce_max(present)  # on the CPU, without waiting for the device
            self.world.all_reduce_sum(bucket.memory)
            bucket.memory /= self.world.size
            bucket.assign((bucket.flags > 0 if on_cpu else present > 0).tolist())


def _buckets(modules: Iterable[nn.Module]) -> tuple[Bucket, ...]:
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                by_dtype.setdefault(parameter.dtype, []).append(parameter)
    return tuple(map(Bucket.of, by_dtype.values()))


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor that fills its memory, else those of a contiguous one."""
    return torch.empty_like(tensor, device="meta").stride()


RUNNING = ("running_mean", "running_var")


def average_statistics(world: World, owners: Mapping[str, nn.Module], averages: Averages | None) -> None:
    """Average the running statistics of batch normalization over all processes; copy other buffers of process 0.

    Running statistics are moving averages, so that their mean equals the result of averaging in every step.

    Args:
        world: Processes of the run.
        owners: Modules by owner; changed in place.
        averages: Moving averages of the weights, whose buffers are averaged too; or None.
    """
    if world.size == 1:
        return
    running: list[Tensor] = []
    for owner, module in owners.items():
        layers = {id(layer) for layer in norm_layers(module) if layer.training}  # frozen ones are equal
        names = [f"{name}." if name else "" for name, layer in module.named_modules() if id(layer) in layers]
        averaged = averages.values[owner] if averages is not None else {}
        for state in (module.state_dict(), averaged):
            running += [
                state[name + buffer] for name in names for buffer in RUNNING if name + buffer in state
            ]
        norm_buffers = {name + buffer for name in names for buffer in (*RUNNING, "num_batches_tracked")}
        for name, value in module.named_buffers():
            if name not in norm_buffers:
                world.broadcast(value)
    if running:
        flat = torch.cat([value.flatten() for value in running])
        world.all_reduce_sum(flat)
        flat /= world.size
        parts = flat.split([value.numel() for value in running])
        for value, part in zip(running, parts, strict=True):
            value.copy_(part.view_as(value))


def check_replicas(world: World, owners: Mapping[str, nn.Module]) -> None:
    """Check that all processes have equal weights and buffers, bit by bit.

    Args:
        world: Processes of the run.
        owners: Modules by owner.

    Raises:
        TrainingError: Weights or buffers differ; the message names the owner.
    """
    if world.size > 1:
        digests = {owner: state_digest(module.state_dict()) for owner, module in owners.items()}
        remedy = "They get the same gradients: a plugin changed them in one process only."
        world.check_same(digests, "weights", remedy)


class _Activated(nn.SyncBatchNorm):
    """Synchronized form of timm's layers, which apply dropout and an activation after the normalization."""

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        drop, act = self.get_submodule("drop"), self.get_submodule("act")
        return act(drop(super().forward(input)))


@contextmanager
def sync_batchnorm(modules: Iterable[nn.Module], world: World, *, on: bool) -> Iterator[None]:
    """Synchronize the batch statistics of batch normalization over all processes, in frozen heads too.

    Args:
        modules: Modules; their layers are changed in the block.
        world: Processes of the run.
        on: Whether to synchronize.

    Raises:
        UsageError: The run is on a CPU, or a layer cannot be synchronized.
        CutError: Batch normalization is called as a function, see ``norm_layers``.
    """
    if not on or world.size == 1:
        yield
        return
    if not world.device.startswith("cuda"):
        raise UsageError(
            f"synchronize_statistics needs GPUs; this run is on {world.device!r}. Leave it out, so that each process "
            "normalizes its own share."
        )
    layers = [
        (layer, _synchronized_class(layer))
        for module in modules
        for layer in norm_layers(module)
        if not isinstance(layer, nn.SyncBatchNorm)
    ]
    before = [(layer, layer.__class__) for layer, _ in layers]
    try:
        for layer, synchronized in layers:
            layer.__class__ = synchronized
            layer.__dict__["process_group"] = None  # all processes
        yield
    finally:
        for layer, original in before:
            layer.__class__ = original
            layer.__dict__.pop("process_group", None)


def _synchronized_class(layer: _BatchNorm) -> type[nn.SyncBatchNorm]:
    """Return the synchronized class for a layer."""
    if type(layer).forward is _BatchNorm.forward:
        return nn.SyncBatchNorm
    if all(isinstance(getattr(layer, name, None), nn.Module) for name in ("act", "drop")):
        return _Activated
    raise UsageError(
        f"synchronize_statistics does not support {type(layer).__module__}.{type(layer).__name__}. Leave it out."
    )
