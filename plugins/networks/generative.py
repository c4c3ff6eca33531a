"""Networks that give images, with timm's interface: super-resolution, autoencoder, generator; discriminator.

Those of "Reviving Autoencoder Pretraining", Sec. 4, B.2 and C.2, which prints neither widths nor kernels: the
generators have six convolutions (super-resolution) or the layers of ``Generator``. Each is a chain of two named parts,

    super_resolution   down -> generator -> pixels
    image_autoencoder  encoder -> decoder -> pixels
    info_gan           codes -> generator -> pixels

cut behind the first or the second. A task cut at ``"generator"`` or ``"decoder"`` trains all of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, WHOLE

from .chains import ConvChain
from .classifier import (
    WithoutClassLayer,
    divided,
    draw_initial_weights,
    square,
    stage,
)
from .generators import Generator, Upscaler
from .layers import Layer, activation, planned

WIDTHS = (16, 32, 32, 16, 8)
"""Maps of the first five of six layers of a super-resolution generator."""


class ImageNetwork(WithoutClassLayer):
    """Two parts in a row that give an image; there is no class layer, whatever the classes.

    Args:
        parts: Names and modules of the two, in order.
        first: Path of the first layer.
        width: Channels, or numbers, that the first part gives.
        reduction: Pixels of the image per position of what it gives, along a side.
    """

    fixed_input_size: ClassVar[bool] = True
    output_fmt: ClassVar[str] = "NC"

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        drop_rate: float,
        size: tuple[int, int],
        parts: Sequence[tuple[str, nn.Module]],
        first: str,
        width: int,
        reduction: int = 1,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, size)
        self.names = tuple(name for name, _ in parts)
        for name, module in parts:
            self.add_module(name, module)
        self.pixels = nn.Flatten()
        self.pretrained_cfg.update(classifier=None, first_conv=first)
        self.num_features = self.head_hidden_size = width
        self.feature_info = [stage(self.names[0], width, reduction)]

    def forward_features(self, x: Tensor) -> Tensor:
        """Map images (N, in_chans, H, W), from 0 to 1, to the output of the first part."""
        return self.get_submodule(self.names[0])(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map the output of the first part to pixels (N, channels * H * W); return it unchanged if ``pre_logits``."""
        return x if pre_logits else self.pixels(self.get_submodule(self.names[1])(x))


