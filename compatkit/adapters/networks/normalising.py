"""What normalises feature maps inside a network: batch, layer or instance normalisation, and unit length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from compatkit.errors import UsageError

MAPS: Mapping[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    # Ba, Kiros, Hinton (2016): over all channels and positions of an image; scale and shift for each channel.
    "layer": lambda channels: nn.GroupNorm(1, channels),
    # Ulyanov, Vedaldi, Lempitsky (2016): over the positions of an image, each channel by itself.
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
}
"""Normalisation of maps ``(N, C, H, W)`` by name; only ``batch`` keeps statistics, or mixes images."""
OVER: Mapping[str, tuple[int, ...]] = {"position": (1,), "image": (1, 2, 3)}
"""What has unit length: the vector of channels at each position, or all features of an image."""
SMALLEST = 1e-12
"""Length that shorter features are divided by."""


def normalisation(owner: str, name: str, channels: int) -> nn.Module:
    """Return the normalisation of a map.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in MAPS:
        raise UsageError(f"{owner}: norm is one of {', '.join(MAPS)}; got {name!r:.60}.")
    return MAPS[name](channels)


class UnitLength(nn.Module):
    """Divides features by their Euclidean length; zero stays zero.

    Gygli, Uijlings, Ferrari (2021), App. C.1: "an L2 normalization layer after the feature extractors, which makes the
    features to become unit length".

    Args:
        owner: Whose setting it is, for messages.
        over: ``"position"``: the vector of channels at each position (as in ParseNet, Liu et al. 2015); ``"image"``:
            all features of an image as one vector.

    Raises:
        UsageError: ``over`` is neither.
    """

    def __init__(self, owner: str, over: str = "position") -> None:
        super().__init__()
        if over not in OVER:
            raise UsageError(f"{owner}: unit_over is one of {', '.join(OVER)}; got {over!r:.60}.")
        self.over = over

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        length = torch.linalg.vector_norm(x, dim=OVER[self.over], keepdim=True)
        return x / length.clamp_min(SMALLEST)

    def extra_repr(self) -> str:
        """Say what has unit length."""
        return f"over={self.over}"
