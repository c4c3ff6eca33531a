"""Verify that two parts reproduce the network they were cut from, bit for bit, in eval and in train mode."""

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
"""Train mode and batch size of each run."""


def prove(
    whole: nn.Module, extractor: nn.Module, head: nn.Module, size: tuple[int, int], channels: int
) -> None:
    """Compare ``head(extractor(x))`` with ``whole(x)`` bitwise, in eval and in train mode.

    In train mode dropout draws from the same seed, and the buffers must be equal afterwards too. Modes, buffers and the
    global random state are restored.

    Args:
        whole: Network with the weights of the parts; it may hold the same tensors.
        extractor: Part before the cut.
        head: Part after the cut.
        size: Height and width of the images in pixels.
        channels: Image channels.

    Raises:
        CutError: Outputs or buffers differ, a value other than tensors crosses, the output is not one tensor, the head
            changes its input in place, or the network writes into its parameters.
        IntegrityError: Outputs of the whole network are not finite with these weights.
    """
    modules = (whole, extractor, head)
    device = next((tensor.device for tensor in whole.state_dict().values()), torch.device("cpu"))
    with restored_state(*modules), torch.no_grad():
        for training, batch in RUNS:
            images = signal((batch, channels, *size)).to(device)
            _compare(whole, extractor, head, images, training)


@contextmanager
def restored_state(*modules: nn.Module) -> Iterator[None]:
    """Restore modes, buffers and the global CPU random state on exit."""
    registered = RegisteredTensors.of(*modules)
    buffers = {buffer: buffer.clone() for module in modules for buffer in module.buffers()}
    with torch.random.fork_rng(devices=[]), restored_modes(*modules):
        try:
            yield
        finally:
            registered.restore()
            _restore(buffers)


@contextmanager
def restored_modes(*modules: nn.Module) -> Iterator[None]:
    """Restore the mode of every submodule on exit."""
    modes = {child: child.training for module in modules for child in module.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            if module.training is not mode:  # setting an attribute of a module is slow
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
            raise CutError(
                f"{_describe(features)} crosses the cut; only a tensor or a tuple of tensors can cross."
            )
        versions = [tensor._version for tensor in tensors]
        logits = head(features)
        if [tensor._version for tensor in tensors] != versions:
            raise CutError(
                "The head changes its input in place, so several heads could not share the features. Split one module "
                "later."
            )
        return logits

    # Parts and whole share modules, so each sets the modes right before it runs.
    whole.train(training)
    registered, before = RegisteredTensors.of(whole, extractor, head), attributes(whole)
    versions = {name: parameter._version for name, parameter in whole.named_parameters()}
    expected = _run(whole, images)
    registered.check(whole)
    _check_finite(whole, expected, mode)
    state = {name: value.clone() for name, value in whole.state_dict().items()}
    _restore(buffers)
    for part in (extractor, head):
        part.train(training)
    actual = _run(parts, images)
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        raise CutError(f"The network returns {_describe(expected)} in {mode} mode; one tensor was expected.")
    if expected.shape != actual.shape or not torch.equal(expected, actual):
        _restore(buffers)
        _check_repeats(whole, images, mode, expected, changed_attributes(whole, before), versions)
        gap = float((expected - actual).abs().max()) if expected.shape == actual.shape else float("nan")
        raise CutError(
            f"In {mode} mode the parts do not reproduce the whole network at batch size {len(images)}: outputs differ "
            f"by up to {gap:.3g}, but must be equal bit for bit. Split at another module or at 'forward_features'."
        )
    part_state = {**extractor.state_dict(), **head.state_dict()}
    different = sorted(set(part_state) ^ set(state)) or [
        name for name, value in state.items() if not equal(value, part_state[name])
    ]
    if different:
        raise CutError(
            f"In {mode} mode the parts do not hold or update the same state as the whole network: "
            f"{', '.join(different[:3])}. Split at another module or at 'forward_features'."
        )
    _restore(buffers)


def _check_finite(whole: nn.Module, outputs: Any, mode: str) -> None:
    """Raise for outputs that are not finite, which cannot be compared.

    Raises:
        IntegrityError: Outputs are not finite; ``subject`` is the tensor with the largest values, the likely cause.
    """
    if not isinstance(outputs, Tensor) or bool(torch.isfinite(outputs).all()):
        return
    maxima = {
        name: float(value.detach().abs().nan_to_num(posinf=0.0).max())
        for name, value in whole.state_dict().items()
        if value.is_floating_point() and value.numel()
    }
    name = max(maxima, key=lambda key: maxima[key], default=None)
    largest = f" Its largest values, up to {maxima[name]:.3g}, are in {name!r}." if name else ""
    raise IntegrityError(
        f"In {mode} mode the outputs of {type(whole).__name__} are not finite with these weights.{largest} Take "
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
    """Raise if the network's outputs differ between passes with equal images, buffers and random numbers.

    Args:
        whole: Network.
        images: Images of the first pass.
        mode: ``"train"`` or ``"eval"``.
        expected: Outputs of the first pass.
        names: Names of attributes that a forward pass changed.
        versions: Version counter of each parameter before the first pass.

    Raises:
        CutError: A pass writes into parameters or changes attributes; ``subject`` is the first.
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
        f"In {mode} mode outputs of {type(whole).__name__} differ for the same images, buffers and random numbers. "
        f"{cause} outside its state dict, which parts do not store. Register a buffer for it in __init__ and change "
        "that in place, and draw random numbers with torch alone.",
        subject=names[0] if names else None,
    )


def _run(function: Callable[[Tensor], Any], images: Tensor) -> Any:
    torch.default_generator.manual_seed(0)
    return function(images.clone())


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type_of(value)} of {len(value)} ({', '.join(map(_describe, value))})"
    return f"{type_of(value)}"
