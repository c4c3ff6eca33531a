"""Residual networks for 32x32 images: plain (He et al. 2016, section 4.2), wide (Zagoruyko and Komodakis 2016), v2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT

from .classifier import Classifier, stage
from .layers import UnitLength, norm_layer

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


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with normalization, the shortcut added before the last ReLU."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = norm_layer(type(self).__name__, norm, channels)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(type(self).__name__, norm, channels)
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
        norm: ``"batch"``, or ``"layer"``, ``"instance"`` or ``"group"``, which know no statistics of other images.
        unit_length: Stage (``"layer1"``, ``"layer2"``, ``"layer3"``) whose features are divided by their length as its
            last step, so that an extractor that is cut there gives features of unit length; empty for none.
        unit_over: Vectors of unit length: the channels at each ``"position"``, or all features of an ``"image"``.

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
        COUNT.check(type(self).__name__, depth=depth, width=width)
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
        block = functools.partial(BasicBlock, norm=norm)
        self.conv1 = nn.Conv2d(in_chans, channels, 3, 1, 1, bias=False)
        self.bn1 = norm_layer(type(self).__name__, norm, channels)
        self.act1 = nn.ReLU()
        self.layer1 = _stage(block, channels, channels, blocks, 1)
        self.layer2 = _stage(block, channels, 2 * channels, blocks, 2)
        self.layer3 = _stage(block, 2 * channels, 4 * channels, blocks, 2)
        unit = UnitLength(type(self).__name__, unit_over)
        if unit_length:
            getattr(self, unit_length).append(unit)
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.feature_info = [stage(f"layer{i + 1}", channels * 2**i, 2**i) for i in range(3)]
        self.finish(4 * channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 64 width, ceil(H / 4), ceil(W / 4)), from 0 upwards."""
        x = self.act1(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x)))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns of layers, or of stages."""
        return {"stem": r"^(?:conv1|bn1)", "blocks": r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"}


def _stage(
    block: Callable[[int, int, int], nn.Module], in_channels: int, channels: int, blocks: int, stride: int
) -> nn.Sequential:
    """Return blocks of which the first changes channels and size."""
    return nn.Sequential(
        block(in_channels, channels, stride), *(block(channels, channels, 1) for _ in range(blocks - 1))
    )


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


class PreActivationBlock(nn.Module):
    """Normalization and ReLU before each of two 3x3 convolutions; a 1x1 shortcut where the shape changes.

    The output is the sum, before any normalization, so it is signed.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int, drop_rate: float, norm: str = "batch"
    ) -> None:
        super().__init__()
        self.bn1 = norm_layer(type(self).__name__, norm, in_channels)
        self.act1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn2 = norm_layer(type(self).__name__, norm, channels)
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
    """``6 n + 4`` layers: a 3x3 convolution, 3 stages of n blocks, normalization, pooling, one class layer.

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
        COUNT.check(type(self).__name__, depth=depth, width=width)
        if depth < 10 or (depth - 4) % 6:
            raise UsageError(f"A wide residual network has 6 n + 4 layers (10, 16, 22, ...), got {depth}.")
        blocks, channels = (depth - 4) // 6, 16 * width
        block = functools.partial(PreActivationBlock, drop_rate=block_drop_rate)
        self.conv1 = nn.Conv2d(in_chans, 16, 3, 1, 1, bias=False)
        self.layer1 = _stage(block, 16, channels, blocks, 1)
        self.layer2 = _stage(block, channels, 2 * channels, blocks, 2)
        self.layer3 = _stage(block, 2 * channels, 4 * channels, blocks, 2)
        self.bn1 = nn.BatchNorm2d(4 * channels)
        self.act1 = nn.ReLU()
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.feature_info = [stage(f"layer{i + 1}", channels * 2**i, 2**i) for i in range(3)]
        self.finish(4 * channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 64 width, ceil(H / 4), ceil(W / 4)), from 0 upwards."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.act1(self.bn1(x))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns of layers, or of stages; the last normalization belongs to the last of them."""
        blocks = r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"
        return {"stem": r"^conv1", "blocks": [(blocks, None), (r"^bn1", (99999,))]}


class ResidualV2Cifar(Classifier):
    """ResNet18 with normalization before convolutions (He et al. 2016, "Identity mappings"), for 32x32.

    A 3x3 convolution in place of 7x7 and pooling, 4 stages of 2 blocks of 64, 128, 256 and 512 channels, normalization,
    average pooling, one class layer. Maennel et al. 2020 (App. A.2) replace batch by group normalization; they do not
    say what their first convolution is at 32x32.

    Args:
        norm: ``"group"``, ``"batch"``, ``"layer"`` or ``"instance"``.
        width: Channels of the first stage.

    Raises:
        UsageError: Counts below 1, or a normalization that is not known.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        norm: str = "group",
        width: int = 64,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        COUNT.check(type(self).__name__, width=width)
        block = functools.partial(PreActivationBlock, drop_rate=0.0, norm=norm)
        self.conv1 = nn.Conv2d(in_chans, width, 3, 1, 1, bias=False)
        channels = width
        for number in range(1, 5):
            after = width * 2 ** (number - 1)
            self.add_module(f"layer{number}", _stage(block, channels, after, 2, 1 if number == 1 else 2))
            self.feature_info.append(stage(f"layer{number}", after, 2 ** (number - 1)))
            channels = after
        self.bn1 = norm_layer(type(self).__name__, norm, channels)
        self.act1 = nn.ReLU()
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.finish(channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 8 width, ceil(H / 8), ceil(W / 8)), from 0 upwards."""
        x = self.conv1(x)
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.act1(self.bn1(x))

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns of layers, or of stages; the last normalization belongs to the last of them."""
        blocks = r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"
        return {"stem": r"^conv1", "blocks": [(blocks, None), (r"^bn1", (99999,))]}


def resnet18_v2_cifar(**kwargs: Any) -> ResidualV2Cifar:
    """ResNet18-v2 with group normalization, 11.2 M parameters."""
    return ResidualV2Cifar(**kwargs)


def wide_resnet10_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-10-2: one block a stage, for what has to be quick, 0.3 M parameters."""
    return WideResidualCifar(10, 2, **kwargs)


def wide_resnet16_4_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-16-4, 2.7 M parameters."""
    return WideResidualCifar(16, 4, **kwargs)


def wide_resnet28_2_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-28-2, 1.5 M parameters."""
    return WideResidualCifar(28, 2, **kwargs)


def wide_resnet28_4_cifar(**kwargs: Any) -> WideResidualCifar:
    """WRN-28-4: 4 blocks a stage, 5.8 M parameters; the network of Maennel et al. 2020, fig. 3, but for its stem."""
    return WideResidualCifar(28, 4, **kwargs)


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
    resnet8_cifar,
    resnet20_cifar,
    resnet32_cifar,
    resnet44_cifar,
    resnet56_cifar,
    resnet110_cifar,
    resnet18_v2_cifar,
    wide_resnet10_2_cifar,
    wide_resnet16_4_cifar,
    wide_resnet28_2_cifar,
    wide_resnet28_4_cifar,
    wide_resnet28_10_cifar,
    wide_resnet28_16_cifar,
    wide_resnet40_2_cifar,
    wide_resnet58_2_cifar,
)
