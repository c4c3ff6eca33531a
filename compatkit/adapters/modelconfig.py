"""Read the configuration of a model: its input images, and its class layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import nn


@attrs.frozen
class InputSpec:
    """Input images of a model.

    Attributes:
        size: Height and width in pixels.
        channels: 1 (gray), 3 (RGB), or the value of ``in_chans``.
        mean: Per channel, on the scale 0 to 1.
        std: Per channel, on the scale 0 to 1.
        interpolation: Interpolation of the resize.
        crop_pct: Share of a side of the resized image that is cropped from its center.
        crop_mode: timm's name of the resize: ``"center"``, ``"squash"`` (default) or ``"border"``.
    """

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop_pct: float
    crop_mode: str = "squash"


def config_of(whole: nn.Module) -> Mapping[str, Any]:
    """Return the network's ``pretrained_cfg``; empty if it has none."""
    return getattr(whole, "pretrained_cfg", None) or {}


def input_of(whole: nn.Module, kwargs: Mapping[str, Any], size: tuple[int, int] | None) -> InputSpec:
    """Read the configuration; an explicit image size or number of channels overrides it.

    Mean and std for three channels are averaged if the network was built for another number.

    Args:
        whole: The network, with its configuration.
        kwargs: Keyword arguments that it was built with.
        size: Height and width of the images; None uses the arguments or the configuration.
    """
    config = config_of(whole)
    default = config.get("input_size") or (3, 224, 224)
    channels = int(kwargs.get("in_chans") or default[0])
    stated = kwargs.get("img_size") or tuple(default[1:])
    height, width = size or ((stated, stated) if isinstance(stated, int) else stated)
    mean, std = (tuple(map(float, config.get(key) or (0.5,))) for key in ("mean", "std"))
    return InputSpec(
        (int(height), int(width)),
        channels,
        _for_channels(mean, channels),
        _for_channels(std, channels),
        str(config.get("interpolation") or "bilinear"),
        float(config.get("crop_pct") or 1.0),
        str(config.get("crop_mode") or "squash"),
    )


def class_layer(whole: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of the class layer's tensors, such as ``("fc.",)``; empty if there is none."""
    classifier = config_of(whole).get("classifier") or ()
    layers = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    keys = list(whole.state_dict())
    return tuple(f"{layer}." for layer in layers if any(key.startswith(f"{layer}.") for key in keys))


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values if len(values) == channels else (sum(values) / len(values),) * channels
