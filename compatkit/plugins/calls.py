"""Resolved hooks of plugins, with the checks of what they return; nothing here waits for a device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs

from compatkit.errors import CompatkitError, PluginError, UsageError, type_of
from compatkit.hooks import Batch, Effect, Phase
from compatkit.plugins.isolation import described

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Call = Callable[..., Any]
LOSSES, VIEWS, FURTHER = "compatkit_losses", "compatkit_views", "compatkit_further_views"


@attrs.frozen(eq=False)
class Bound:
    """A hook of one instance, ready to be called in a step.

    Attributes:
        instance: Name in logs and messages.
        weight: Factor of the losses.
        phase: Steps in which the trainer calls it; set-up, pretraining and finish are called in any case.
        effect: ``pure``, ``device`` or ``host``.
        autocast: Whether its losses are computed in the precision of the forward passes; else in float32.
        call: Takes the hook's full arguments in their order, or by name; names the plugin in errors, and
            checks the result.
        function: The same without naming and checks, for a compiled step.
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
        effect: What the hook declares about its effects, see ``hooks.effect``.
        hook: Name of the hook.
        function: The plugin's implementation.
        autocast: What the hook declares, see ``hooks.autocast``.
    """
    if hook == VIEWS:
        call: Call = _views_guard([(instance, function)])
    else:
        call = _attributing(instance, hook, function)
        checks = {LOSSES: _checking_losses, FURTHER: _checking_views}
        call = checks[hook](instance, call) if hook in checks else call
    return Bound(instance, weight, phase, effect, call, function, autocast)


def adapt(function: Call, full: tuple[str, ...], taken: tuple[str, ...]) -> Call:
    """Return ``function`` as one that takes all of ``full``, in that order or by name.

    Args:
        function: Takes the arguments named in ``taken``.
        full: Names of all arguments of the hook.
        taken: Some of them.
    """
    if taken == full:
        return function
    if not taken:
        return lambda *arguments, **keywords: function()
    places = tuple(full.index(name) for name in taken)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if keywords:
            arguments += tuple(keywords[name] for name in full[len(arguments) :])
        return function(*(arguments[place] for place in places))

    return call


def after_chain(bounds: Sequence[Bound], hook: str) -> tuple[Callable[[Any], None], ...]:
    """Return one call for several hooks that take the step alone, in their order; nothing where there are none.

    One guard for all of them: what idle plugins cost a step is mostly guards of their own. An error names the plugin
    that raised it, as ``Bound.call`` does.

    Args:
        bounds: Of this hook, in order.
        hook: Its name.
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
    """Raise an error of a hook so that it names the plugin; other errors of ours keep their kind."""
    ours = isinstance(error, CompatkitError) and not isinstance(error, UsageError)
    if isinstance(error, PluginError) or ours:
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


def _wrong(instance: str, hook: str, what: str, remedy: str) -> PluginError:
    return PluginError(f"Plugin {instance!r}: {hook} {what}. {remedy}", plugin=instance, hook=hook)


def _checking_losses(instance: str, function: Call) -> Call:
    def call(step: Any) -> Mapping[str, Tensor]:
        features, before = getattr(step, "features", None), _writes(step)
        losses = function(step)
        if written := [name for name, count in _writes(step).items() if count != before.get(name, count)]:
            raise _wrong(
                instance,
                LOSSES,
                f"wrote into step.{written[0]}, which the task and other plugins use too",
                "Compute a new tensor, without in-place operations.",
            )
        if features is None:
            return check_losses(instance, losses)
        return check_losses(instance, losses, device=features.device, moving=features.requires_grad)

    return call


def _writes(step: Any) -> dict[str, int]:
    """Return by name how often the tensors that losses see were written to in place, as autograd counts it."""
    batch = getattr(step, "batch", None)
    tensors = {name: getattr(step, name, None) for name in ("features", "logits")}
    tensors |= {f"batch.{name}": getattr(batch, name, None) for name in ("images", "labels", "index")}
    return {
        name: tensor._version
        for name, tensor in tensors.items()
        if tensor is not None and not tensor.is_inference()
    }


def _checking_views(instance: str, function: Call) -> Call:
    counts = list[
        int
    ]()  # of the first call, by which features are given to the instances that asked for them

    def call(images: Tensor) -> Sequence[Tensor]:
        views = function(images)
        wanted = images.shape, images.dtype, images.device
        if not isinstance(views, Sequence):
            actual = _described(views)
        elif any(_kind(view) != wanted for view in views):
            actual = f"{[_kind(view) for view in views]}"
        elif counts and len(views) != counts[0]:
            actual = f"{len(views)} views, where it returned {counts[0]} before,"
        else:
            counts[:] = [len(views)]
            return views
        raise _wrong(
            instance,
            FURTHER,
            f"returned {actual} for images of {wanted}",
            "Return a list of views of that shape and type, the same number each time, or an empty one.",
        )

    return call


