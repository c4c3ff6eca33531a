"""Strips: a builder of small backbones that alternate convolutions over rows and columns.

Each stage halves the image with a 1 x 3 and a 3 x 1 convolution; the last feature map is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

compatkit_api = 1

WIDTHS = {"strips_small": (8, 16), "strips_wide": (32, 64, 64)}


@hookimpl
def compatkit_builders(register: Register) -> None:
    """Offer ``strips``."""
    register("strips", build)


def build(model: str, *, in_chans: int = 3, num_classes: int = 10, widths: Sequence[int] = ()) -> nn.Module:
    """Build a network.

    Args:
        model: One of ``WIDTHS``.
        in_chans: Channels of the images.
        num_classes: Number of logits.
        widths: Channels after each stage; empty for the model's default.

    Raises:
        UsageError: A width is not a positive integer.
    """
    chosen = tuple(widths) or WIDTHS[model]
    if not all(isinstance(width, int) and width > 0 for width in chosen):
        raise UsageError(f"widths are positive integers; got {list(chosen)}.")
    return Strips(in_chans, num_classes, chosen)


build.names = tuple(WIDTHS)


class Strips(nn.Module):
    """Images ``(batch, in_chans, height, width)`` to logits ``(batch, num_classes)``."""

    def __init__(self, in_chans: int, num_classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        channels = (in_chans, *widths)
        self.stages = nn.ModuleList(map(stage, channels, channels[1:]))
        self.classifier = nn.Linear(channels[-1], num_classes)
        self.pretrained_cfg = {"input_size": (in_chans, 32, 32), "classifier": "classifier"}

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        for layers in self.stages:
            images = layers(images)
        return self.classifier(images.mean((2, 3)))


def stage(before: int, after: int) -> nn.Module:
    """Return a stage that halves height and width."""
    return nn.Sequential(
        nn.Conv2d(before, after, (1, 3), stride=(1, 2), padding=(0, 1)),
        nn.Conv2d(after, after, (3, 1), stride=(2, 1), padding=(1, 0)),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )
