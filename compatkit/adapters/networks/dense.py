"""Fully connected chains: the networks of small studies, in which everything can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from compatkit.adapters.networks.classifier import Classifier, check_counts, square, stage
from compatkit.adapters.networks.layers import Kind, activation, planned


class FullyConnected(Classifier):
    """Dense layers one after the other, and a class layer; ``blocks.0``, ``blocks.1``, ... are the split points.

    Args:
        widths: Outputs of each dense layer before the class layer; none is a linear classifier.
        norm: ``"none"`` or ``"batch"``, after each dense layer.
        activation: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ``"leaky_relu"`` or ``"none"``.
        last_norm: Whether the class layer has that normalisation too.
        last_activation: Whether the class layer has that activation too.
        initial: ``"he"`` (normal, as all small networks) or ``"glorot"`` (uniform); biases are zero.
        norm_eps: Added to the variance by batch normalisation.
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
        self.kind = Kind("FullyConnected", norm, activation, norm_eps)
        self.last_norm_on, self.last_act_on = last_norm, last_activation
        for width in widths:
            check_counts("FullyConnected", widths=width)
        counts = [in_chans * size[0] * size[1], *widths]
        self.flatten = nn.Flatten()
        self.blocks = nn.Sequential(
            *(self.kind.layer(nn.Linear(before, after)) for before, after in pairwise(counts))
        )
        self.feature_info = [dict(stage(f"blocks.{i}", width, 1)) for i, width in enumerate(widths)]
        if not widths:
            self.pretrained_cfg["first_conv"] = self.classifier_name
        self.finish(counts[-1])

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """See ``Classifier``; a normalisation of the class layer starts anew with it."""
        super().reset_classifier(num_classes, global_pool)
        layer, kind = self.get_classifier(), self.kind
        normed = self.last_norm_on and isinstance(layer, nn.Linear) and kind.norm != "none"
        self.last_norm = kind.normalisation(layer) if normed else nn.Identity()
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
        """Return linear map, normalisation, activation and pooling of each layer, by path and in order."""
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


ENTRIES = (fully_connected,)
