"""Normalisation policies: whose statistics batch normalisation uses once parts are recombined.

``batch`` takes those of each batch (the policy of Gygli et al. 2021, App. C.1), ``reestimate`` estimates them
anew on unlabelled images, ``mix:N`` mixes these with the stored ones, ``running`` keeps the stored ones. Whatever
happens, the buffers of a module are bitwise the same afterwards, and dropout and stochastic depth stay in eval. A
network without batch normalisation gives the same outputs under all of them; ``normalised`` says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import CutError, DataError, UsageError

_FUNCTIONS = (F.batch_norm, torch.batch_norm)


def norm_layers(module: nn.Module) -> tuple[_BatchNorm, ...]:
    """Return the batch normalisation layers: torch's, synchronised ones, timm's with activation.

    Raises:
        CutError: The module is a traced graph that calls batch normalisation as a function, so that no layer
            is left whose statistics could be chosen.
    """
    for one in module.modules():
        if isinstance(one, GraphModule) and any(
            node.op == "call_function" and node.target in _FUNCTIONS for node in one.graph.nodes
        ):
            raise CutError(
                "A traced graph calls batch normalisation as a function, with the mode it was traced in; its "
                "normalisation policy cannot be chosen. Trace with the normalisation layers as leaf modules."
            )
    return tuple(one for one in module.modules() if isinstance(one, _BatchNorm))


def normalised(*modules: nn.Module) -> bool:
    """Return whether a normalisation policy makes a difference to any of the modules."""
    return any(norm_layers(module) for module in modules)


def batches(count: int, batch_size: int, seed: int | None) -> list[Tensor]:
    """Return the batches of an evaluation: each image exactly once, in an order fixed by ``seed``.

    The images are shuffled (a set sorted by class would give batches of one class) and split into as few
    batches as ``batch_size`` allows, of sizes that differ by one at most, so that no statistics come from a
    small rest.

    Args:
        count: Of images.
        batch_size: Largest batch.
        seed: Of the order; None keeps the order given.

    Returns:
        Positions, int64, on the CPU.

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
    """Put a module into eval mode; every part is in its old mode afterwards, also after an error."""
    modes = [(one, one.training) for one in module.modules()]
    root = module.training
    try:
        if any(training for _, training in modes):  # switching takes longer than a small head
            module.eval()
        yield
    finally:
        if any(one.training != training for one, training in modes):
            module.train(root)
            for one, training in modes:
                one.training = training


@contextmanager
def batch_statistics(
    module: nn.Module, others: Literal["eval", "keep"] = "eval", besides: Collection[nn.Module] = ()
) -> Iterator[None]:
    """Let batch normalisation use the statistics of each batch and write no buffer; gradients flow.

    Args:
        module: Its norm layers are switched; all flags are as before afterwards, also after an error.
        others: ``"eval"`` puts everything else into eval mode, ``"keep"`` leaves it as it is.
        besides: Norm layers that are not switched.

    Raises:
        CutError: Batch normalisation cannot be switched, see ``norm_layers``.
    """
    layers = tuple(one for one in norm_layers(module) if one not in besides)
    if others == "eval":
        with evaluation_mode(module), _untracked(layers):
            yield
    else:
        with _untracked(layers):
            yield


