"""Hooks of a run's plugins, ready to be called, with checks of their results; no check waits for a device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs

from compatkit.errors import CompatkitError, PluginError, UsageError, type_of
from compatkit.hooks import Batch, Effect, Phase
from compatkit.plugins.isolation import described
from compatkit.plugins.loss_results import check_combined_gradients, check_sample_losses, wrong_result

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Call = Callable[..., Any]
LOSSES, VIEWS, FURTHER = "compatkit_losses", "compatkit_views", "compatkit_further_views"
SAMPLE_LOSSES, COMBINE = "compatkit_sample_losses", "compatkit_combine_gradients"
JOINT_LOSSES = "compatkit_joint_losses"


@attrs.frozen(eq=False)
class Bound:
    """A hook of one instance, ready to be called in a step.

    Attributes:
        instance: Name in logs and messages.
        weight: Factor of the losses.
        phase: Steps in which the trainer calls it; set-up, pretraining and finish are always called.
        effect: ``pure``, ``device`` or ``host``.
        autocast: Whether its losses are computed in the precision of the forward passes; else in float32.
        call: Function of the hook's full arguments, in their order or by name; errors name the plugin, and the result
            is checked.
        function: The same without attribution and checks, for a compiled step.
    """

    instance: str
    weight: float
    phase: Phase
    effect: Effect
    call: Call
    function: Call
    autocast: bool = False


def bind(
    instance: str,
    weight: float,
    phase: Phase,
    effect: Effect,
    hook: str,
    function: Call,
    autocast: bool = False,
) -> Bound:
    """Return a Bound whose ``call`` guards ``function``, which takes the hook's full arguments.

    Args:
        instance: Name of the plugin's instance in the run.
        weight: Factor of its losses.
        phase: Steps in which it is active.
        effect: Declared side effects, see ``hooks.effect``.
        hook: Name of the hook.
        function: The plugin's implementation.
        autocast: Whether the hook is marked with ``hooks.autocast``.
    """
    if hook == VIEWS:
        call: Call = _views_guard([(instance, function)])
    else:
        call = _attributing(instance, hook, function)
        checks = {
            LOSSES: _checking_losses,
            FURTHER: _checking_views,
            SAMPLE_LOSSES: _checking_sample_losses,
            COMBINE: _checking_gradients,
            JOINT_LOSSES: _checking_joint_losses,
        }
        call = checks[hook](instance, call) if hook in checks else call
    return Bound(instance, weight, phase, effect, call, function, autocast)


def adapt(function: Call, full: tuple[str, ...], taken: tuple[str, ...]) -> Call:
    """Wrap a function of some of a hook's arguments to take all of them, in their order or by name.

    Args:
        function: Function of the arguments ``taken``.
        full: Names of all arguments of the hook.
        taken: Names of the function's arguments.
    """
    if taken == full:
        return function
    if not taken:
        return lambda *arguments, **keywords: function()
    indices = tuple(full.index(name) for name in taken)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if keywords:
            arguments += tuple(keywords[name] for name in full[len(arguments) :])
        return function(*(arguments[index] for index in indices))

    return call


def after_chain(bounds: Sequence[Bound], hook: str) -> tuple[Callable[[Any], None], ...]:
    """Return one call for several hooks whose only argument is the step; an empty tuple for no hooks.

    A guard per hook would be most of the cost of idle plugins, so all share one. An error names its plugin, as in
    ``Bound.call``.

    Args:
        bounds: Implementations of the hook, in order.
        hook: Name of the hook.
    """
    if not bounds:
        return ()

    def call(step: Any) -> None:
        for bound in bounds:
            try:
                bound.function(step)
            except (Exception, SystemExit) as error:
                _raise_attributed(error, bound.instance, hook)

    return (call,)


def _raise_attributed(error: BaseException, instance: str, hook: str) -> NoReturn:
    """Raise an error of a hook with the plugin's name; compatkit's errors keep their class, except UsageError."""
    keeps_class = isinstance(error, CompatkitError) and not isinstance(error, UsageError)
    if isinstance(error, PluginError) or keeps_class:
        error.add_note(f"Raised in {hook} of plugin {instance!r}.")
        raise error
    message = f"Plugin {instance!r} failed in {hook}: {described(error)}"
    raise PluginError(message, plugin=instance, hook=hook) from error


def _attributing(instance: str, hook: str, function: Call) -> Call:
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except (Exception, SystemExit) as error:
            _raise_attributed(error, instance, hook)

    return call


def _checking_sample_losses(instance: str, function: Call) -> Call:
    def call(step: Any, losses: Tensor) -> Tensor:
        before = _writes(step, losses)
        after = function(step, losses)
        _refuse_writes(instance, SAMPLE_LOSSES, before, _writes(step, losses))
        return check_sample_losses(instance, after, losses)

    return call


def _checking_joint_losses(instance: str, function: Call) -> Call:
    def call(joint: Any) -> Mapping[str, Tensor]:
        before = {name: _writes(step) for name, step in joint.steps.items()}
        losses = function(joint)
        for name, step in joint.steps.items():
            _refuse_writes(instance, JOINT_LOSSES, before[name], _writes(step))
        tasks = [step.task for step in joint.steps.values()]
        device = next(iter(joint.steps.values())).batch.images.device
        trainable = not all(task.freezes_extractor for task in tasks)
        return check_losses(instance, losses, device=device, trainable=trainable, hook=JOINT_LOSSES)

    return call


def _checking_gradients(instance: str, function: Call) -> Call:
    def call(step: Any, gradients: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        return check_combined_gradients(instance, function(step, gradients), gradients)

    return call


def _refuse_writes(instance: str, hook: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Raise if a hook wrote into a tensor that it was given; see ``_writes``."""
    if written := [name for name, count in after.items() if count != before.get(name, count)]:
        raise wrong_result(
            instance,
            hook,
            f"wrote into {written[0]}",
            "Compute a new tensor, without in-place operations: the task and other plugins use it too.",
        )


