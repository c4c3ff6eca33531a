"""Plain chains without shortcuts: LeNet-5, SimpleCNN, VGG16 without its wide dense layers, a head of two layers."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT

from .classifier import (
    Classifier,
    draw_class_layer,
    draw_initial_weights,
    square,
    stage,
)


class LeNet(Classifier):
    """LeNet-5 (LeCun et al. 1998) for 32x32: 6 and 16 filters of 5x5, dense 120 and 84, one class layer.

    As it is built today: ReLU for tanh, 2x2 max pooling without weights, every second-layer filter sees all
    6 maps, and a plain class layer. The paper pads 28x28 digits to 32x32; here they are resized.

    Raises:
        UsageError: The image is smaller than 16x16, or counts are below 1.
    """

    fixed_input_size: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        drop_rate: float = 0.0,
    ) -> None:
        size = square("LeNet", img_size)
        super().__init__(num_classes, in_chans, drop_rate, size)
        # A 5x5 convolution takes 4 pixels off, pooling halves; twice.
        height, width = (((side - 4) // 2 - 4) // 2 for side in size)
        if min(height, width) < 1:
            raise UsageError(f"LeNet needs images of at least 16x16 pixels, got {size[0]}x{size[1]}.")
        self.conv1 = nn.Conv2d(in_chans, 6, 5)
        self.act1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.act2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.dense1 = nn.Linear(16 * height * width, 120)
        self.act3 = nn.ReLU()
        self.dense2 = nn.Linear(120, 84)
        self.act4 = nn.ReLU()
        self.feature_info = [stage("pool1", 6, 2), stage("pool2", 16, 4)]
        self.finish(16, 84)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to maps (N, 16, 5, 5) at 32x32, from 0 upwards."""
        x = self.pool1(self.act1(self.conv1(x)))
        return self.pool2(self.act2(self.conv2(x)))

    def pool(self, x: Tensor) -> Tensor:
        """Maps to (N, 84) through two dense layers."""
        return self.act4(self.dense2(self.act3(self.dense1(self.flatten(x)))))


class SimpleCNN(Classifier):
    """A chain of 3x3 convolutions of stride 1 that keep the size, one dense layer, one class layer.

    The network of Maennel et al. 2020 (section 2): all activations are ReLU and there is no normalization.

    Args:
        convolutions: Count n of convolutions.
        filters: Channels of each.
        units: Width of the dense layer.
        max_pool: Whether 3x3 max pooling of stride 2 follows the last convolution, as in their Table 1 (app. E.3).

    Raises:
        UsageError: Counts below 1.
    """

    fixed_input_size: ClassVar[bool] = True
    first_conv: ClassVar[str] = "blocks.0.conv"

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        convolutions: int = 3,
        filters: int = 16,
        units: int = 512,
        max_pool: bool = False,
        img_size: int | tuple[int, int] = 32,
        drop_rate: float = 0.0,
    ) -> None:
        size = square("SimpleCNN", img_size)
        super().__init__(num_classes, in_chans, drop_rate, size)
        COUNT.check("SimpleCNN", convolutions=convolutions, filters=filters, units=units)
        self.blocks = nn.Sequential(
            *(ConvReLU(filters if i else in_chans, filters) for i in range(convolutions)),
        )
        self.max_pool = nn.MaxPool2d(3, 2, 1) if max_pool else nn.Identity()
        height, width = ((side + 1) // 2 for side in size) if max_pool else size
        self.flatten = nn.Flatten()
        self.dense = nn.Linear(filters * height * width, units)
        self.act = nn.ReLU()
        self.feature_info = [stage(f"blocks.{i}", filters, 1) for i in range(convolutions)]
        self.finish(filters, units)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, filters, H, W), from 0 upwards."""
        return self.blocks(x)

    def pool(self, x: Tensor) -> Tensor:
        """Maps to (N, units) through the dense layer."""
        return self.act(self.dense(self.flatten(self.max_pool(x))))


class ConvReLU(nn.Module):
    """A 3x3 convolution that keeps the size, and a ReLU."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, 1, 1)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, channels, H, W), from 0 upwards."""
        return self.act(self.conv(x))


class VGG16Cifar(Classifier):
    """VGG16, configuration D (Simonyan and Zisserman 2015), without its two dense layers of 4,096 units.

    13 convolutions of 3x3 in 5 groups, each group ended by 2x2 max pooling, then the class layer on the mean
    over what is left: one pixel at 32x32. No normalization, as in the paper.

    Raises:
        UsageError: Counts below 1.
    """

    first_conv: ClassVar[str] = "stage1.0.conv"
    GROUPS: ClassVar[tuple[tuple[int, int], ...]] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))

    def __init__(self, *, num_classes: int = 10, in_chans: int = 3, drop_rate: float = 0.0) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        channels = in_chans
        for number, (convolutions, filters) in enumerate(self.GROUPS, 1):
            layers: list[nn.Module] = []
            for _ in range(convolutions):
                layers.append(ConvReLU(channels, filters))
                channels = filters
            self.add_module(f"stage{number}", nn.Sequential(*layers, nn.MaxPool2d(2)))
            self.feature_info.append(stage(f"stage{number}", filters, 2**number))
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.finish(channels)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, 512, H // 32, W // 32), from 0 upwards."""
        for number in range(1, len(self.GROUPS) + 1):
            x = self.get_submodule(f"stage{number}")(x)
        return x


class TwoLayerHead(Classifier):
    """A head of two dense layers on the mean over pixels, to be the ``rest`` of a task: cut after ``conv1``.

    The head that "Towards Understanding the Transferability of Deep Representations" (2020, app. A) trains on fixed
    features: 512 units with batch normalization and leaky ReLU. Both layers are the class layer, so that no weights of
    another head go into them.

    Args:
        channels: Channels of the features that it takes.
        units: Width between the layers.

    Raises:
        UsageError: Counts below 1.
    """

    def __init__(
        self,
        *,
        channels: int = 64,
        units: int = 512,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, (32, 32))
        COUNT.check("TwoLayerHead", channels=channels, units=units)
        self.units = units
        self.conv1 = nn.Conv2d(in_chans, channels, 1)
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.feature_info = [stage("conv1", channels, 1)]
        self.finish(channels)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """See ``Classifier.reset_classifier``; both layers are drawn."""
        super().reset_classifier(num_classes, global_pool)
        if num_classes:
            first, last = nn.Linear(self.num_features, self.units), nn.Linear(self.units, num_classes)
            self.fc = nn.Sequential(first, nn.BatchNorm1d(self.units), nn.LeakyReLU(), last)
            draw_initial_weights(self.fc[:2], self.initial)
            draw_class_layer(last, self.initial)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, channels, H, W)."""
        return self.conv1(x)


def lenet(**kwargs: Any) -> LeNet:
    """LeNet-5 for 32x32, 61,706 parameters with one channel and 10 classes."""
    return LeNet(**kwargs)


def simple_cnn(**kwargs: Any) -> SimpleCNN:
    """SimpleCNN; ``convolutions``, ``filters``, ``units`` and ``max_pool`` say which."""
    return SimpleCNN(**kwargs)


def vgg16_cifar(**kwargs: Any) -> VGG16Cifar:
    """VGG16-D without the dense layers of 4,096 units, 14.7 M parameters."""
    return VGG16Cifar(**kwargs)


def two_layer_head(**kwargs: Any) -> TwoLayerHead:
    """TwoLayerHead; ``channels`` and ``units`` say which."""
    return TwoLayerHead(**kwargs)


ENTRIES = (lenet, simple_cnn, vgg16_cifar, two_layer_head)