def _kind(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name, None) for name in ("shape", "dtype", "device"))


def views_chain(bounds: Sequence[Bound]) -> Call:
    """Return one call for ``compatkit_views`` of several plugins, each of which sees the batch of the one before."""
    return _views_guard([(bound.instance, bound.function) for bound in bounds])


def _views_guard(functions: Sequence[tuple[str, Call]]) -> Callable[[Any, Batch], Batch]:
    placed: list[bool] = []  # labels on a device are read in the first call only: reading waits for it

    def call(step: Any, batch: Batch) -> Batch:
        before = _written(batch)
        for instance, function in functions:
            try:
                after = function(step, batch)
            except (Exception, SystemExit) as error:
                _raise_attributed(error, instance, VIEWS)
            if _written(batch) != before:
                remedy = "Return a new one: attrs.evolve(batch, images=...), without in-place operations."
                raise _wrong(instance, VIEWS, "wrote into the batch that it was given", remedy)
            if after is not batch:
                classes = None if placed and not _on_host(after) else _classes_of(step)
                batch = check_batch(instance, after, batch, classes)
                before = _written(batch)
        placed.append(True)
        return batch

    return call


def _written(batch: Batch) -> int:
    """Return how often the batch's tensors were written to in place, as autograd counts it."""
    try:
        return batch.images._version + batch.labels._version + batch.index._version
    except RuntimeError:  # tensors of inference mode count nothing
        each = (batch.images, batch.labels, batch.index)
        return sum(tensor._version for tensor in each if not tensor.is_inference())


def _on_host(batch: object) -> bool:
    labels = getattr(batch, "labels", None)
    return getattr(getattr(labels, "device", None), "type", "cpu") == "cpu"


def _classes_of(step: Any) -> int | None:
    """Return how many classes the task of a step tells apart; None where its batches have no labels."""
    task = getattr(step, "task", None)
    return len(task.labels) if task is not None and task.supervised else None


def check_batch(instance: str, batch: object, original: Batch, classes: int | None = None) -> Batch:
    """Return the result of ``compatkit_views``, if the task can train on it as its contract will say.

    Args:
        instance: Name of the plugin's instance.
        batch: What it returned.
        original: The batch that it was given.
        classes: How many classes the labels are of, which are read then; None reads none.

    Raises:
        PluginError: It is no batch; images of another size, type or device; labels that are no class indices, or
            another count of them.
    """
    if not isinstance(batch, Batch):
        raise _wrong(
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
        raise _wrong(instance, VIEWS, what, "Give one label and one index to each image.")
    if classes is not None and batch.labels is not original.labels:
        least, most = int(batch.labels.min()), int(batch.labels.max())
        if least < 0 or most >= classes:
            what = f"returned labels from {least} to {most} for a task of {classes} classes"
            raise _wrong(instance, VIEWS, what, "Give class indices, from 0 on.")
    return batch


def _check_like(instance: str, name: str, actual: object, expected: Tensor) -> None:
    """Raise for a tensor of a batch that differs from the given one in more than its values and its length."""
    import torch

    remedy = {
        "images": "Give images of the batch's size, which Task.size sets and the contract names, and of its type.",
        "labels": "Give one class index for each image; of soft labels, compute a loss in compatkit_losses.",
        "index": "Give one index for each image.",
    }[name]
    if not isinstance(actual, torch.Tensor):
        raise _wrong(instance, VIEWS, f"returned {_described(actual)} as {name}", remedy)
    kinds = ((("n", *tensor.shape[1:]), tensor.dtype, tensor.device) for tensor in (actual, expected))
    for value, other in zip(*kinds, strict=True):
        if value != other:
            raise _wrong(instance, VIEWS, f"returned {name} of {value}, given {other}", remedy)


def check_losses(
    instance: str, losses: object, *, device: torch.device | None = None, moving: bool = True
) -> Mapping[str, Tensor]:
    """Return the result of ``compatkit_losses``, if the trainer can add it up.

    Values are not read, so nothing waits for the device; the trainer finds losses that are not finite.

    Args:
        instance: For messages.
        losses: Should be a mapping from names to floating-point tensors of shape ``()``.
        device: Where they should be; not checked if None.
        moving: Whether the features have a gradient. Where the extractor is frozen, a loss of them has none either, and
            is logged without changing anything.

    Returns:
        The losses, unchanged.

    Raises:
        PluginError: The result is something else.
    """
    import torch

    def wrong(what: str, remedy: str) -> PluginError:
        return _wrong(instance, LOSSES, what, remedy)

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
        if moving and torch.is_grad_enabled() and not loss.requires_grad:
            raise wrong(
                f"gave {name!r} without a gradient, so it would change nothing",
                "Do not detach it or compute it under no_grad; leave it out where there is nothing to add.",
            )
    return cast("Mapping[str, Tensor]", losses)


def _described(value: object) -> str:
    return "nothing (None)" if value is None else type_of(value)
