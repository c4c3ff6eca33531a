"""Batch-norm policies applied to modules.

``batch`` uses the statistics of each batch (Gygli et al. 2021, App. C.1), ``reestimate`` estimates them on unlabeled
images, ``mix:N`` mixes the estimate with the stored ones, ``running`` uses the stored ones. Buffers are restored
bitwise unless an estimate is requested; dropout and stochastic depth stay in eval mode. Without batch normalization all
policies give the same outputs; see ``has_batch_norm``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import CutError, DataError, UsageError

_FUNCTIONS = (F.batch_norm, torch.batch_norm)


def norm_layers(module: nn.Module) -> tuple[_BatchNorm, ...]:
    """Return the batch normalization layers: torch's, synchronized ones, and timm's with activation.

    Raises:
        CutError: A traced graph calls batch normalization as a function, so there is no layer to switch.
    """
    for layer in module.modules():
        if isinstance(layer, GraphModule) and any(
            node.op == "call_function" and node.target in _FUNCTIONS for node in layer.graph.nodes
        ):
            raise CutError(
                "A traced graph calls batch normalization as a function, so its batch-norm policy cannot be chosen. "
                "Trace with the normalization layers as leaf modules."
            )
    return tuple(layer for layer in module.modules() if isinstance(layer, _BatchNorm))


def has_batch_norm(*modules: nn.Module) -> bool:
    """Return whether any of the modules contains batch normalization."""
    return any(norm_layers(module) for module in modules)


def batches(count: int, batch_size: int, seed: int | None) -> list[Tensor]:
    """Return the batches of an evaluation: each image once, in an order given by ``seed``.

    Images are shuffled (a set sorted by class would give batches of one class) and split into as few batches as
    ``batch_size`` allows, of sizes that differ by at most one, so that no statistics come from a small remainder.

    Args:
        count: Number of images.
        batch_size: Largest batch.
        seed: Seed of the order; None keeps the given order.

    Returns:
        Indices of each batch, int64 ``(batch,)``, on the CPU.

    Raises:
        UsageError: ``batch_size`` is below 1.
        DataError: There are no images.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
    if count < 1:
        raise DataError("There are no images to evaluate on.")
    order = torch.arange(count)
    if seed is not None:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return list(torch.tensor_split(order, -(-count // batch_size)))


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode; restore the mode of every submodule afterwards."""
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    root = module.training
    try:
        if any(
            training for _, training in modes
        ):  # skipped if possible: it can take longer than a small head
            module.eval()
        yield
    finally:
        if any(submodule.training != training for submodule, training in modes):
            module.train(root)
            for submodule, training in modes:
                submodule.training = training


@contextmanager
def batch_statistics(
    module: nn.Module, others: Literal["eval", "keep"] = "eval", besides: Collection[nn.Module] = ()
) -> Iterator[None]:
    """Normalize with the statistics of each batch without writing buffers; gradients flow.

    Args:
        module: Its norm layers are switched; all flags are restored afterwards.
        others: ``"eval"`` puts everything else into eval mode, ``"keep"`` leaves it unchanged.
        besides: Norm layers that are not switched.

    Raises:
        CutError: Batch normalization cannot be switched; see ``norm_layers``.
    """
    layers = tuple(layer for layer in norm_layers(module) if layer not in besides)
    with evaluation_mode(module) if others == "eval" else nullcontext(), _untracked(layers):
        yield


@contextmanager
def estimating(module: nn.Module, share: float = 0.0) -> Iterator[None]:
    """Replace stored statistics by averages over the batches that pass in the block.

    New mean and variance are plain averages of each batch's mean and (unbiased) variance; the variance between batch
    means is ignored, as in torch with ``momentum=None``. Everything except batch normalization is in eval mode. Flags
    are restored afterwards.

    With a share, stored statistics keep that weight (Schneider et al. 2020: N / (N + n), for mean and variance). Every
    layer normalizes a batch by the mixture of stored and batch statistics, so that later layers see what they will
    see, and stores the mixture of stored and estimated ones.

    Args:
        module: Its buffers are written.
        share: Weight of the stored statistics, in [0, 1].

    Raises:
        CutError: Batch normalization cannot be switched; see ``norm_layers``.
    """
    layers = [layer for layer in norm_layers(module) if layer.track_running_stats]
    with evaluation_mode(module), ExitStack() as stack:
        for layer in layers:
            if share:
                stack.enter_context(_mixing(layer, share))
                continue
            stack.callback(setattr, layer, "momentum", layer.momentum)
            layer.reset_running_stats()
            layer.momentum = None
            layer.training = True
        yield


@contextmanager
def kept_statistics(module: nn.Module, when: Literal["always", "error"] = "always") -> Iterator[None]:
    """Restore the buffers of batch normalization bitwise afterwards, always or only after an error.

    Args:
        module: Module whose buffers are restored.
        when: ``"error"`` keeps what a block that succeeds has changed.
    """
    before_and_after = [(value, value.clone()) for layer in norm_layers(module) for value in _buffers(layer)]
    done = False
    try:
        yield
        done = True
    finally:
        if when == "always" or not done:
            with torch.no_grad():
                for value, before in before_and_after:
                    value.copy_(before)


def reestimate(module: nn.Module, images: Iterable[Tensor], share: float = 0.0) -> int:
    """Estimate the statistics of batch normalization in place, in one pass over unlabeled images.

    Args:
        module: The complete recombined network; the head must see the features of this pass.
        images: Normalized batches of nearly equal size, each ``(batch, channels, height, width)``.
        share: Weight of the stored statistics; see ``estimating``.

    Returns:
        Number of estimated layers; if 0, nothing was run or changed.

    Raises:
        DataError: There are no images although the network has batch normalization; statistics are unchanged.
    """
    layers = norm_layers(module)
    if not layers:
        return 0
    passed = 0
    with kept_statistics(module, when="error"), estimating(module, share), torch.no_grad():
        for batch in images:
            module(batch)
            passed += 1
        if not passed:
            raise DataError("Estimating batch-norm statistics needs at least one batch of images.")
    return len(layers)


@contextmanager
def _untracked(layers: tuple[_BatchNorm, ...]) -> Iterator[None]:
    """Put layers into train mode without tracking, so that torch neither reads nor writes running buffers."""
    flags = [(layer, layer.training, layer.track_running_stats) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.track_running_stats = True, False
        yield
    finally:
        for layer, training, tracking in flags:
            layer.training, layer.track_running_stats = training, tracking


@contextmanager
def _mixing(layer: _BatchNorm, share: float) -> Iterator[None]:
    """Make a layer in eval mode normalize each batch by mixed statistics and store the mixed estimate at the end."""
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        yield
        return
    stored = mean.clone(), variance.clone()
    sums = [torch.zeros_like(mean), torch.zeros_like(variance)]
    batches_seen = 0

    def look(_: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        nonlocal batches_seen
        values = (*arguments, *keywords.values())[0].detach().to(mean.dtype)
        axes = [axis for axis in range(values.ndim) if axis != 1]
        count = values.numel() // values.shape[1]
        if count < 2:
            raise DataError(
                "Estimating batch-norm statistics needs more than one value per channel in a batch."
            )
        spread, middle = torch.var_mean(values, dim=axes, correction=0)
        batches_seen += 1
        sums[0] += middle
        sums[1] += spread * count / (count - 1)
        mean.copy_(torch.lerp(middle, stored[0], share))
        variance.copy_(torch.lerp(spread, stored[1], share))

    handle = layer.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        if batches_seen:
            with torch.no_grad():
                mean.copy_(torch.lerp(sums[0] / batches_seen, stored[0], share))
                variance.copy_(torch.lerp(sums[1] / batches_seen, stored[1], share))
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.fill_(batches_seen)


def _buffers(layer: _BatchNorm) -> Iterator[Tensor]:
    buffers = layer.running_mean, layer.running_var, layer.num_batches_tracked
    return (value for value in buffers if value is not None)
