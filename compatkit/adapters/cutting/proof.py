"""Proof that two parts reproduce the network they were cut from, bit for bit, in eval and in train mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.sideeffects import RegisteredTensors, attributes, changed_attributes, equal
from compatkit.adapters.cutting.signals import signal
from compatkit.errors import CutError, IntegrityError, type_of

RUNS = ((False, 2), (False, 3), (True, 2))
"""Train mode or not, and images in the batch."""


def prove(
    whole: nn.Module, extractor: nn.Module, head: nn.Module, size: tuple[int, int], channels: int
) -> None:
    """Compare ``head(extractor(x))`` with ``whole(x)``: bitwise, in eval and in train mode.

    In train mode dropout draws from the same seed and the buffers must end equal too. Modes, buffers and the
    global random state are as before.

    Args:
        whole: The network, with the same weights as the parts (it may hold the very same tensors).
        extractor: The part before the cut.
        head: The part after the cut.
        size: Height and width of the images in pixels.
        channels: Channels of the images.

    Raises:
        CutError: Outputs or buffers differ, something else than tensors cross, or than one comes out, or the head
            changes its input in place, or the network writes into its parameters.
        IntegrityError: Outputs of the whole network are not finite with these weights.
    """
    modules = (whole, extractor, head)
    device = next((tensor.device for tensor in whole.state_dict().values()), torch.device("cpu"))
    with unchanged(*modules), torch.no_grad():
        for training, batch in RUNS:
            images = signal((batch, channels, *size)).to(device)
            _compare(whole, extractor, head, images, training)


@contextmanager
def unchanged(*modules: nn.Module) -> Iterator[None]:
    """Restore modes, buffers and the global CPU random state on exit."""
    registered = RegisteredTensors.of(*modules)
    buffers = {buffer: buffer.clone() for module in modules for buffer in module.buffers()}
    with torch.random.fork_rng(devices=[]), modes_kept(*modules):
        try:
            yield
        finally:
            registered.restore()
            _restore(buffers)


@contextmanager
def modes_kept(*modules: nn.Module) -> Iterator[None]:
    """Restore the mode of every submodule on exit."""
    modes = {child: child.training for module in modules for child in module.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _restore(buffers: dict[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in buffers.items():
            buffer.copy_(value)


def _compare(whole: nn.Module, extractor: nn.Module, head: nn.Module, images: Tensor, training: bool) -> None:
    mode = "train" if training else "eval"
    buffers = {b: b.clone() for module in (whole, extractor, head) for b in module.buffers()}

    def parts(x: Tensor) -> Any:
        features = extractor(x)
        tensors = (features,) if isinstance(features, Tensor) else features
        if not isinstance(tensors, tuple) or not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise CutError(f"{_shown(features)} crosses the cut; a cut passes a tensor or a tuple of them.")
        versions = [tensor._version for tensor in tensors]
        logits = head(features)
        if [tensor._version for tensor in tensors] != versions:
            raise CutError(
                "The head changes the features that it is given in place, so they could not be given to several "
                "heads. Split one module later."
            )
        return logits

    # Parts and whole share modules; each sets its modes in its own way, right before it runs.
    whole.train(training)
    registered, before = RegisteredTensors.of(whole, extractor, head), attributes(whole)
    versions = {name: parameter._version for name, parameter in whole.named_parameters()}
    expected = _run(whole, images)
    registered.check(whole)
    _check_finite(whole, expected, mode)
    moved = {name: value.clone() for name, value in whole.state_dict().items()}
    _restore(buffers)
    for part in (extractor, head):
        part.train(training)
    actual = _run(parts, images)
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        raise CutError(f"The network gives {_shown(expected)} in {mode} mode; one tensor was expected.")
    if expected.shape != actual.shape or not torch.equal(expected, actual):
        _restore(buffers)
        _check_repeats(whole, images, mode, expected, changed_attributes(whole, before), versions)
        gap = float((expected - actual).abs().max()) if expected.shape == actual.shape else float("nan")
        raise CutError(
            f"In {mode} mode the parts do not reproduce the whole network at batch size {len(images)}: outputs differ "
            f"by up to {gap:.3g}, where equal bits were expected. Split at another module or at 'forward_features'."
        )
    joined = {**extractor.state_dict(), **head.state_dict()}
    wrong = sorted(set(joined) ^ set(moved)) or [
        n for n, value in moved.items() if not equal(value, joined[n])
    ]
    if wrong:
        raise CutError(
            f"In {mode} mode the parts do not hold or move the same state as the whole network: "
            f"{', '.join(wrong[:3])}. Split at another module or at 'forward_features'."
        )
    _restore(buffers)


def _check_finite(whole: nn.Module, outputs: Any, mode: str) -> None:
    """Raise for outputs that are not finite, which no comparison could tell apart.

    Raises:
        IntegrityError: Names the tensor with the largest values, which is most likely the cause.
    """
    if not isinstance(outputs, Tensor) or bool(torch.isfinite(outputs).all()):
        return
    numbers = {
        name: float(value.detach().abs().nan_to_num(posinf=0.0).max())
        for name, value in whole.state_dict().items()
        if value.is_floating_point() and value.numel()
    }
    name = max(numbers, key=lambda key: numbers[key], default=None)
    largest = f" Its largest values, up to {numbers[name]:.3g}, are in {name!r}." if name else ""
    raise IntegrityError(
        f"In {mode} mode {type(whole).__name__} gives outputs that are not finite with these weights.{largest} Take "
        "weights that give finite outputs; after training, train again with a lower learning rate.",
        subject=name,
    )


def _check_repeats(
    whole: nn.Module,
    images: Tensor,
    mode: str,
    expected: Tensor,
    names: list[str],
    versions: Mapping[str, int],
) -> None:
    """Raise if the network itself gives other outputs than before for the same images, buffers and random numbers.

    Args:
        whole: The network.
        images: What it was run on.
        mode: In which.
        expected: What it gave.
        names: Of attributes that a forward pass set.
        versions: How often each parameter had been written to before the first pass.

    Raises:
        CutError: Names the parameters or attributes that a forward pass set; ``subject`` is the first.
    """
    whole.train(mode == "train")
    parameters = dict(whole.named_parameters())
    values = {name: parameter.clone() for name, parameter in parameters.items()}
    written = [name for name, parameter in parameters.items() if parameter._version != versions[name]]
    again = _run(whole, images)
    written += [
        name
        for name, parameter in parameters.items()
        if name not in written and not equal(parameter, values[name])
    ]
    if written:
        raise CutError(
            f"In {mode} mode the forward pass of {type(whole).__name__} writes into its parameter {written[0]!r}, so "
            "that outputs depend on the passes before. Leave parameters to the optimizer: compute a bounded or scaled "
            "weight in forward and use that, or register a buffer for what changes.",
            subject=written[0],
        )
    if equal(expected, again):
        return
    cause = f"It sets {', '.join(map(repr, names[:3]))} while it runs" if names else "It keeps state"
    raise CutError(
        f"In {mode} mode {type(whole).__name__} gives other outputs for the same images, buffers and random numbers. "
        f"{cause} outside its state dict, which no part would keep. Register a buffer for it in __init__ and change "
        "that in place, and draw random numbers with torch alone.",
        subject=names[0] if names else None,
    )


def _run(function: Callable[[Tensor], Any], images: Tensor) -> Any:
    torch.default_generator.manual_seed(0)
    return function(images.clone())


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type_of(value)} of {len(value)} ({', '.join(map(_shown, value))})"
    return f"{type_of(value)}"
