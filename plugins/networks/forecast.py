"""A residual network that forecasts fields from fields, with timm's interface.

That of "Reviving Autoencoder Pretraining", C.3, after Rasp and Thuerey (2021): a convolution of 7x7, 19 residual blocks
of two convolutions of 3x3, 128 maps throughout, leaky ReLU (.3), batch normalization and dropout (.1) after each, and a
convolution to the forecast; 117 fields to 3 have 6.36 million parameters, as in the paper. It is the chain

    unstack -> stem -> blocks.0 -> blocks.1 -> ... -> last -> pixels

A task cut at ``"last"`` trains all of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT

from .classifier import (
    WithoutClassLayer,
    draw_initial_weights,
    square,
    stage,
)

SLOPE = 0.3
SPAN = 8.0
"""Standard deviations from black to white, as in the images that ``compatkit.data`` stacks."""


class Unstack(nn.Module):
    """An image of fields one below the other to the first of them, in standard deviations."""

    def __init__(self, inputs: int, fields: int) -> None:
        super().__init__()
        self.inputs, self.fields = inputs, fields

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 1, fields * height, width), from 0 to 1, to (N, inputs, height, width)."""
        count, _, rows, width = images.shape
        return (images.reshape(count, self.fields, rows // self.fields, width)[:, : self.inputs] - 0.5) * SPAN


def _convolved(before: int, after: int, kernel: int, dropout: float) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, 1, kernel // 2)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.LeakyReLU(SLOPE), nn.Dropout(dropout))


class Block(nn.Module):
    """Two convolutions beside an identity: (N, C, H, W) to the same."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.first = _convolved(channels, channels, 3, dropout)
        self.second = _convolved(channels, channels, 3, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus what two convolutions make of it."""
        return x + self.second(self.first(x))


class ForecastResNet(WithoutClassLayer):
    """Stacked fields to forecasts, ``(N, outputs * height * width)`` in standard deviations; no class layer.

    Args:
        num_classes: For timm's interface; not used.
        in_chans: 1: fields are stacked in the rows of a gray image.
        img_size: Rows and columns of the image: all fields, those to forecast included; None for 32x64 points.
        inputs: Fields to forecast from, the first ones.
        outputs: Fields to forecast, the last ones of the image.
        channels: Maps of all layers.
        blocks: Residual blocks.
        drop_rate: Dropout after each convolution but the last.

    Raises:
        UsageError: Counts below 1, color images, or rows that the fields do not divide.
    """

    fixed_input_size: ClassVar[bool] = True
    output_fmt: ClassVar[str] = "NCHW"

    def __init__(
        self,
        *,
        num_classes: int = 0,
        in_chans: int = 1,
        img_size: int | tuple[int, int] | None = None,
        inputs: int = 117,
        outputs: int = 3,
        channels: int = 128,
        blocks: int = 19,
        drop_rate: float = 0.1,
    ) -> None:
        size = square("ForecastResNet", img_size or ((inputs + outputs) * 32, 64))
        super().__init__(num_classes, in_chans, drop_rate, size)
        COUNT.check("ForecastResNet", inputs=inputs, outputs=outputs, channels=channels, blocks=blocks)
        if in_chans != 1 or size[0] % (inputs + outputs):
            raise UsageError(
                f"ForecastResNet takes gray images of {inputs} + {outputs} fields one below the other; got {in_chans} "
                f"channels and {size[0]} rows."
            )
        self.unstack = Unstack(inputs, inputs + outputs)
        self.stem = _convolved(inputs, channels, 7, drop_rate)
        self.blocks = nn.Sequential(*(Block(channels, drop_rate) for _ in range(blocks)))
        self.last = nn.Conv2d(channels, outputs, 3, 1, 1)
        self.pixels = nn.Flatten()
        draw_initial_weights(self)
        self.num_features = self.head_hidden_size = channels
        self.feature_info = [stage(f"blocks.{number}", channels, 1) for number in range(blocks)]
        self.pretrained_cfg.update(classifier=None, first_conv="stem.0")

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, 1, rows, width), from 0 to 1, to maps (N, channels, height, width)."""
        return self.blocks(self.stem(self.unstack(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Maps to forecasts (N, outputs * height * width), or to themselves."""
        return x if pre_logits else self.pixels(self.last(x))


def forecast_resnet(**kwargs: Any) -> ForecastResNet:
    """Residual network for forecasts; ``inputs``, ``outputs``, ``channels`` and ``blocks`` say which."""
    return ForecastResNet(**kwargs)


ENTRIES = (forecast_resnet,)
