"""Encoder and decoder of the variational autoencoders of Locatello et al. (2019), for 64x64 images; plain modules.

Four convolutions and two dense layers each way. The published table has kernels of 4x4 throughout; the code of both
papers that use it has 2x2 in the third and fourth convolution of the encoder, and a linear last layer, whose outputs
are logits of pixels. This is the code's.
"""

from __future__ import annotations

from torch import Tensor, nn

from compatkit.adapters.networks.classifier import check_counts, draw_initial_weights
from compatkit.adapters.networks.layers import Kind, planned

SIDE = 64
RELU = Kind("VAE")


class VAEEncoder(nn.Module):
    """Images to mean and log-variance of their latent variables; Glorot-uniform weights, zero biases.

    Raises:
        UsageError: Counts below 1.
    """

    def __init__(self, *, in_chans: int = 1, latent: int = 10) -> None:
        super().__init__()
        check_counts("VAEEncoder", in_chans=in_chans, latent=latent)
        self.conv1 = RELU.layer(nn.Conv2d(in_chans, 32, 4, 2, 1))
        self.conv2 = RELU.layer(nn.Conv2d(32, 32, 4, 2, 1))
        self.conv3 = RELU.layer(nn.Conv2d(32, 64, 2, 2))
        self.conv4 = RELU.layer(nn.Conv2d(64, 64, 2, 2))
        self.flatten = nn.Flatten()
        self.dense = RELU.layer(nn.Linear(64 * 4 * 4, 256))
        self.mean = nn.Linear(256, latent)
        self.log_variance = nn.Linear(256, latent)
        draw_initial_weights(self, "glorot")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, in_chans, 64, 64), from 0 to 1, to mean and log-variance, each (N, latent)."""
        maps = self.conv4(self.conv3(self.conv2(self.conv1(images))))
        hidden = self.dense(self.flatten(maps))
        return self.mean(hidden), self.log_variance(hidden)

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return the stages from the images to the mean, by path and in order."""
        names = ("conv1", "conv2", "conv3", "conv4", "dense", "mean")
        return [planned(name, self.get_submodule(name)) for name in names]


class VAEDecoder(nn.Module):
    """Latent variables to logits of pixels; Glorot-uniform weights, zero biases.

    Raises:
        UsageError: Counts below 1.
    """

    def __init__(self, *, out_chans: int = 1, latent: int = 10) -> None:
        super().__init__()
        check_counts("VAEDecoder", out_chans=out_chans, latent=latent)
        self.dense1 = RELU.layer(nn.Linear(latent, 256))
        self.dense2 = RELU.layer(nn.Linear(256, 64 * 4 * 4))
        self.unflatten = nn.Unflatten(1, (64, 4, 4))
        self.deconv1 = RELU.layer(nn.ConvTranspose2d(64, 64, 4, 2, 1))
        self.deconv2 = RELU.layer(nn.ConvTranspose2d(64, 32, 4, 2, 1))
        self.deconv3 = RELU.layer(nn.ConvTranspose2d(32, 32, 4, 2, 1))
        self.deconv4 = nn.ConvTranspose2d(32, out_chans, 4, 2, 1)
        draw_initial_weights(self, "glorot")

    def forward(self, latent: Tensor) -> Tensor:
        """Latent variables (N, latent) to logits (N, out_chans, 64, 64)."""
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
