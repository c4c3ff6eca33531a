"""Variational autoencoders, and classifiers with the same encoder, with timm's interface.

The networks of Bonheme and Grzes (2023), App. C, which are those of Locatello et al. (2019); ``generators`` says where
code and printed table differ. A network is the chain

    encoder -> latent -> sample -> decoder -> pixels

of which ``encoder``, ``latent`` and ``decoder`` are three components. In train mode ``sample`` draws
z = mean + exp(log_variance / 2) * eps from torch's generator, which a run seeds for every step; in eval mode z is the
mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from compatkit.foundation.limits import COUNT

from .classifier import (
    Classifier,
    WithoutClassLayer,
    draw_initial_weights,
    square,
    stage,
)
from .generators import VAEDecoder, VAETrunk
from .layers import LayerStyle


class DenseTrunk(nn.Module):
    """Images to a hidden vector: dense layers with ReLU; Glorot-uniform weights, zero biases.

    Raises:
        UsageError: Counts below 1.
    """

    def __init__(
        self,
        *,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 64,
        widths: Sequence[int] = (1200, 1200),
    ) -> None:
        super().__init__()
        height, width = square("DenseTrunk", img_size)
        _check_widths("DenseTrunk", widths, in_chans=in_chans)
        self.flatten = nn.Flatten()
        kind = LayerStyle("DenseTrunk")
        for number, (before, after) in enumerate(pairwise([in_chans * height * width, *widths]), 1):
            self.add_module(f"dense{number}", kind.layer(nn.Linear(before, after)))
        self.width = widths[-1]
        draw_initial_weights(self, "glorot")

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, in_chans, H, W), from 0 to 1, to (N, widths[-1]), from 0 upwards."""
        for module in self.children():
            images = module(images)
        return images


def _check_widths(network: str, widths: Sequence[int], **counts: int) -> None:
    COUNT.check(network, layers=len(widths), **counts)
    for width in widths:
        COUNT.check(network, widths=width)


class DenseDecoder(nn.Module):
    """Latent variables to logits of pixels: dense layers with tanh, and a linear one; weights as in ``DenseTrunk``.

    The code of Locatello et al. has three layers of 1,200 units; the table of Bonheme and Grzes has 256, 1,200, 1,200.

    Raises:
        UsageError: Counts below 1.
    """

    def __init__(
        self,
        *,
        out_chans: int = 1,
        latent: int = 10,
        img_size: int | tuple[int, int] = 64,
        widths: Sequence[int] = (1200, 1200, 1200),
    ) -> None:
        super().__init__()
        height, width = square("DenseDecoder", img_size)
        _check_widths("DenseDecoder", widths, out_chans=out_chans, latent=latent)
        kind = LayerStyle("DenseDecoder", activation="tanh")
        for number, (before, after) in enumerate(pairwise([latent, *widths]), 1):
            self.add_module(f"dense{number}", kind.layer(nn.Linear(before, after)))
        self.last = nn.Linear(widths[-1], out_chans * height * width)
        self.unflatten = nn.Unflatten(1, (out_chans, height, width))
        draw_initial_weights(self, "glorot")

    def forward(self, latent: Tensor) -> Tensor:
        """Latent variables (N, latent) to logits (N, out_chans, H, W)."""
        for module in self.children():
            latent = module(latent)
        return latent


class Latent(nn.Module):
    """The mean layer and the log-variance layer, which both take the encoder's hidden vector."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        COUNT.check("Latent", latent=latent)
        self.mean = nn.Linear(width, latent)
        self.log_variance = nn.Linear(width, latent)
        draw_initial_weights(self, "glorot")

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden vectors (N, width) to means, then log-variances: (N, 2 * latent)."""
        return torch.cat([self.mean(hidden), self.log_variance(hidden)], dim=1)


class Sample(nn.Module):
    """Draws the latent variables in train mode (Kingma and Welling 2014, Sec. 2.4); gives their means in eval mode."""

    def forward(self, moments: Tensor) -> Tensor:
        """Means and log-variances (N, 2 * latent) to latent variables (N, latent)."""
        mean, log_variance = moments.chunk(2, dim=1)
        if not self.training:
            return mean
        return mean + torch.randn_like(mean) * (log_variance / 2).exp()


