"""Checks of what hooks return for the losses and gradients of a step; no check waits for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