@contextmanager
def estimating(module: nn.Module, share: float = 0.0) -> Iterator[None]:
    """Forget the stored statistics; every batch that passes adds to new ones, all batches counting alike.

    The new mean and variance are plain averages over batches of each batch's mean and (unbiased) variance;
    the variance between the means of batches is left out, as in ``momentum=None`` of torch. Everything but
    batch normalisation is in eval mode. Buffers keep what was estimated; flags are as before afterwards.

    With a share the stored statistics are kept to that part (Schneider et al. 2020: N / (N + n) of them, for
    mean and variance): every layer normalises a batch by the mixture of the stored and the batch's statistics, so that
    the layers behind it see what they will see, and keeps the mixture of the stored and the estimated ones.

    Args:
        module: Its buffers are written.
        share: Weight of the stored statistics, in [0, 1].

    Raises:
        CutError: Batch normalisation cannot be switched, see ``norm_layers``.
    """
    layers = [one for one in norm_layers(module) if one.track_running_stats]
    momenta = [one.momentum for one in layers]
    if share:
        with evaluation_mode(module), ExitStack() as stack:
            for one in layers:
                stack.enter_context(_mixing(one, share))
            yield
        return
    with evaluation_mode(module):
        try:
            for one in layers:
                one.reset_running_stats()
                one.momentum = None
                one.training = True
            yield
        finally:
            for one, momentum in zip(layers, momenta, strict=True):
                one.momentum = momentum


@contextmanager
def kept_statistics(module: nn.Module, when: Literal["always", "error"] = "always") -> Iterator[None]:
    """Bring the buffers of batch normalisation back bit for bit afterwards, or only after an error."""
    kept = [(value, value.clone()) for one in norm_layers(module) for value in _buffers(one)]
    done = False
    try:
        yield
        done = True
    finally:
        if when == "always" or not done:
            with torch.no_grad():
                for value, before in kept:
                    value.copy_(before)


def reestimate(module: nn.Module, images: Iterable[Tensor], share: float = 0.0) -> int:
    """Estimate the statistics of batch normalisation anew, in place, by one pass over unlabelled images.

    Args:
        module: The whole recombined network, whose head must see the features of this pass.
        images: Normalised batches of nearly equal size, each ``(batch, channels, height, width)``.
        share: Weight of the stored statistics, see ``estimating``.

    Returns:
        Count of layers whose statistics were estimated; with 0 nothing was run and nothing changed.

    Raises:
        DataError: There are no images, and the network needs some; its statistics are as before.
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
            raise DataError(
                "Estimating statistics of batch normalisation needs at least one batch of images."
            )
    return len(layers)


@contextmanager
def _untracked(layers: tuple[_BatchNorm, ...]) -> Iterator[None]:
    """Train-mode normalisation with tracking off: torch passes no running buffer and counts no batch."""
    flags = [(one, one.training, one.track_running_stats) for one in layers]
    try:
        for one in layers:
            one.training, one.track_running_stats = True, False
        yield
    finally:
        for one, training, tracking in flags:
            one.training, one.track_running_stats = training, tracking


@contextmanager
def _mixing(layer: _BatchNorm, share: float) -> Iterator[None]:
    """Let a layer in eval mode normalise each batch by mixed statistics, and keep the mixed estimate at the end."""
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        yield
        return
    stored = mean.clone(), variance.clone()
    found = [torch.zeros_like(mean), torch.zeros_like(variance)]
    batches_seen = 0

    def look(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        nonlocal batches_seen
        values = (*given, *named.values())[0].detach().to(mean.dtype)
        axes = [axis for axis in range(values.ndim) if axis != 1]
        count = values.numel() // values.shape[1]
        if count < 2:
            raise DataError(
                "Statistics of batch normalisation need more than one value a channel in a batch."
            )
        spread, middle = torch.var_mean(values, dim=axes, correction=0)
        batches_seen += 1
        found[0] += middle
        found[1] += spread * count / (count - 1)
        mean.copy_(torch.lerp(middle, stored[0], share))
        variance.copy_(torch.lerp(spread, stored[1], share))

    handle = layer.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        if batches_seen:
            with torch.no_grad():
                mean.copy_(torch.lerp(found[0] / batches_seen, stored[0], share))
                variance.copy_(torch.lerp(found[1] / batches_seen, stored[1], share))
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.fill_(batches_seen)


def _buffers(layer: _BatchNorm) -> Iterator[Tensor]:
    for value in (layer.running_mean, layer.running_var, layer.num_batches_tracked):
        if value is not None:
            yield value
