"""Networks that give images, from a latent vector or from a smaller image; plain modules.

The encoder and decoder are those of the variational autoencoders of Locatello et al. (2019), which take 64x64 images:
four convolutions and two dense layers each way. The published table has kernels of 4x4 throughout; the code of both
papers that use it has 2x2 in the third and fourth convolution of the encoder, and a linear last layer, whose outputs
are logits of pixels. This is the code's.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, WHOLE, OneOf

from .classifier import divided, draw_initial_weights
from .layers import Layer, LayerStyle, activation, planned

ENLARGING = ("transpose", "nearest")


class Generator(nn.Module):
    """A latent vector to an image: a dense layer, then layers that double the size (Radford et al. 2016).

    Args:
        latent: Length of the vector.
        channels: Maps of the dense layer, and of each layer after it but the last.
        out_chans: Channels of the image; its side is ``start * 2 ** len(channels)``.
        start: Side of the first maps.
        enlarge: ``"transpose"``: transposed convolutions of 4x4 and stride 2; ``"nearest"``: every pixel four times,
            then a convolution of 3x3.
        norm: ``"batch"`` or ``"none"``, after all layers but the last.
        activation: After all layers but the last; see ``FullyConnected``.
        output: Activation of the image: ``"none"``, ``"tanh"``, ``"sigmoid"``, ``"relu"``.

    Raises:
        UsageError: Counts below 1, or a word that is not known.
    """

    def __init__(
        self,
        *,
        latent: int = 64,
        channels: Sequence[int] = (64, 32, 16),
        out_chans: int = 1,
        start: int = 4,
        enlarge: str = "transpose",
        norm: str = "batch",
        activation: str = "relu",
        output: str = "none",
    ) -> None:
        super().__init__()
        COUNT.check("Generator", latent=latent, start=start, out_chans=out_chans, layers=len(channels))
        for count in channels:
            COUNT.check("Generator", channels=count)
        kind = LayerStyle("Generator", norm, activation)
        dense = nn.Linear(latent, channels[0] * start * start)
        self.dense = Layer(dense, nn.Identity(), kind.layer(dense).act)
        self.unflatten = nn.Unflatten(1, (channels[0], start, start))
        self.body = _Enlarging(kind, [*channels, out_chans], [True] * len(channels), enlarge, output)
        draw_initial_weights(self)

    def forward(self, latent: Tensor) -> Tensor:
        """Vectors (N, latent) to images (N, out_chans, side, side)."""
        return self.body(self.unflatten(self.dense(latent)))

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return linear map, normalization, activation and resizing of each layer, by path and in order."""
        return [planned("dense", self.dense), *self.body.plan("body.")]


class Upscaler(nn.Module):
    """A small image to a larger one with as many channels as wanted, by convolutions alone.

    Args:
        in_chans: Channels of the small image.
        channels: Maps of each layer but the last.
        out_chans: Channels of the large image.
        doublings: How many of the layers double the size, evenly spread; 2 makes 64x64 of 16x16.
        enlarge: See ``Generator``.
        norm: See ``Generator``.
        activation: See ``Generator``.
        output: See ``Generator``.

    Raises:
        UsageError: Counts below 1, more doublings than layers, or a word that is not known.
    """

    def __init__(
        self,
        *,
        in_chans: int = 1,
        channels: Sequence[int] = (16, 32, 32, 16, 8),
        out_chans: int = 1,
        doublings: int = 2,
        enlarge: str = "transpose",
        norm: str = "none",
        activation: str = "relu",
        output: str = "none",
    ) -> None:
        super().__init__()
        counts = [in_chans, *channels, out_chans]
        for count in counts:
            COUNT.check("Upscaler", channels=count)
        layers = len(counts) - 1
        WHOLE.check("Upscaler", doublings=doublings)
        if doublings > layers:
            raise UsageError(f"Upscaler: {layers} layers cannot double the size {doublings} times.")
        doubling = {round((turn + 0.5) * layers / doublings - 0.5) for turn in range(doublings)}
        doubles = [number in doubling for number in range(layers)]
        self.body = _Enlarging(LayerStyle("Upscaler", norm, activation), counts, doubles, enlarge, output)
        draw_initial_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, out_chans, H * 2 ** doublings, W * 2 ** doublings)."""
        return self.body(images)

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return linear map, normalization, activation and resizing of each layer, by path and in order."""
        return self.body.plan("body.")


class _Enlarging(nn.Sequential):
    """``layer1``, ``layer2``, ..., each with ``enlarge1``, ... before it where every pixel is repeated."""

    def __init__(
        self, kind: LayerStyle, counts: Sequence[int], doubles: Sequence[bool], enlarge: str, output: str
    ) -> None:
        super().__init__()
        OneOf(ENLARGING).check(kind.owner, enlarge=enlarge)
        for number, double in enumerate(doubles, 1):
            before, after = counts[number - 1], counts[number]
            if double and enlarge == "nearest":
                self.add_module(f"enlarge{number}", nn.Upsample(scale_factor=2, mode="nearest"))
            linear: nn.Module = nn.Conv2d(before, after, 3, 1, 1)
            if double and enlarge == "transpose":
                linear = nn.ConvTranspose2d(before, after, 4, 2, 1)
            last = Layer(linear, nn.Identity(), activation(kind.owner, output, "output"))
            self.add_module(f"layer{number}", last if number == len(doubles) else kind.layer(linear))

    def plan(self, prefix: str) -> list[dict[str, str | None]]:
        """Return the stages of a reverse plan, with paths behind ``prefix``."""
        stages: list[dict[str, str | None]] = []
        pool = None
        for name, module in self.named_children():
            if isinstance(module, Layer):
                stages.append(planned(prefix + name, module, pool))
                pool = None
            else:
                pool = prefix + name
        return stages