class VAE(WithoutClassLayer):
    """Images to logits of their pixels, ``(N, in_chans * H * W)``; it has no class layer, whatever the classes.

    Args:
        num_classes: For timm's interface; not used.
        in_chans: Channels of the images.
        img_size: Height and width, or one number for both; multiples of 16 for ``layers="conv"``.
        latent: Number of latent variables.
        layers: ``"conv"`` or ``"dense"``.
        widths: Units of the dense encoder's layers.
        decoder_widths: Units of the dense decoder's layers before the last one.

    Raises:
        UsageError: Counts below 1, or sides that do not fit.
    """

    fixed_input_size: ClassVar[bool] = True
    output_fmt: ClassVar[str] = "NC"
    initial = "glorot"

    def __init__(
        self,
        *,
        num_classes: int = 0,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 64,
        latent: int = 10,
        layers: str = "conv",
        widths: Sequence[int] = (1200, 1200),
        decoder_widths: Sequence[int] = (1200, 1200, 1200),
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, square("VAE", img_size))
        self.pretrained_cfg["classifier"] = None
        arguments: dict[str, Any] = {"img_size": img_size}
        if layers == "conv":
            self.encoder: nn.Module = VAETrunk(in_chans=in_chans, **arguments)
            self.pretrained_cfg["first_conv"] = "encoder.conv1.linear"
            decoder: nn.Module = VAEDecoder(out_chans=in_chans, latent=latent, **arguments)
        else:
            self.encoder = DenseTrunk(in_chans=in_chans, widths=widths, **arguments)
            self.pretrained_cfg["first_conv"] = "encoder.dense1.linear"
            decoder = DenseDecoder(out_chans=in_chans, latent=latent, widths=decoder_widths, **arguments)
        self.num_features = self.head_hidden_size = self.encoder.width
        self.latent = Latent(self.encoder.width, latent)
        self.sample = Sample()
        self.decoder = decoder
        self.pixels = nn.Flatten()
        self.feature_info = [stage("encoder", self.num_features, 1)]

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W), from 0 to 1, to the encoder's hidden vector."""
        return self.encoder(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Hidden vectors to logits of pixels (N, in_chans * H * W), or to themselves."""
        return x if pre_logits else self.pixels(self.decoder(self.sample(self.latent(x))))


class EncoderClassifier(Classifier):
    """The encoder of ``VAE`` with a class layer in the place of mean and log-variance (Bonheme and Grzes, App. H).

    Args:
        num_classes: Outputs.
        in_chans: See ``VAE``; so are ``img_size``, ``layers`` and ``widths``.

    Raises:
        UsageError: See ``VAE``.
    """

    fixed_input_size: ClassVar[bool] = True
    output_fmt: ClassVar[str] = "NC"
    initial = "glorot"

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 64,
        layers: str = "conv",
        widths: Sequence[int] = (1200, 1200),
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes, in_chans, drop_rate, square("EncoderClassifier", img_size))
        if layers == "conv":
            self.encoder: nn.Module = VAETrunk(in_chans=in_chans, img_size=img_size)
        else:
            self.encoder = DenseTrunk(in_chans=in_chans, img_size=img_size, widths=widths)
        first = "conv1" if layers == "conv" else "dense1"
        self.pretrained_cfg["first_conv"] = f"encoder.{first}.linear"
        self.feature_info = [stage("encoder", self.encoder.width, 1)]
        self.finish(self.encoder.width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W), from 0 to 1, to the encoder's hidden vector."""
        return self.encoder(x)

    def pool(self, x: Tensor) -> Tensor:
        """Return the hidden vector as it is."""
        return x


def vae_conv(**kwargs: Any) -> VAE:
    """Convolutional VAE for 64x64; ``latent`` says how many variables."""
    return VAE(layers="conv", **kwargs)


def vae_dense(**kwargs: Any) -> VAE:
    """Fully connected VAE; ``latent``, ``widths`` and ``decoder_widths`` say which."""
    return VAE(layers="dense", **kwargs)


def vae_conv_classifier(**kwargs: Any) -> EncoderClassifier:
    """Classifier with the encoder of ``vae_conv``."""
    return EncoderClassifier(layers="conv", **kwargs)


def vae_dense_classifier(**kwargs: Any) -> EncoderClassifier:
    """Classifier with the encoder of ``vae_dense``."""
    return EncoderClassifier(layers="dense", **kwargs)


ENTRIES = (vae_conv, vae_dense, vae_conv_classifier, vae_dense_classifier)
