"""Layers of the small networks: chains of linear map, normalization and activation; norms by name; unit length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

import attrs
import torch
from torch import Tensor, nn

from compatkit.foundation.limits import OneOf

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
"""Activations by name; slope 0.2 as in "Reviving Autoencoder Pretraining", A.3."""
NORMS = ("none", "batch")


class Layer(nn.Module):
    """``act(norm(linear(x)))``; an absent layer is an identity."""

    def __init__(self, linear: nn.Module, norm: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.norm = norm
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """Take what the linear map takes.

        Returns:
            In the shape that the linear map gives.
        """
        return self.act(self.norm(self.linear(x)))


@attrs.frozen
class LayerStyle:
    """Modules after every linear map of a chain.

    Attributes:
        owner: Name of the object that has the setting, for messages.
        norm: A member of ``NORMS``.
        activation: A key of ``ACTIVATIONS``.
        norm_eps: Added to the variance by batch normalization.

    Raises:
        UsageError: One of them is not known.
    """

    owner: str
    norm: str = "none"
    activation: str = "relu"
    norm_eps: float = 1e-5

    def __attrs_post_init__(self) -> None:
        OneOf(NORMS).check(self.owner, norm=self.norm)
        activation(self.owner, self.activation)

    def layer(self, linear: nn.Module) -> Layer:
        """Return ``linear`` with what follows it."""
        return Layer(linear, self.norm_layer(linear), activation(self.owner, self.activation))

    def norm_layer(self, linear: nn.Module) -> nn.Module:
        """Return the normalization of what ``linear`` gives."""
        if self.norm == "none":
            return nn.Identity()
        if isinstance(linear, nn.Linear):
            return nn.BatchNorm1d(linear.out_features, self.norm_eps)
        return nn.BatchNorm2d(cast(nn.Conv2d, linear).out_channels, self.norm_eps)


def activation(owner: str, name: str, setting: str = "activation") -> nn.Module:
    """Return a new activation.

    Args:
        owner: Name of the network, for the message.
        name: A key of ``ACTIVATIONS``.
        setting: Name of the argument, for the message.

    Raises:
        UsageError: There is none of that name.
    """
    OneOf(ACTIVATIONS).check(owner, **{setting: name})
    return ACTIVATIONS[name]()


def planned(path: str, layer: nn.Module, pool: str | None = None) -> dict[str, str | None]:
    """Return a stage of a reverse plan: the paths of a layer's parts, None for what is an identity.

    Args:
        path: Path of the layer in the whole network.
        layer: A ``Layer``, or a linear map alone.
        pool: Path of what changes the size between the activation before it and this layer.
    """
    if not isinstance(layer, Layer):
        return {"linear": path, "norm": None, "act": None, "pool": pool}
    parts = {
        name: None if isinstance(getattr(layer, name), nn.Identity) else f"{path}.{name}"
        for name in ("norm", "act")
    }
    return {"linear": f"{path}.linear", **parts, "pool": pool}


MAPS: Mapping[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    # Ba, Kiros, Hinton (2016): over all channels and positions of an image; scale and shift for each channel.
    "layer": lambda channels: nn.GroupNorm(1, channels),
    # Ulyanov, Vedaldi, Lempitsky (2016): over the positions of an image, each channel by itself.
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    # Wu and He (2018): over the positions of an image and the channels of each of 32 groups, or as many as divide them.
    "group": lambda channels: nn.GroupNorm(math.gcd(32, channels), channels),
}
"""Normalization of maps ``(N, C, H, W)`` by name; only ``batch`` keeps statistics, or mixes images."""
OVER: Mapping[str, tuple[int, ...]] = {"position": (1,), "image": (1, 2, 3)}
"""Choices of vectors of unit length: the vector of channels at each position, or all features of an image."""
SMALLEST = 1e-12
"""Length that shorter features are divided by."""


def norm_layer(owner: str, name: str, channels: int) -> nn.Module:
    """Return the normalization of a map.

    Args:
        owner: Name of the network, for the message.
        name: A key of ``MAPS``.
        channels: Channels of the map.

    Raises:
        UsageError: There is none of that name.
    """
    OneOf(MAPS).check(owner, norm=name)
    return MAPS[name](channels)


class UnitLength(nn.Module):
    """Divides features by their Euclidean length; zero stays zero.

    Gygli, Uijlings, Ferrari (2021), App. C.1: "an L2 normalization layer after the feature extractors, which makes the
    features to become unit length".

    Args:
        owner: Name of the object that has the setting, for messages.
        over: ``"position"``: the vector of channels at each position (as in ParseNet, Liu et al. 2015); ``"image"``:
            all features of an image as one vector.

    Raises:
        UsageError: ``over`` is neither.
    """

    def __init__(self, owner: str, over: str = "position") -> None:
        super().__init__()
        OneOf(OVER).check(owner, unit_over=over)
        self.over = over

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        length = torch.linalg.vector_norm(x, dim=OVER[self.over], keepdim=True)
        return x / length.clamp_min(SMALLEST)

    def extra_repr(self) -> str:
        """Say what has unit length."""
        return f"over={self.over}"