class Downscaler(nn.Sequential):
    """The mirror of an ``Upscaler``: the transposes of its layers in reverse order, as parameters of their own.

    Layer k has the shape of the transpose of the upscaler's layer n + 1 - k, whose weight tensor it can take over
    unchanged: transposed convolutions of 3x3 for convolutions, convolutions of 4x4 and stride 2 for transposed ones.
    As in a reverse pass, the activation after layer k is that of the layer before the one it mirrors; none after the
    last.

    Args:
        upscaler: Network whose shape it mirrors, with ``enlarge="transpose"``; its weights are not used.
        activated: Activation of all layers but the last.

    Raises:
        UsageError: The upscaler repeats pixels, which no layer of this one undoes.
    """

    def __init__(self, upscaler: Upscaler, activated: str) -> None:
        super().__init__()
        layers = list(upscaler.body.children())
        for number, layer in enumerate(reversed(layers), 1):
            if not isinstance(layer, Layer):
                raise UsageError("Downscaler mirrors an Upscaler with enlarge='transpose'.")
            map_: Any = layer.linear
            kind = nn.Conv2d if isinstance(map_, nn.ConvTranspose2d) else nn.ConvTranspose2d
            shape: Any = map_.kernel_size, map_.stride, map_.padding
            last = number == len(layers)
            act = activation("Downscaler", "none" if last else activated)
            self.add_module(
                f"layer{number}", Layer(kind(map_.out_channels, map_.in_channels, *shape), nn.Identity(), act)
            )
        draw_initial_weights(self)

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return linear map and activation of each layer, by path and in order."""
        return [planned(name, layer) for name, layer in self.named_children()]


def super_resolution(
    *,
    num_classes: int = 0,
    in_chans: int = 1,
    img_size: int | tuple[int, int] = 64,
    channels: Sequence[int] = WIDTHS,
    activation: str = "leaky_relu",
    norm: str = "none",
    output: str = "none",
    drop_rate: float = 0.0,
) -> ImageNetwork:
    """Return a network that makes a large image of its own 4x4 average; ``channels`` of all layers but the last.

    Raises:
        UsageError: Sides that are no multiples of 4, or settings that ``Upscaler`` refuses.
    """
    size = divided("super_resolution", img_size, 4)
    generator = Upscaler(
        in_chans=in_chans,
        channels=channels,
        out_chans=in_chans,
        norm=norm,
        activation=activation,
        output=output,
    )
    parts = (("down", nn.AvgPool2d(4)), ("generator", generator))
    return ImageNetwork(
        num_classes, in_chans, drop_rate, size, parts, "generator.body.layer1.linear", in_chans, 4
    )


def image_autoencoder(
    *,
    num_classes: int = 0,
    in_chans: int = 1,
    img_size: int | tuple[int, int] = 64,
    channels: Sequence[int] = WIDTHS,
    code: int = 1,
    activation: str = "leaky_relu",
    drop_rate: float = 0.0,
) -> ImageNetwork:
    """Return an autoencoder: the generator of ``super_resolution`` as decoder, its mirror as encoder.

    Between them are ``code`` maps at a quarter of the image's sides.

    Raises:
        UsageError: See ``super_resolution``.
    """
    size = divided("image_autoencoder", img_size, 4)
    decoder = Upscaler(in_chans=code, channels=channels, out_chans=in_chans, activation=activation)
    parts = (("encoder", Downscaler(decoder, activation)), ("decoder", decoder))
    return ImageNetwork(num_classes, in_chans, drop_rate, size, parts, "encoder.layer1.linear", code, 4)


class Codes(nn.Module):
    """Draws the input of a generator (Chen et al. 2016, C.1): a one-hot category, uniform codes, normal noise.

    In train mode it draws from torch's generator, which a run seeds for every step; in eval mode the n-th image of a
    batch always has the same codes. Of the images it takes only their number.

    Args:
        categories: Length of the one-hot code.
        uniform: Count of codes from -1 to 1.
        noise: Count of standard normal numbers.
    """

    def __init__(self, categories: int, uniform: int, noise: int) -> None:
        super().__init__()
        COUNT.check("Codes", categories=categories)
        WHOLE.check("Codes", uniform=uniform, noise=noise)
        self.counts = categories, uniform, noise

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, ...) to codes (N, categories + uniform + noise)."""
        categories, uniform, noise = self.counts
        draw = None if self.training else torch.Generator(images.device).manual_seed(0)
        settings: dict[str, Any] = {"device": images.device, "generator": draw}
        count = len(images)
        category = torch.rand(count, categories, **settings).argmax(1)
        one_hot = nn.functional.one_hot(category, categories)
        between = torch.rand(count, uniform, **settings) * 2 - 1
        return torch.cat(
            [one_hot.to(images), between.to(images), torch.randn(count, noise, **settings).to(images)], 1
        )


def info_gan(
    *,
    num_classes: int = 0,
    in_chans: int = 1,
    img_size: int | tuple[int, int] = 28,
    categories: int = 10,
    uniform: int = 2,
    noise: int = 62,
    channels: Sequence[int] = (64, 32),
    norm: str = "batch",
    drop_rate: float = 0.0,
) -> ImageNetwork:
    """Return a generator of images from drawn codes; 10 + 2 + 62 as in B.2 of the paper.

    Raises:
        UsageError: Sides that ``len(channels)`` doublings do not reach, unequal ones, or counts below 1.
    """
    size = square("info_gan", img_size)
    start, left = divmod(size[0], 2 ** len(channels))
    if left or not start or size[0] != size[1]:
        raise UsageError(
            f"info_gan gives square images whose side {len(channels)} doublings reach; got {size[0]}x{size[1]}."
        )
    latent = categories + uniform + noise
    generator = Generator(
        latent=latent, channels=channels, out_chans=in_chans, start=start, norm=norm, output="sigmoid"
    )
    parts = (("codes", Codes(categories, uniform, noise)), ("generator", generator))
    return ImageNetwork(num_classes, in_chans, drop_rate, size, parts, "generator.dense.linear", latent)


def image_discriminator(
    *,
    num_classes: int = 1,
    in_chans: int = 2,
    img_size: int | tuple[int, int] = 64,
    channels: Sequence[int] = (16, 32, 64, 64),
    drop_rate: float = 0.0,
) -> ConvChain:
    """Return a discriminator: convolutions of stride 2 with leaky ReLU, and a number, positive for real images."""
    return ConvChain(
        num_classes=num_classes,
        in_chans=in_chans,
        img_size=img_size,
        channels=channels,
        reduce="stride",
        activation="leaky_relu",
        drop_rate=drop_rate,
    )


ENTRIES = (super_resolution, image_autoencoder, info_gan, image_discriminator)
