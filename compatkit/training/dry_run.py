"""A pass before the first step that finds out what would spoil layer records, and what to do about it.

An in-place activation overwrites what the layer before it gave; autograd does not mind, a plugin that compares it would
in silence compare something else. Torch counts the writes into every tensor, so that one pass tells which are hit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.evaluation.normalisation import batch_statistics
from compatkit.training.precision import Precision
from compatkit.training.randomness import preserved
from compatkit.training.recording import Layers, Notes, Recorder, first_of
from compatkit.training.viewwise import CLOSE, Viewwise

IMAGES = 4
"""In a dry run."""


def dry_run(recorder: Recorder, shape: tuple[int, ...], precision: Precision) -> None:
    """Find activations that overwrite what is recorded, to be switched off, and tensors that must be copied.

    Args:
        recorder: Knows both afterwards.
        shape: Of an image, ``(channels, height, width)``.
        precision: Of the run.

    Raises:
        UsageError: A layer cannot be recorded.
    """
    images = _images(recorder.extractor, (IMAGES, *shape))
    with _left_alone(recorder), precision.autocast():
        recorder.extractor.train()
        recorder.head.train()
        recorder.switched = tuple(_overwriting(recorder, images))
        for name, hit in _overwritten(recorder, images).items():
            recorder.notes[name].copied = hit


def refuses_views(recorder: Recorder, shape: tuple[int, ...]) -> str | None:
    """Return why the records of a batch cannot be taken out of a pass of several views, or None; note how they can.

    Args:
        recorder: Knows afterwards which tensors have a row for each image.
        shape: Of an image, ``(channels, height, width)``.
    """
    images = _images(recorder.extractor, (2 * IMAGES, *shape))
    with _left_alone(recorder), batch_statistics(recorder.extractor):
        alone = _calls(recorder, images[:IMAGES], whole=False)
        with Viewwise(2):
            both = _calls(recorder, images, whole=False)
    for name, calls in alone.items():
        if len(calls) != len(both[name]):
            return f"the layer {name!r} is called more often for more images"
        for call, twice in zip(calls, both[name], strict=True):
            pairs = [(one, other) for one, other in zip(call[:2], twice[:2], strict=True)]
            rows = tuple(one.shape != other.shape for one, other in pairs)
            if not all(_begins(one, other) for one, other in pairs):
                return f"the rows of what is recorded of the layer {name!r} are not those of the images"
            recorder.notes[name].rows = (rows[0], rows[1])
    return None


def _images(extractor: nn.Module, shape: tuple[int, ...]) -> Tensor:
    first = next(extractor.parameters(), torch.empty(0))
    draw = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=draw).to(first.device, first.dtype)


@contextmanager
def _left_alone(recorder: Recorder) -> Iterator[None]:
    """Give back random states, modes and all buffers, and leave no hook."""
    parts = (recorder.extractor, recorder.head)
    modes = [(module, module.training) for part in parts for module in part.modules()]
    kept = [(one, one.detach().clone()) for part in parts for one in part.buffers()]
    try:
        with preserved(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a network may warn in each of its steps, where it belongs
            yield
    finally:
        recorder.close()
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for one, before in kept:
                one.copy_(before)


def _calls(recorder: Recorder, images: Tensor, *, whole: bool = True) -> Layers:
    """Return what all layers do with ``images`` in the whole network, or in the extractor."""
    recording = recorder.follow(recorder.asked)
    if recording is None:
        return {}
    recording.begin()
    try:
        features = recorder.extractor(images)
        if whole:
            recorder.head(features)
    finally:
        found = recording.end()
    return found


def _begins(one: Tensor, other: Tensor) -> bool:
    """Tell whether ``other`` is ``one``, or has as many rows again behind it."""
    if one.shape != other.shape and (not one.dim() or other.shape != (2 * len(one), *one.shape[1:])):
        return False
    most = float(one.detach().abs().max()) if one.numel() else 0.0
    return not one.numel() or float((one - other[: len(one)]).detach().abs().max()) <= CLOSE * most


@contextmanager
def _around_layers(
    recorder: Recorder, before: Callable[..., None], after: Callable[..., None]
) -> Iterator[None]:
    """Call ``before`` and ``after`` around each call of a layer that is asked for."""
    with ExitStack() as stack:
        for module in (module for name in recorder.notes for module in recorder.modules(name)):
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after).remove)
        yield


def _overwriting(recorder: Recorder, images: Tensor) -> Iterator[nn.Module]:
    """Yield the modules with an ``inplace`` that is on whose input shares memory with something recorded."""
    seen: list[Tensor] = []
    places: set[int] = set()
    found: dict[int, nn.Module] = {}

    def keep(one: Any) -> None:
        if isinstance(one, Tensor):
            seen.append(one)  # while it lives, nothing else has its memory
            places.add(one.untyped_storage().data_ptr())

    def entered(module: nn.Module, arguments: Any, named: Any) -> None:
        keep(first_of(arguments, named))

    def left(module: nn.Module, arguments: Any, output: Any) -> None:
        keep(output)

    def writes(module: nn.Module, arguments: Any) -> None:
        if any(isinstance(one, Tensor) and one.untyped_storage().data_ptr() in places for one in arguments):
            found[id(module)] = module

    with ExitStack() as stack:
        stack.enter_context(_around_layers(recorder, entered, left))
        for module in (one for part in (recorder.extractor, recorder.head) for one in part.modules()):
            if getattr(module, "inplace", None) is True:
                stack.callback(module.register_forward_pre_hook(writes).remove)
        _calls(recorder, images)
    yield from found.values()


def _overwritten(recorder: Recorder, images: Tensor) -> dict[str, tuple[bool, bool]]:
    """Return by layer whether its inputs and its outputs are written to after its calls.

    Raises:
        UsageError: A layer writes into its own input.
    """
    counted: list[tuple[Tensor, int, str, int]] = []
    hit = {name: [False, False] for name in recorder.notes}
    entered: list[tuple[Any, int]] = []

    def before(module: nn.Module, arguments: Any, named: Any) -> None:
        given = first_of(arguments, named)
        entered.append((given, given._version if isinstance(given, Tensor) else 0))

    def after(module: nn.Module, arguments: Any, output: Any) -> None:
        given, version = entered.pop()
        notes: Notes = module._layer_notes  # type: ignore[assignment]
        name = notes.name
        if isinstance(given, Tensor) and given._version != version:
            raise UsageError(
                f"The layer {name!r} cannot be recorded: it writes into its own input. Ask for layers inside of it.",
                subject=name,
            )
        if isinstance(given, Tensor) and isinstance(output, Tensor):
            counted.extend((one, one._version, name, place) for place, one in enumerate((given, output)))

    with _around_layers(recorder, before, after):
        _calls(recorder, images)
    for tensor, version, name, place in counted:
        hit[name][place] |= tensor._version != version
    return {name: (both[0], both[1]) for name, both in hit.items()}