def _checking_losses(instance: str, function: Call) -> Call:
    def call(step: Any) -> Mapping[str, Tensor]:
        features, before = getattr(step, "features", None), _writes(step)
        losses = function(step)
        _refuse_writes(instance, LOSSES, before, _writes(step))
        if features is None:
            return check_losses(instance, losses)
        return check_losses(instance, losses, device=features.device, trainable=features.requires_grad)

    return call


def _writes(step: Any, losses: Tensor | None = None) -> dict[str, int]:
    """Return autograd's counts of in-place writes to the tensors that losses read, by name."""
    batch = getattr(step, "batch", None)
    tensors = {f"step.{name}": getattr(step, name, None) for name in ("features", "logits")}
    tensors |= {f"step.batch.{name}": getattr(batch, name, None) for name in ("images", "labels", "index")}
    tensors["losses"] = losses
    return {
        name: tensor._version
        for name, tensor in tensors.items()
        if tensor is not None and not tensor.is_inference()
    }


def _checking_views(instance: str, function: Call) -> Call:
    expected_count: int | None = None  # that of the first call; features are assigned to instances by it

    def call(images: Tensor) -> Sequence[Tensor]:
        nonlocal expected_count
        views = function(images)
        wanted = images.shape, images.dtype, images.device
        if not isinstance(views, Sequence):
            actual = _described(views)
        elif any(_kind(view) != wanted for view in views):
            actual = f"{[_kind(view) for view in views]}"
        elif expected_count not in (None, len(views)):
            actual = f"{len(views)} views, where it returned {expected_count} before,"
        else:
            expected_count = len(views)
            return views
        raise wrong_result(
            instance,
            FURTHER,
            f"returned {actual} for images of {wanted}",
            "Return a list of views of that shape and type, the same number each time, or an empty one.",
        )

    return call


def _kind(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name, None) for name in ("shape", "dtype", "device"))


def views_chain(bounds: Sequence[Bound]) -> Call:
    """Return one call for ``compatkit_views`` of several plugins; each receives the result of the one before."""
    return _views_guard([(bound.instance, bound.function) for bound in bounds])


def _views_guard(functions: Sequence[tuple[str, Call]]) -> Callable[[Any, Batch], Batch]:
    first_call = True  # reading labels waits for their device, so those on a device are checked only once

    def call(step: Any, batch: Batch) -> Batch:
        nonlocal first_call
        before = _written(batch)
        for instance, function in functions:
            try:
                after = function(step, batch)
            except (Exception, SystemExit) as error:
                _raise_attributed(error, instance, VIEWS)
            try:  # without a call: a step of a small network takes as long as some hundred calls
                written = batch.images._version + batch.labels._version + batch.index._version
            except RuntimeError:
                written = _written(batch)
            if written != before:
                remedy = "Return a new one: attrs.evolve(batch, images=...), without in-place operations."
                raise wrong_result(instance, VIEWS, "wrote into the batch that it was given", remedy)
            if after is not batch:
                read_labels = first_call or _on_host(after)
                batch = check_batch(instance, after, batch, _classes_of(step) if read_labels else None)
                before = _written(batch)
        first_call = False
        return batch

    return call


def _written(batch: Batch) -> int:
    """Return autograd's count of in-place writes to the batch's tensors."""
    try:
        return batch.images._version + batch.labels._version + batch.index._version
    except RuntimeError:  # tensors of inference mode have no count
        each = (batch.images, batch.labels, batch.index)
        return sum(tensor._version for tensor in each if not tensor.is_inference())


def _on_host(batch: object) -> bool:
    labels = getattr(batch, "labels", None)
    return getattr(getattr(labels, "device", None), "type", "cpu") == "cpu"


