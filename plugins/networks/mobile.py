"""MobileNetV2 (Sandler et al. 2018) for 32x32 images: 17 inverted residual blocks."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from compatkit.errors import UsageError

from .classifier import Classifier, stage

GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks, stride of the first block: table 2 of the paper, less two strides."""


class InvertedResidual(nn.Module):
    """Widen (1x1), filter by channel (3x3), narrow without activation (1x1); a shortcut where shapes agree."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.expands = expansion != 1
        if self.expands:
            self.conv_pw = nn.Conv2d(in_channels, inner, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(inner)
            self.act1 = nn.ReLU6()
        self.conv_dw = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.act2 = nn.ReLU6()
        self.conv_pwl = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.adds = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, channels, ceil(H / stride), ceil(W / stride)), signed."""
        inner = self.act1(self.bn1(self.conv_pw(x))) if self.expands else x
        inner = self.act2(self.bn2(self.conv_dw(inner)))
        inner = self.bn3(self.conv_pwl(inner))
        return x + inner if self.adds else inner


class MobileNetV2Cifar(Classifier):
    """MobileNetV2 with strides 1 in the stem and in the second group, so that 32x32 ends at 4x4.

    ``blocks.0`` to ``blocks.16`` are the 17 blocks: ``blocks.9`` (the 10th) gives 64 channels, ``blocks.10`` (the
    11th) gives 96.

    Args:
        multiplier: Factor on all channels up to the last 1x1 convolution, which are then rounded to multiples of 8,
            with 8 the least (the paper's width multiplier, with timm's rounding).

    Raises:
        UsageError: Counts below 1, or a multiplier that is not above 0.
    """

    classifier_name: ClassVar[str] = "classifier"
    first_conv: ClassVar[str] = "conv_stem"

    def __init__(
        self, *, num_classes: int = 10, in_chans: int = 3, drop_rate: float = 0.0, multiplier: float = 1.0
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        if not multiplier > 0:
            raise UsageError(f"MobileNetV2Cifar expects a multiplier above 0, got {multiplier}.")
        stem = _scaled(32, multiplier)
        self.conv_stem = nn.Conv2d(in_chans, stem, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.act1 = nn.ReLU6()
        blocks: list[nn.Module] = []
        before, reduction = stem, 1
        for expansion, channels, count, stride in GROUPS:
            reduction *= stride
            channels = _scaled(channels, multiplier)
            for number in range(count):
                blocks.append(InvertedResidual(before, channels, 1 if number else stride, expansion))
                before = channels
            self.feature_info.append(stage(f"blocks.{len(blocks) - 1}", channels, reduction))
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(before, 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280)
        self.act2 = nn.ReLU6()
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.finish(1280)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 1280, ceil(H / 8), ceil(W / 8)), from 0 to 6."""
        x = self.blocks(self.act1(self.bn1(self.conv_stem(x))))
        return self.act2(self.bn2(self.conv_head(x)))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns of layers, which are the stages too."""
        return {"stem": r"^(?:conv_stem|bn1)", "blocks": r"^blocks\.(\d+)"}


def _scaled(channels: int, multiplier: float) -> int:
    """Return the nearest multiple of 8 that is not below 8, nor 10 % below what it stands for."""
    target = channels * multiplier
    scaled = max(8, int(target + 4) // 8 * 8)
    return scaled if scaled >= 0.9 * target else scaled + 8


def mobilenetv2_025_cifar(**kwargs: Any) -> MobileNetV2Cifar:
    """A quarter of the channels, for what has to be quick, 0.25 M parameters; ``blocks.9`` gives 16 channels."""
    return MobileNetV2Cifar(multiplier=0.25, **kwargs)


def mobilenetv2_cifar(**kwargs: Any) -> MobileNetV2Cifar:
    """MobileNetV2 for 32x32, 2.2 M parameters."""
    return MobileNetV2Cifar(**kwargs)


ENTRIES = (mobilenetv2_025_cifar, mobilenetv2_cifar)
