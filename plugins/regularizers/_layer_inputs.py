"""Layers in the order in which a network calls them, and what they are given on training images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit import TaskState
from compatkit.errors import UnknownName, UsageError, near

from ._initial_weights import LAYERS


class _Reached(Exception):
    """Raised at a layer, since the layers behind it need not run; holds its input or output."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def called_layers(state: TaskState, device: str) -> dict[str, nn.Module]:
    """Return convolutions and linear layers by path in the whole network, in the order of their first call."""
    known = {
        path: module
        for part in (state.extractor, state.head)
        for path, module in part.named_modules()
        if isinstance(module, LAYERS)
    }
    order: list[str] = []

    def noting(path: str) -> Any:
        return lambda *_: order.append(path)

    handles = [module.register_forward_pre_hook(noting(path)) for path, module in known.items()]
    images = torch.zeros(2, len(state.data.mean), *state.data.size, device=device)
    try:
        with torch.no_grad(), first_step_statistics(state):
            state.head(state.extractor(images))
    finally:
        for handle in handles:
            handle.remove()
    return {path: known[path] for path in order}


def chosen_layers(
    plugin: str, state: TaskState, wanted: Sequence[str] | None, device: str
) -> dict[str, nn.Module]:
    """Return the layers of these names or globs in the order of their call.

    Args:
        plugin: For messages.
        state: The task.
        wanted: Names or globs; None for all convolutions.
        device: Of the network.

    Raises:
        UnknownName: A name or glob is no convolution or linear layer that the network calls.
        UsageError: A layer is frozen.
    """
    known = called_layers(state, device)
    if isinstance(wanted, str):
        raise UsageError(f"{plugin}: layers is a list of names or globs, such as [{wanted!r}]; got a text.")
    for one in wanted or ():
        if not any(fnmatchcase(name, one) for name in known):
            raise UnknownName(
                f"{plugin}: the network of task {state.name!r} calls no convolution or linear layer {one!r}. It calls "
                f"{', '.join(near(one, list(known), 3) or list(known)[:20])}.",
                subject=one,
            )
    found = {
        name: layer
        for name, layer in known.items()
        if (not isinstance(layer, nn.Linear) if wanted is None else _any(name, wanted))
    }
    frozen = [
        name for name, layer in found.items() if not all(one.requires_grad for one in layer.parameters())
    ]
    if frozen:
        raise UsageError(
            f"{plugin} draws weights anew; the layer {frozen[0]!r} of task {state.name!r} is frozen. Name other "
            "layers, or train it.",
            subject=frozen[0],
        )
    return found


def _any(name: str, wanted: Sequence[str]) -> bool:
    return any(fnmatchcase(name, one) for one in wanted)


@contextmanager
def first_step_statistics(state: TaskState) -> Iterator[None]:
    """Let the network run as in its first step: batch normalisation by each batch, but no dropout, nothing is stored.

    Eval mode would use stored statistics, which say nothing before the first step.
    """
    parts = (state.extractor, state.head)
    norms = [one for part in parts for one in part.modules() if isinstance(one, _BatchNorm)]
    before = [
        (one.momentum, None if one.num_batches_tracked is None else one.num_batches_tracked.clone())
        for one in norms
    ]
    for part in parts:
        part.eval()
    try:
        for one in norms:
            one.train(one not in state.frozen_norms)
            one.momentum = 0.0
        yield
    finally:
        for one, (momentum, tracked) in zip(norms, before, strict=True):
            one.eval()
            one.momentum = momentum
            if tracked is not None and one.num_batches_tracked is not None:
                one.num_batches_tracked.copy_(tracked)


def given_to(state: TaskState, layer: nn.Module, images: Tensor) -> Tensor:
    """Return the input of a layer at its first call, ``(batch, ...)``, without gradients."""

    def stop(_: nn.Module, taken: tuple[Any, ...]) -> None:
        raise _Reached(taken[0])

    return _run(state, images, layer.register_forward_pre_hook(stop))


def given_by(state: TaskState, layer: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a layer at its first call, ``(batch, ...)``, without gradients."""

    def stop(_: nn.Module, taken: Any, gave: Tensor) -> None:
        raise _Reached(gave)

    return _run(state, images, layer.register_forward_hook(stop))


def _run(state: TaskState, images: Tensor, handle: Any) -> Tensor:
    try:
        with torch.no_grad(), first_step_statistics(state):
            state.head(state.extractor(images))
    except _Reached as reached:
        return reached.value
    finally:
        handle.remove()
    raise UsageError(
        f"The network of task {state.name!r} called a layer at first and not later. Give a network that runs the same "
        "layers for all images."
    )


def batching(state: TaskState, images: int, batch_size: int) -> dict[str, int]:
    """Return ``steps`` and ``batch_size`` of about ``images`` images, at most those that there are."""
    count = min(images, len(state.examples))
    return {"steps": max(1, count // batch_size), "batch_size": min(count, batch_size)}
