"""Checks of what hooks return for the losses and gradients of a step; no check waits for a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from compatkit.errors import PluginError, type_of

if TYPE_CHECKING:
    from torch import Tensor


def wrong_result(instance: str, hook: str, what: str, remedy: str) -> PluginError:
    """Return the error for a wrong result of a hook.

    Args:
        instance: Name of the plugin's instance.
        hook: Name of the hook.
        what: What the hook did, for the message.
        remedy: Advice, whole sentences.
    """
    return PluginError(f"Plugin {instance!r}: {hook} {what}. {remedy}", plugin=instance, hook=hook)


def check_sample_losses(instance: str, losses: object, given: Tensor) -> Tensor:
    """Check the result of ``compatkit_sample_losses``, and return it.

    Args:
        instance: Name of the plugin's instance.
        losses: The result.
        given: Losses that the plugin was given, ``(batch,)``.

    Raises:
        PluginError: The result is not a floating-point tensor ``(batch,)`` on the same device, or has no gradient.
    """
    import torch

    def wrong(what: str, remedy: str) -> PluginError:
        return wrong_result(instance, "compatkit_sample_losses", what, remedy)

    if not isinstance(losses, torch.Tensor):
        raise wrong(
            f"returned {'nothing (None)' if losses is None else type_of(losses)}, not a tensor",
            "Return one loss for each image, or the given losses where nothing changes.",
        )
    if losses.shape != given.shape or not losses.is_floating_point():
        raise wrong(
            f"returned {losses.dtype} of shape {tuple(losses.shape)} for losses of shape {tuple(given.shape)}",
            "Return one loss for each image; the trainer takes their mean.",
        )
    if losses.device != given.device:
        raise wrong(f"returned losses on {losses.device}, given {given.device}", "Keep the device.")
    if torch.is_grad_enabled() and given.requires_grad and not losses.requires_grad:
        raise wrong(
            "returned losses without a gradient, so the task would not be trained",
            "Detach only the weights of the losses.",
        )
    return losses


def check_combined_gradients(
    instance: str, combined: object, given: Mapping[str, Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Check the result of ``compatkit_combine_gradients``, and return it.

    Args:
        instance: Name of the plugin's instance.
        combined: The result.
        given: Gradients by loss and parameter that the plugin was given.

    Raises:
        PluginError: The result is not one gradient for each parameter, of its shape and on its device.
    """
    import torch

    def wrong(what: str) -> PluginError:
        remedy = "Return one gradient for each parameter that the losses have, by name and of its shape."
        return wrong_result(instance, "compatkit_combine_gradients", what, remedy)

    if not isinstance(combined, Mapping):
        raise wrong(f"returned {'nothing (None)' if combined is None else type_of(combined)}, not a mapping")
    expected, actual = next(iter(given.values())), cast("Mapping[str, object]", combined)
    if actual.keys() != expected.keys():
        names = [*(expected.keys() - actual.keys()), *(actual.keys() - expected.keys())]
        raise wrong(f"returned other parameters than it was given, such as {names[0]!r}")
    for name, like in expected.items():
        gradient = actual[name]
        if not isinstance(gradient, torch.Tensor):
            raise wrong(f"returned {type_of(gradient)} as the gradient of {name!r}")
        if (gradient.shape, gradient.dtype, gradient.device) != (like.shape, like.dtype, like.device):
            kind = f"{gradient.dtype} {tuple(gradient.shape)} on {gradient.device}"
            raise wrong(
                f"returned {kind} for {name!r}, given {like.dtype} {tuple(like.shape)} on {like.device}"
            )
    return cast("Mapping[str, Tensor]", combined)
