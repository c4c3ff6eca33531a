"""Convolutions and linear layers in the order in which a network calls them, and what they are given on images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # pyright: ignore[reportPrivateUsage]

from compatkit import TaskState
from compatkit.errors import UnknownName, UsageError, near

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)


class _Reached(Exception):
    """Raised at a layer, since the layers behind it need not run; holds its input or output."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


@attrs.frozen(eq=False)
class CalledLayer:
    """A layer with weights.

    Attributes:
        path: In the whole network, as in its state dict.
        layer: A convolution or a linear layer.
        normed: Whether a normalization takes what it gives.
        followers: Normalization that is called before the next such layer.
    """

    path: str
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    normed: bool
    followers: tuple[_NormBase | nn.GroupNorm | nn.LayerNorm, ...]


def called_layers(state: TaskState, device: str) -> tuple[CalledLayer, ...]:
    """Return the convolutions and linear layers of a task's network, in the order of their first call."""
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def noting(path: str) -> Any:
        return lambda module, inputs, result: calls.append((path, module, inputs[0], result))

    handles = [
        module.register_forward_hook(noting(path))
        for part in (state.extractor, state.head)
        for path, module in part.named_modules()
        if isinstance(module, (*LAYERS, *NORMS))
    ]
    images = torch.zeros(2, len(state.data.mean), *state.data.size, device=device)
    try:
        with torch.no_grad(), first_step_statistics(state):
            state.head(state.extractor(images))
    finally:
        for handle in handles:
            handle.remove()
    called: dict[str, CalledLayer] = {}
    for index, (path, module, _, output) in enumerate(calls):
        if not isinstance(module, LAYERS) or path in called:
            continue
        later = calls[index + 1 :]
        until = next((at for at, call in enumerate(later) if isinstance(call[1], LAYERS)), len(later))
        normed = any(isinstance(call[1], NORMS) and call[2] is output for call in later)
        followers = tuple(call[1] for call in later[:until] if isinstance(call[1], NORMS))
        called[path] = CalledLayer(path, module, normed, followers)
    return tuple(called.values())


def check_globs(plugin: str, state: TaskState, globs: Iterable[str], layers: Sequence[CalledLayer]) -> None:
    """Raise for a name or glob that no layer matches.

    Args:
        plugin: For messages.
        state: The task.
        globs: Names or globs.
        layers: The layers of its network.

    Raises:
        UnknownName: Names the layers nearest to it.
    """
    names = [layer.path for layer in layers]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UnknownName(
                f"{plugin}: the network of task {state.name!r} calls no convolution or linear layer {glob!r}. It calls "
                f"{', '.join(near(glob, names, 3) or names[:20])}.",
                subject=glob,
            )


def chosen_layers(
    plugin: str, state: TaskState, globs: Sequence[str] | None, device: str
) -> dict[str, nn.Module]:
    """Return the layers of these names or globs in the order of their call.

    Args:
        plugin: For messages.
        state: The task.
        globs: Names or globs; None for all convolutions.
        device: Device of the network.

    Raises:
        UnknownName: A name or glob is no convolution or linear layer that the network calls.
        UsageError: A layer is frozen.
    """
    if isinstance(globs, str):
        raise UsageError(f"{plugin}: layers is a list of names or globs, such as [{globs!r}]; got a text.")
    known = called_layers(state, device)
    check_globs(plugin, state, globs or (), known)
    layers: dict[str, nn.Module] = {
        called.path: called.layer
        for called in known
        if (not isinstance(called.layer, nn.Linear) if globs is None else _any(called.path, globs))
    }
    frozen = [
        name
        for name, layer in layers.items()
        if not all(parameter.requires_grad for parameter in layer.parameters())
    ]
    if frozen:
        raise UsageError(
            f"{plugin} draws weights anew; the layer {frozen[0]!r} of task {state.name!r} is frozen. Name other "
            "layers, or train it.",
            subject=frozen[0],
        )
    return layers


def _any(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


@contextmanager
def first_step_statistics(state: TaskState) -> Iterator[None]:
    """Let the network run as in its first step: batch normalization by each batch, but no dropout, nothing is stored.

    Eval mode would use stored statistics, which say nothing before the first step.
    """
    parts = (state.extractor, state.head)
    modes = [(module, module.training) for part in parts for module in part.modules()]
    norms = [norm for part in parts for norm in part.modules() if isinstance(norm, _BatchNorm)]
    before = [
        (norm.momentum, None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone())
        for norm in norms
    ]
    for part in parts:
        part.eval()
    try:
        for norm in norms:
            norm.train(norm not in state.frozen_norms)
            norm.momentum = 0.0
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum = momentum
            if tracked is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(tracked)
        for module, was in modes:
            module.training = was


def layer_input(state: TaskState, layer: nn.Module, images: Tensor) -> Tensor:
    """Return the input of a layer at its first call, ``(batch, ...)``, without gradients."""

    def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs[0])

    return _run(state, images, layer.register_forward_pre_hook(stop))


def layer_output(state: TaskState, layer: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a layer at its first call, ``(batch, ...)``, without gradients."""

    def stop(_: nn.Module, inputs: Any, output: Tensor) -> None:
        raise _Reached(output)

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