def _classes_of(step: Any) -> int | None:
    """Return the number of classes of a step's task; None if its batches have no labels."""
    task = getattr(step, "task", None)
    return len(task.labels) if task is not None and task.supervised else None


def check_batch(instance: str, batch: object, original: Batch, classes: int | None = None) -> Batch:
    """Check the result of ``compatkit_views``, and return it.

    Args:
        instance: Name of the plugin's instance.
        batch: The result.
        original: The batch passed to the plugin.
        classes: Number of classes, to check the values of new labels; None does not read them.

    Raises:
        PluginError: The result is not a batch, its images have another size, dtype or device, or its labels are not one
            class index per image.
    """
    if not isinstance(batch, Batch):
        raise wrong_result(
            instance,
            VIEWS,
            f"returned {_described(batch)}, not a Batch",
            "Return attrs.evolve(batch, ...), or batch itself where nothing changes.",
        )
    for name in ("images", "labels", "index"):
        tensor, expected = getattr(batch, name), getattr(original, name)
        if tensor is not expected:
            _check_like(instance, name, tensor, expected)
    counts = len(batch.images), len(batch.labels), len(batch.index)
    if not counts[0] or len(set(counts)) > 1:
        what = f"returned {counts[0]} images with {counts[1]} labels and {counts[2]} indices"
        raise wrong_result(instance, VIEWS, what, "Give one label and one index to each image.")
    if classes is not None and batch.labels is not original.labels:
        low, high = int(batch.labels.min()), int(batch.labels.max())
        if low < 0 or high >= classes:
            what = f"returned labels from {low} to {high} for a task of {classes} classes"
            raise wrong_result(instance, VIEWS, what, "Give class indices, from 0 on.")
    return batch


def _check_like(instance: str, name: str, actual: object, expected: Tensor) -> None:
    """Raise if a tensor of a batch differs from the original in anything but values and length."""
    import torch

    remedy = {
        "images": "Keep the images' size, which Task.size sets and the contract states, and their dtype.",
        "labels": "Give one class index per image; losses of soft labels belong to compatkit_losses.",
        "index": "Give one index per image.",
    }[name]
    if not isinstance(actual, torch.Tensor):
        raise wrong_result(instance, VIEWS, f"returned {_described(actual)} as {name}", remedy)
    kinds = ((("n", *tensor.shape[1:]), tensor.dtype, tensor.device) for tensor in (actual, expected))
    for value, other in zip(*kinds, strict=True):
        if value != other:
            raise wrong_result(instance, VIEWS, f"returned {name} of {value}, given {other}", remedy)


def check_losses(
    instance: str,
    losses: object,
    *,
    device: torch.device | None = None,
    trainable: bool = True,
    hook: str = LOSSES,
) -> Mapping[str, Tensor]:
    """Check the result of ``compatkit_losses``, and return it.

    Values are not read, so nothing waits for the device; the trainer detects losses that are not finite.

    Args:
        instance: Name of the plugin's instance.
        losses: Mapping from names to floating-point tensors of shape ``()``.
        device: Expected device; None does not check it.
        trainable: Whether the features require a gradient. If the extractor is frozen, losses of its features have none
            either, and are only logged.
        hook: Name of the hook, for messages.

    Returns:
        The losses, unchanged.

    Raises:
        PluginError: The result is something else.
    """
    import torch

    def wrong(what: str, remedy: str) -> PluginError:
        return wrong_result(instance, hook, what, remedy)

    if not isinstance(losses, Mapping):
        raise wrong(
            f"returned {_described(losses)}, not a mapping",
            "Return {'name': loss}; an empty mapping adds nothing in this step.",
        )
    for name, loss in cast("Mapping[object, object]", losses).items():
        if not isinstance(name, str) or not name or "/" in name:
            raise wrong(f"named a loss {name!r}", "Names are texts without '/'.")
        if not isinstance(loss, torch.Tensor):
            raise wrong(
                f"gave {_described(loss)} as {name!r}", "Give a tensor; do not call .item() or float()."
            )
        if loss.dim() != 0:
            raise wrong(f"gave {name!r} with shape {tuple(loss.shape)}, not ()", "Take its mean or sum.")
        if not loss.is_floating_point():
            raise wrong(f"gave {name!r} as {loss.dtype}", "Give a floating-point tensor.")
        if device is not None and loss.device != device:
            raise wrong(
                f"gave {name!r} on {loss.device}, the step is on {device}", "Compute it on the step's device."
            )
        if trainable and torch.is_grad_enabled() and not loss.requires_grad:
            raise wrong(
                f"gave {name!r} without a gradient, so it would change nothing",
                "Do not detach it or compute it under no_grad; leave it out of steps that it has nothing to add to.",
            )
    return cast("Mapping[str, Tensor]", losses)


def _described(value: object) -> str:
    return "nothing (None)" if value is None else type_of(value)
