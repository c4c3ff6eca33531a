"""Wide residual networks for 32x32 images (Zagoruyko and Komodakis 2016): pre-activation blocks, 3 wide stages."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from compatkit.adapters.networks.classifier import Classifier, check_counts, stage
from compatkit.errors import UsageError


class PreActivationBlock(nn.Module):
    """Normalisation and ReLU before each of two 3x3 convolutions; a 1x1 shortcut where the shape changes.

    The output is the sum, before any normalisation, so it is signed.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, drop_rate: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.act1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.act2 = nn.ReLU()
        self.drop = nn.Dropout(drop_rate)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.changes = stride != 1 or in_channels != channels
        if self.changes:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, channels, ceil(H / stride), ceil(W / stride))."""
        active = self.act1(self.bn1(x))
        inner = self.conv2(self.drop(self.act2(self.bn2(self.conv1(active)))))
        return inner + (self.shortcut(active) if self.changes else x)


class WideResidualCifar(Classifier):
    """``6 n + 4`` layers: a 3x3 convolution, 3 stages of n blocks, normalisation, pooling, one class layer.

    Args:
        depth: Layers by the paper's count, ``6 n + 4``.
        width: Factor k on the channels 16, 32, 64.
        block_drop_rate: Dropout between the convolutions of a block.

    Raises:
        UsageError: A depth that is not ``6 n + 4``, or counts below 1.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        block_drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        check_counts(type(self).__name__, depth=depth, width=width)
        if depth < 10 or (depth - 4) % 6:
            raise UsageError(f"A wide residual network has 6 n + 4 layers (10, 16, 22, ...), got {depth}.")
        blocks, channels = (depth - 4) // 6, 16 * width
        self.conv1 = nn.Conv2d(in_chans, 16, 3, 1, 1, bias=False)
        self.layer1 = _stage(16, channels, blocks, 1, block_drop_rate)
        self.layer2 = _stage(channels, 2 * channels, blocks, 2, block_drop_rate)
        self.layer3 = _stage(2 * channels, 4 * channels, blocks, 2, block_drop_rate)
        self.bn1 = nn.BatchNorm2d(4 * channels)
        self.act1 = nn.ReLU()
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.feature_info = [dict(stage(f"layer{i + 1}", channels * 2**i, 2**i)) for i in range(3)]
        self.finish(4 * channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 64 width, ceil(H / 4), ceil(W / 4)), from 0 upwards."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.act1(self.bn1(x))

    def pool(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C), the mean over pixels."""
        return self.global_pool(x).flatten(1)


def _stage(in_channels: int, channels: int, blocks: int, stride: int, drop_rate: float) -> nn.Sequential:
    first = PreActivationBlock(in_channels, channels, stride, drop_rate)
    return nn.Sequential(
        first, *(PreActivationBlock(channels, channels, 1, drop_rate) for _ in range(blocks - 1))
    )


def wide_resnet10_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-10-2: one block a stage, for what has to be quick, 0.3 M parameters."""
    return WideResidualCifar(10, 2, **kwargs)


def wide_resnet16_4_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-16-4, 2.7 M parameters."""
    return WideResidualCifar(16, 4, **kwargs)


def wide_resnet28_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-28-2, 1.5 M parameters."""
    return WideResidualCifar(28, 2, **kwargs)


def wide_resnet28_10_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-28-10, 36.5 M parameters."""
    return WideResidualCifar(28, 10, **kwargs)


def wide_resnet28_16_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-28-16: 4 blocks a stage, 256-512-1024 channels, 93 M parameters."""
    return WideResidualCifar(28, 16, **kwargs)


def wide_resnet40_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-40-2, 2.2 M parameters."""
    return WideResidualCifar(40, 2, **kwargs)


def wide_resnet58_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-58-2: as many blocks a stage as ResNet-56 (9), twice as wide, 3.4 M parameters."""
    return WideResidualCifar(58, 2, **kwargs)


ENTRIES = (
    wide_resnet10_2_cifar,
    wide_resnet16_4_cifar,
    wide_resnet28_2_cifar,
    wide_resnet28_10_cifar,
    wide_resnet28_16_cifar,
    wide_resnet40_2_cifar,
    wide_resnet58_2_cifar,
)
