"""One resolved hook of one plugin, with the checks of what it returns; nothing here waits for a device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from compatkit.errors import CompatkitError, PluginError, UsageError, type_of
from compatkit.hooks import Batch, Effect, Phase
from compatkit.plugins.owners import raised

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@attrs.frozen(eq=False)
class Bound:
    """A hook of one instance, ready to be called in a step.

    Attributes:
        instance: Name in logs and messages.
        weight: Factor of the losses.
        phase: Steps in which the trainer calls it; set-up, pretraining and finish are called in any case.
        effect: ``pure``, ``device`` or ``host``.
        call: Takes the hook's full arguments in their order, or by name; names the plugin in errors, and
            checks what comes back.
        function: The same without the naming and the checks, for a compiled step.
    """

    instance: str
    weight: float
    phase: Phase
    effect: Effect
    call: Callable[..., Any]
    function: Callable[..., Any]


def bind(
    instance: str, weight: float, phase: Phase, effect: Effect, hook: str, function: Callable[..., Any]
) -> Bound:
    """Return a Bound whose ``call`` guards ``function``, which takes the hook's full arguments."""
    guards = {
        "compatkit_losses": _losses,
        "compatkit_views": _views,
        "compatkit_further_views": _further,
    }
    guard = guards.get(hook, _plain)
    return Bound(instance, weight, phase, effect, guard(instance, hook, function), function)


def adapt(function: Callable[..., Any], full: tuple[str, ...], taken: tuple[str, ...]) -> Callable[..., Any]:
    """Return ``function`` as one that takes all of ``full``, in that order or by name."""
    if taken == full:
        return function
    if not taken:
        return lambda *arguments, **named: function()
    places = tuple(full.index(name) for name in taken)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if named:
            arguments += tuple(named[name] for name in full[len(arguments) :])
        return function(*(arguments[place] for place in places))

    return call


def attributed(error: BaseException, instance: str, hook: str) -> CompatkitError:
    """Return what to raise for an error of a hook: it names the plugin; an error of ours stays of its kind."""
    if isinstance(error, CompatkitError):
        return _passed_on(error, instance, hook)
    return _failed(instance, hook, error)


def _wrote(given: Sequence[tuple[str, Callable[..., Any]]]) -> PluginError:
    """Return the error for a batch that was written into by one of those who were given it."""
    who = [instance for instance, _ in given]
    return PluginError(
        f"Plugin {' or '.join(map(repr, who))}: compatkit_views wrote into the batch that it was given. Return a new "
        "one: attrs.evolve(batch, images=...), without in-place operations.",
        plugin=who[0] if len(who) == 1 else None,
        hook="compatkit_views",
    )


def _failed(instance: str, hook: str, error: BaseException) -> PluginError:
    return PluginError(f"Plugin {instance!r} failed in {hook}: {raised(error)}", plugin=instance, hook=hook)


