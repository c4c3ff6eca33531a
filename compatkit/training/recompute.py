"""Recompute the activations of blocks in the backward pass: less memory for more time.

timm's ``set_grad_checkpointing`` sets a switch that the forward pass of a complete network reads. Extractor and head
are parts, so their blocks are wrapped one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from compatkit.errors import TrainingError, UsageError
from compatkit.evaluation.batchnorm import kept_statistics, norm_layers
from compatkit.training.task_state import TaskState

_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList)
"""Classes of containers of blocks, which may never be called themselves."""


@contextmanager
def recomputing(tasks: Iterable[TaskState]) -> Iterator[None]:
    """Recompute the activations of blocks for tasks that request it; restore the blocks on exit.

    Raises:
        UsageError: A network has no ``group_matcher``, or no block.
    """
    with ExitStack() as stack:
        for state in tasks:
            for name, block in _blocks(state) if state.task.recompute_activations else ():
                stack.enter_context(_recomputed(name, block))
        yield


def _blocks(state: TaskState) -> list[tuple[str, nn.Module]]:
    """Return the largest modules in one layer each, without the stem and the modules after the last block."""
    from compatkit.adapters.optimizers import grouped

    blocks: list[tuple[str, nn.Module]] = []
    for blueprint, part in ((state.extractor_blueprint, state.extractor), (state.head_blueprint, state.head)):
        layers = grouped(blueprint, "layer", "recompute_activations")
        inner = {name: layer for name, layer in layers.items() if 0 < layer < max(layers.values())}
        blocks += _blocks_in(part, "", inner, getattr(part, "stops_at", ""))
    if not blocks:
        raise UsageError(
            f"recompute_activations needs blocks of modules; {state.task.model} of task {state.name!r} has none "
            "between its first layer and its class layer. Use accumulate=2 of the trainer to save memory.",
            subject=state.name,
        )
    return blocks


def _blocks_in(
    module: nn.Module, path: str, layers: Mapping[str, int], stop: str
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of a module, except the unfinished one of an extractor that is stopped at ``stop``."""
    for name, child in module.named_children():
        child_path = f"{path}{name}"
        numbers = {layers.get(f"{child_path}.{parameter}") for parameter, _ in child.named_parameters()}
        is_block = len(numbers) == 1 and None not in numbers and type(child) not in _CONTAINERS
        is_block = is_block and not stop.startswith(f"{child_path}.")
        if is_block and any(child.children()) and not isinstance(child, _BatchNorm):
            yield child_path, child
        else:
            yield from _blocks_in(child, f"{child_path}.", layers, stop)


@contextmanager
def _recomputed(name: str, block: nn.Module) -> Iterator[None]:
    before, attributes = block.__dict__.get("forward"), block.__dict__
    attributes["forward"] = _RecomputedForward(name, block, block.forward)
    try:
        yield
    finally:
        del attributes["forward"]
        attributes |= {} if before is None else {"forward": before}


@attrs.frozen(eq=False)
class _RecomputedForward:
    """Forward pass of a block that stores its input alone."""

    name: str
    block: nn.Module
    forward: Callable[..., Any]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*arguments, **keywords)
        tensors = [value for value in tree_leaves((arguments, keywords)) if isinstance(value, Tensor)]
        return checkpoint(
            self.forward,
            *arguments,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), self._recomputation(tensors)),
            **keywords,
        )

    def _recomputation(self, inputs: Sequence[Tensor]) -> _Recomputation:
        versions = [(tensor, tensor._version) for tensor in (*inputs, *self.block.parameters())]
        modes = [(layer, layer.training, layer.track_running_stats) for layer in norm_layers(self.block)]
        return _Recomputation(self.name, self.block, inputs, versions, modes)


@attrs.define(eq=False)
class _Recomputation(AbstractContextManager[None]):
    """Context of a recomputation, with the modes of the forward pass; one for every backward pass."""

    name: str
    block: nn.Module
    inputs: Sequence[Tensor]
    versions: Sequence[tuple[Tensor, int]]
    modes: Sequence[tuple[_BatchNorm, bool, bool]]
    _stack: ExitStack = attrs.field(factory=ExitStack)

    def __enter__(self) -> None:
        pairs = zip([*self.inputs, *self.block.parameters()], self.versions, strict=True)
        if any(tensor is not old or tensor._version != version for tensor, (old, version) in pairs):
            raise TrainingError(
                f"The block {self.name!r} cannot be recomputed: its input or weights changed between forward and "
                "backward pass. Leave recompute_activations out.",
                subject=self.name,
            )
        # Running statistics include the batch already, but autograd requires them as arguments again.
        self._stack.enter_context(kept_statistics(self.block))
        for layer, training, tracking in self.modes:
            self._stack.callback(_switch, layer, layer.training, layer.track_running_stats)
            _switch(layer, training, tracking)

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


def _switch(layer: _BatchNorm, training: bool, tracking: bool) -> None:
    layer.training, layer.track_running_stats = training, tracking
