"""Residual networks for 32x32 images (He et al. 2016, section 4.2): 3 stages, 16-32-64 channels, option A."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.adapters.networks.classifier import Classifier, check_counts, stage
from compatkit.adapters.networks.normalising import UnitLength, normalisation
from compatkit.errors import UsageError

STAGES = ("layer1", "layer2", "layer3")


class ShortcutA(nn.Module):
    """A shortcut without parameters: every second pixel, channels filled up with zeros (option A).

    Half of the new channels come before the old ones and half after; with 16 to 32: 8, 16, 8.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (channels - in_channels) // 2
        self.after = channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, channels, ceil(H / stride), ceil(W / stride))."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """Two 3x3 convolutions with normalisation, the shortcut added before the last ReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = normalisation(type(self).__name__, norm, channels)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = normalisation(type(self).__name__, norm, channels)
        same = stride == 1 and in_channels == channels
        self.shortcut = nn.Identity() if same else ShortcutA(in_channels, channels, stride)
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, channels, ceil(H / stride), ceil(W / stride)), from 0 upwards."""
        inner = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(inner + self.shortcut(x))


class ResidualCifar(Classifier):
    """``6 n + 2`` layers: a 3x3 convolution, 3 stages of n blocks, average pooling, one class layer.

    Args:
        depth: Layers with weights, ``6 n + 2``.
        width: Factor on the channels 16, 32, 64.
        norm: ``"batch"``, or ``"layer"`` or ``"instance"``, which know no statistics of other images.
        unit_length: Stage (``"layer1"``, ``"layer2"``, ``"layer3"``) whose features are divided by their length as its
            last step, so that an extractor that is cut there gives features of unit length; empty for none.
        unit_over: What has that length: the channels at each ``"position"``, or all features of an ``"image"``.

    Raises:
        UsageError: A depth that is not ``6 n + 2``, counts below 1, or a name that is not known.
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        width: int = 1,
        drop_rate: float = 0.0,
        norm: str = "batch",
        unit_length: str = "",
        unit_over: str = "position",
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        check_counts(type(self).__name__, depth=depth, width=width)
        if unit_length not in ("", *STAGES):
            raise UsageError(
                f"{type(self).__name__}: unit_length names a stage ({', '.join(STAGES)}), or none by an empty text; "
                f"got {unit_length!r:.60}."
            )
        if depth < 8 or (depth - 2) % 6:
            raise UsageError(
                f"A residual network for 32x32 has 6 n + 2 layers (8, 14, 20, ...), got {depth}."
            )
        blocks, channels = (depth - 2) // 6, 16 * width
        self.conv1 = nn.Conv2d(in_chans, channels, 3, 1, 1, bias=False)
        self.bn1 = normalisation(type(self).__name__, norm, channels)
        self.act1 = nn.ReLU()
        self.layer1 = _stage(channels, channels, blocks, 1, norm)
        self.layer2 = _stage(channels, 2 * channels, blocks, 2, norm)
        self.layer3 = _stage(2 * channels, 4 * channels, blocks, 2, norm)
        unit = UnitLength(type(self).__name__, unit_over)
        if unit_length:
            getattr(self, unit_length).append(unit)
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.feature_info = [dict(stage(f"layer{i + 1}", channels * 2**i, 2**i)) for i in range(3)]
        self.finish(4 * channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 64 width, ceil(H / 4), ceil(W / 4)), from 0 upwards."""
        x = self.act1(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x)))

    def pool(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C), the mean over pixels."""
        return self.global_pool(x).flatten(1)


def _stage(in_channels: int, channels: int, blocks: int, stride: int, norm: str) -> nn.Sequential:
    first = Block(in_channels, channels, stride, norm)
    return nn.Sequential(first, *(Block(channels, channels, 1, norm) for _ in range(blocks - 1)))


def resnet8_cifar(**kwargs: Any) -> ResidualCifar:
    """8 layers, the smallest of the family (n = 1), 0.08 M parameters; not in the paper, for quick studies."""
    return ResidualCifar(8, **kwargs)


def resnet20_cifar(**kwargs: Any) -> ResidualCifar:
    """20 layers, 0.27 M parameters."""
    return ResidualCifar(20, **kwargs)


def resnet32_cifar(**kwargs: Any) -> ResidualCifar:
    """32 layers, 0.46 M parameters."""
    return ResidualCifar(32, **kwargs)


def resnet44_cifar(**kwargs: Any) -> ResidualCifar:
    """44 layers, 0.66 M parameters."""
    return ResidualCifar(44, **kwargs)


def resnet56_cifar(**kwargs: Any) -> ResidualCifar:
    """56 layers, 0.85 M parameters."""
    return ResidualCifar(56, **kwargs)


def resnet110_cifar(**kwargs: Any) -> ResidualCifar:
    """110 layers, 1.7 M parameters."""
    return ResidualCifar(110, **kwargs)


ENTRIES = (resnet8_cifar, resnet20_cifar, resnet32_cifar, resnet44_cifar, resnet56_cifar, resnet110_cifar)