def _plain(instance: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except (Exception, SystemExit) as error:
            raise attributed(error, instance, hook) from error

    return call


def _passed_on(error: CompatkitError, instance: str, hook: str) -> CompatkitError:
    """Name the plugin in a usage error; keep other errors (integrity, environment) what they are."""
    if isinstance(error, UsageError) and not isinstance(error, PluginError):
        return _failed(instance, hook, error)
    error.add_note(f"Raised in {hook} of plugin {instance!r}.")
    return error


def _losses(instance: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    guarded = _plain(instance, hook, function)

    def call(step: Any) -> Mapping[str, Tensor]:
        features, before = getattr(step, "features", None), _writes(step)
        losses = guarded(step)
        if written := [name for name, count in _writes(step).items() if count != before.get(name, count)]:
            raise PluginError(
                f"Plugin {instance!r}: {hook} wrote into step.{written[0]}, which the task and other plugins use too. "
                "Compute a new tensor, without in-place operations.",
                plugin=instance,
                hook=hook,
            )
        if features is None:
            return check_losses(instance, losses)
        return check_losses(instance, losses, device=features.device, moving=features.requires_grad)

    return call


def _writes(step: Any) -> dict[str, int]:
    """Return how often the tensors that a step hands to losses were written to in place, by name; see ``_written``."""
    given = {name: getattr(step, name, None) for name in ("features", "logits")}
    batch = getattr(step, "batch", None)
    given |= {f"batch.{name}": getattr(batch, name, None) for name in ("images", "labels", "index")}
    return {name: one._version for name, one in given.items() if one is not None and not one.is_inference()}


def _views(instance: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return views_guard([(instance, function)])


def views_guard(functions: Sequence[tuple[str, Callable[..., Any]]]) -> Callable[[Any, Batch], Batch]:
    """Return one call of ``compatkit_views`` of plugins by instance, each of which sees what the one before it gave.

    A batch is looked at once for all who were given it: where it was written into, they are named together.

    The call raises PluginError: a hook failed, gave no batch, or one of them wrote into the batch that it was given.
    """

    def call(step: Any, batch: Batch) -> Batch:
        first, before = 0, _written(batch)
        for place, (instance, function) in enumerate(functions):
            try:
                after = function(step, batch)
            except (Exception, SystemExit) as error:
                raise attributed(error, instance, "compatkit_views") from error
            if after is batch:
                continue
            if _written(batch) != before:
                raise _wrote(functions[first : place + 1])
            batch, first = check_batch(instance, after), place + 1
            before = _written(batch)
        if _written(batch) != before:
            raise _wrote(functions[first:])
        return batch

    return call


def _further(instance: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    guarded = _plain(instance, hook, function)

    def call(images: Tensor) -> Sequence[Tensor]:
        views = guarded(images)
        if not isinstance(views, Sequence) or any(
            getattr(one, "shape", None) != images.shape for one in views
        ):
            came = (
                [tuple(getattr(one, "shape", ())) for one in views] if isinstance(views, Sequence) else None
            )
            raise PluginError(
                f"Plugin {instance!r}: {hook} returned {_described(views) if came is None else f'shapes {came}'} for "
                f"images of shape {tuple(images.shape)}. Return a list of views of that shape, or an empty one.",
                plugin=instance,
                hook=hook,
            )
        return views

    return call


def _written(batch: Batch) -> int:
    """Return how often the batch's tensors were written to in place, as autograd counts it; counts only ever rise."""
    try:
        return batch.images._version + batch.labels._version + batch.index._version
    except RuntimeError:  # tensors of inference mode count nothing
        each = (batch.images, batch.labels, batch.index)
        return sum(one._version for one in each if not one.is_inference())


def check_batch(instance: str, batch: object) -> Batch:
    """Return what ``compatkit_views`` gave, if it is a batch of as many labels as images.

    Raises:
        PluginError: It is something else.
    """
    if not isinstance(batch, Batch):
        raise PluginError(
            f"Plugin {instance!r}: compatkit_views returned {_described(batch)}, not a Batch. "
            "Return attrs.evolve(batch, ...), or batch itself where nothing changes.",
            plugin=instance,
            hook="compatkit_views",
        )
    if len(batch.images) != len(batch.labels):
        raise PluginError(
            f"Plugin {instance!r}: compatkit_views returned {len(batch.images)} images with "
            f"{len(batch.labels)} labels. Give one label to each image.",
            plugin=instance,
            hook="compatkit_views",
        )
    return batch


def check_losses(
    instance: str, losses: object, *, device: torch.device | None = None, moving: bool = True
) -> Mapping[str, Tensor]:
    """Return what ``compatkit_losses`` gave, if the trainer can add it up.

    Values are not read, so nothing waits for the device; the trainer finds losses that are not finite.

    Args:
        instance: For messages.
        losses: Should be a mapping from names to floating-point tensors of shape ``()``.
        device: Where they should be; not checked if None.
        moving: Whether the features have a gradient. Where the extractor is frozen, a loss of them has none either, and
            is logged without changing anything.

    Raises:
        PluginError: Something else came.
    """
    import torch

    def wrong(what: str, remedy: str) -> PluginError:
        return PluginError(
            f"Plugin {instance!r}: compatkit_losses {what}. {remedy}",
            plugin=instance,
            hook="compatkit_losses",
        )

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
    return "nothing (None)" if value is None else f"{type_of(value)}"