RELU = LayerStyle("VAE")


class VAETrunk(nn.Module):
    """Images to a hidden vector of 256 numbers: four convolutions of stride 2 and a dense layer, all with ReLU.

    Glorot-uniform weights, zero biases.

    Raises:
        UsageError: Counts below 1, or sides that are no multiples of 16.
    """

    width = 256

    def __init__(self, *, in_chans: int = 1, img_size: int | tuple[int, int] = 64) -> None:
        super().__init__()
        COUNT.check("VAETrunk", in_chans=in_chans)
        height, width = (side // 16 for side in divided("VAETrunk", img_size, 16))
        self.conv1 = RELU.layer(nn.Conv2d(in_chans, 32, 4, 2, 1))
        self.conv2 = RELU.layer(nn.Conv2d(32, 32, 4, 2, 1))
        self.conv3 = RELU.layer(nn.Conv2d(32, 64, 2, 2))
        self.conv4 = RELU.layer(nn.Conv2d(64, 64, 2, 2))
        self.flatten = nn.Flatten()
        self.dense = RELU.layer(nn.Linear(64 * height * width, self.width))
        draw_initial_weights(self, "glorot")

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, in_chans, H, W), from 0 to 1, to (N, 256), from 0 upwards."""
        return self.dense(self.flatten(self.conv4(self.conv3(self.conv2(self.conv1(images))))))


class VAEEncoder(VAETrunk):
    """Images to mean and log-variance of their latent variables.

    Raises:
        UsageError: See ``VAETrunk``.
    """

    def __init__(self, *, in_chans: int = 1, latent: int = 10, img_size: int | tuple[int, int] = 64) -> None:
        super().__init__(in_chans=in_chans, img_size=img_size)
        COUNT.check("VAEEncoder", latent=latent)
        self.mean = nn.Linear(self.width, latent)
        self.log_variance = nn.Linear(self.width, latent)
        draw_initial_weights(self, "glorot")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Images (N, in_chans, H, W), from 0 to 1, to mean and log-variance, each (N, latent)."""
        hidden = super().forward(images)
        return self.mean(hidden), self.log_variance(hidden)

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return the stages from the images to the mean, by path and in order."""
        names = ("conv1", "conv2", "conv3", "conv4", "dense", "mean")
        return [planned(name, self.get_submodule(name)) for name in names]


class VAEDecoder(nn.Module):
    """Latent variables to logits of pixels; Glorot-uniform weights, zero biases.

    Raises:
        UsageError: Counts below 1, or sides that are no multiples of 16.
    """

    def __init__(self, *, out_chans: int = 1, latent: int = 10, img_size: int | tuple[int, int] = 64) -> None:
        super().__init__()
        COUNT.check("VAEDecoder", out_chans=out_chans, latent=latent)
        height, width = (side // 16 for side in divided("VAEDecoder", img_size, 16))
        self.dense1 = RELU.layer(nn.Linear(latent, 256))
        self.dense2 = RELU.layer(nn.Linear(256, 64 * height * width))
        self.unflatten = nn.Unflatten(1, (64, height, width))
        self.deconv1 = RELU.layer(nn.ConvTranspose2d(64, 64, 4, 2, 1))
        self.deconv2 = RELU.layer(nn.ConvTranspose2d(64, 32, 4, 2, 1))
        self.deconv3 = RELU.layer(nn.ConvTranspose2d(32, 32, 4, 2, 1))
        self.deconv4 = nn.ConvTranspose2d(32, out_chans, 4, 2, 1)
        draw_initial_weights(self, "glorot")

    def forward(self, latent: Tensor) -> Tensor:
        """Latent variables (N, latent) to logits (N, out_chans, H, W)."""
        maps = self.unflatten(self.dense2(self.dense1(latent)))
        return self.deconv4(self.deconv3(self.deconv2(self.deconv1(maps))))

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return the stages from the latent variables to the logits, by path and in order."""
        names = ("dense1", "dense2", "deconv1", "deconv2", "deconv3", "deconv4")
        return [planned(name, self.get_submodule(name)) for name in names]


class Autoencoder(nn.Module):
    """An encoder and a decoder; the image is rebuilt from the means alone, nothing is drawn.

    Args:
        encoder: Gives mean and log-variance.
        decoder: Takes as many latent variables.
    """

    def __init__(self, encoder: VAEEncoder, decoder: VAEDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, channels, 64, 64) to logits of the same shape."""
        return self.decoder(self.encoder(images)[0])

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return the stages of encoder and decoder, by path and in order."""
        return [
            {part: None if path is None else f"{side}.{path}" for part, path in stage.items()}
            for side, module in (("encoder", self.encoder), ("decoder", self.decoder))
            for stage in module.reverse_plan()
        ]
