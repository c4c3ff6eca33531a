"""Chains whose size, normalization and activation are settings: fully connected, and convolutional."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, OneOf

from .classifier import Classifier, square, stage
from .layers import LayerStyle, activation, planned


class FullyConnected(Classifier):
    """Dense layers one after the other, and a class layer; ``blocks.0``, ``blocks.1``, ... are the cuts.

    Args:
        widths: Outputs of each dense layer before the class layer; none is a linear classifier.
        norm: ``"none"`` or ``"batch"``, after each dense layer.
        activation: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ``"leaky_relu"`` or ``"none"``.
        last_norm: Whether the class layer has that normalization too.
        last_activation: Whether the class layer has that activation too.
        initial: ``"he"`` (normal, as all small networks) or ``"glorot"`` (uniform); biases are zero.
        norm_eps: Added to the variance by batch normalization.
        img_size: Height and width, or one number for both.

    Raises:
        UsageError: Counts below 1, or a word that is not known.
    """

    fixed_input_size: ClassVar[bool] = True
    first_conv: ClassVar[str] = "blocks.0.linear"
    output_fmt: ClassVar[str] = "NC"

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        widths: Sequence[int] = (128,),
        norm: str = "none",
        activation: str = "relu",
        last_norm: bool = False,
        last_activation: bool = False,
        initial: str = "he",
        norm_eps: float = 1e-5,
        drop_rate: float = 0.0,
    ) -> None:
        size = square("FullyConnected", img_size)
        super().__init__(num_classes, in_chans, drop_rate, size)
        self.initial = initial
        self.kind = LayerStyle("FullyConnected", norm, activation, norm_eps)
        self.last_norm_on, self.last_act_on = last_norm, last_activation
        for width in widths:
            COUNT.check("FullyConnected", widths=width)
        counts = [in_chans * size[0] * size[1], *widths]
        self.flatten = nn.Flatten()
        self.blocks = nn.Sequential(
            *(self.kind.layer(nn.Linear(before, after)) for before, after in pairwise(counts))
        )
        self.feature_info = [stage(f"blocks.{i}", width, 1) for i, width in enumerate(widths)]
        if not widths:
            self.pretrained_cfg["first_conv"] = self.classifier_name
        self.finish(counts[-1])

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """See ``Classifier``; a normalization of the class layer starts anew with it."""
        super().reset_classifier(num_classes, global_pool)
        layer, kind = self.get_classifier(), self.kind
        normed = self.last_norm_on and isinstance(layer, nn.Linear) and kind.norm != "none"
        self.last_norm = kind.norm_layer(layer) if normed else nn.Identity()
        on = self.last_act_on and isinstance(layer, nn.Linear)
        self.last_act = activation(kind.owner, kind.activation if on else "none")
        self.pretrained_cfg["classifier"] = ("fc", "last_norm") if normed else "fc"

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to (N, widths[-1])."""
        return self.blocks(self.flatten(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Features to logits (N, num_classes), or to themselves."""
        x = self.head_drop(x)
        return x if pre_logits else self.last_act(self.last_norm(self.get_classifier()(x)))

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return linear map, normalization, activation and pooling of each layer, by path and in order."""
        plan = [planned(f"blocks.{i}", layer) for i, layer in enumerate(self.blocks)]
        if isinstance(self.fc, nn.Linear):
            last = {
                "norm": None if isinstance(self.last_norm, nn.Identity) else "last_norm",
                "act": None if isinstance(self.last_act, nn.Identity) else "last_act",
            }
            plan.append({**planned("fc", self.fc), **last})
        return plan


def fully_connected(**kwargs: Any) -> FullyConnected:
    """Dense chain; ``widths``, ``norm`` and ``activation`` say which."""
    return FullyConnected(**kwargs)


REDUCTIONS = ("average", "max", "stride", "none")
TOPS = ("mean", "flatten")


class ConvChain(Classifier):
    """3x3 convolutions, each halving the size, and a class layer; ``layer1``, ``layer2``, ... are the cuts.

    Args:
        channels: Filters of each convolution.
        reduce: How each convolution but the first comes to half the size: ``"average"`` or ``"max"`` pooling of 2x2
            before it, ``"stride"`` 2 of its own, or not at all (``"none"``).
        top: Input of the class layer: the ``"mean"`` over pixels, or all of them (``"flatten"``).
        norm: ``"none"`` or ``"batch"``, after each convolution.
        activation: See ``FullyConnected``.
        initial: ``"he"`` or ``"glorot"``.
        kernel: Side of the filters, an odd number.
        strides: Strides of each convolution, in place of ``reduce``, which must then be ``"none"``; empty for 1.
        padding: Whether maps are padded with zeros, so that stride 1 keeps their size.
        img_size: Height and width, or one number for both.

    Raises:
        UsageError: Counts below 1, an even kernel, a word that is not known, or nothing is left of the image.
    """

    fixed_input_size: ClassVar[bool] = True
    first_conv: ClassVar[str] = "layer1.linear"

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        channels: Sequence[int] = (32, 64, 64, 128),
        reduce: str = "average",
        top: str = "flatten",
        norm: str = "none",
        activation: str = "relu",
        initial: str = "he",
        kernel: int = 3,
        strides: Sequence[int] = (),
        padding: bool = True,
        drop_rate: float = 0.0,
    ) -> None:
        size = square("ConvChain", img_size)
        super().__init__(num_classes, in_chans, drop_rate, size)
        _check(channels, reduce, top, kernel)
        _check_strides(strides, len(channels), reduce)
        self.initial = initial
        kind = LayerStyle("ConvChain", norm, activation)
        self.depth, self.reduce = len(channels), reduce
        before, (height, width), reduction = in_chans, size, 1
        border = kernel // 2 if padding else 0
        for number, filters in enumerate(channels, 1):
            halves = number > 1 and reduce != "none"
            stride = strides[number - 1] if strides else 2 if halves and reduce == "stride" else 1
            if halves and stride == 1:
                self.add_module(f"pool{number}", nn.AvgPool2d(2) if reduce == "average" else nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            height, width = ((side + 2 * border - kernel) // stride + 1 for side in (height, width))
            if min(height, width) < 1:
                raise UsageError(
                    f"ConvChain: nothing is left of {size[0]}x{size[1]} pixels at layer{number}."
                )
            conv = nn.Conv2d(before, filters, kernel, stride, border)
            self.add_module(f"layer{number}", kind.layer(conv))
            before, reduction = filters, reduction * (2 if halves and stride == 1 else stride)
            self.feature_info.append(stage(f"layer{number}", filters, reduction))
        self.global_pool = nn.AdaptiveAvgPool2d(1) if top == "mean" else nn.Identity()
        self.flatten = nn.Flatten()
        self.finish(before, before if top == "mean" else before * height * width)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (N, in_chans, H, W) to the maps of the last convolution."""
        for number in range(1, self.depth + 1):
            if hasattr(self, f"pool{number}"):
                x = self.get_submodule(f"pool{number}")(x)
            x = self.get_submodule(f"layer{number}")(x)
        return x

    def pool(self, x: Tensor) -> Tensor:
        """Maps to the vector that enters the class layer."""
        return self.flatten(self.global_pool(x))

    def reverse_plan(self) -> list[dict[str, str | None]]:
        """Return linear map, normalization, activation and pooling of each layer, by path and in order."""
        plan = [
            planned(
                f"layer{number}",
                self.get_submodule(f"layer{number}"),
                f"pool{number}" if hasattr(self, f"pool{number}") else None,
            )
            for number in range(1, self.depth + 1)
        ]
        if isinstance(self.fc, nn.Linear):
            mean = None if isinstance(self.global_pool, nn.Identity) else "global_pool"
            plan.append(planned("fc", self.fc, mean))
        return plan


def _check(channels: Sequence[int], reduce: str, top: str, kernel: int) -> None:
    if not channels:
        raise UsageError("ConvChain: channels names at least one convolution, got none.")
    for filters in channels:
        COUNT.check("ConvChain", channels=filters)
    COUNT.check("ConvChain", kernel=kernel)
    if kernel % 2 == 0:
        raise UsageError(f"ConvChain: kernel is an odd number, so that maps keep their size; got {kernel}.")
    OneOf(REDUCTIONS).check("ConvChain", reduce=reduce)
    OneOf(TOPS).check("ConvChain", top=top)


def _check_strides(strides: Sequence[int], count: int, reduce: str) -> None:
    if not strides:
        return
    if len(strides) != count or reduce != "none":
        raise UsageError(
            f"ConvChain: strides are one number for each of {count} convolutions, with reduce='none'; got "
            f"{list(strides)} and reduce={reduce!r}."
        )
    for stride in strides:
        COUNT.check("ConvChain", strides=stride)


def conv_chain(**kwargs: Any) -> ConvChain:
    """Convolutional chain; ``channels``, ``reduce``, ``top``, ``norm`` and ``activation`` say which."""
    return ConvChain(**kwargs)


ENTRIES = (fully_connected, conv_chain)
