"""Data-dependent initialization: every channel of every layer starts with one mean and variance 1 on the data.

Paper: Kraehenbuehl, Doersch, Donahue, Darrell (2016), "Data-dependent Initializations of Convolutional Neural
    Networks": normalization within a layer, and initialization by principal components.
Equation: for each layer, in the order of the calls, with mean m_k and deviation s_k of channel k of its output over
    images and positions: w_k <- w_k / s_k, b_k <- mean - (m_k - b_k) / s_k. With ``directions="pca"`` the filters are
    first the principal directions of the layer's input, each divided by the deviation along it.
Left out: the normalization of learning rates between layers, and k-means filters.
Difference: random-label pretraining and ``eigenvector_init`` keep strong directions strong; this whitens.
Cost: ``images`` passes through the layers below each layer (two with ``"pca"``), before the first step.
Limits: biases move only where a layer has them; batch normalization behind a layer undoes it. Learning rates are not
    balanced between layers, as the paper does next. Its gain was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit import Pretraining, SetUp, TaskState, hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from ..patch_covariance import PatchMoments, patches_of, principal_directions, unsuitable
from ._called_layers import batching, called_layers, chosen_layers, layer_input, layer_output

compatkit_api = 1
NAME = "data_dependent_init"
DIRECTIONS = ("drawn", "pca")


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``data_dependent_init``."""
    register(NAME, DataDependentInit)


@attrs.define(eq=False)
class DataDependentInit:
    """Normalizes the outputs of layers before the first step by their weights and biases.

    It has no loss: its weight says nothing, but that 0 leaves it out. If another plugin draws weights before the first
    step too, say which comes first: ``use("data_dependent_init", after="scaled_init")``. Batch normalization uses the
    statistics of each batch; it undoes what is done to a layer right before it.

    Attributes:
        layers: Names or globs; None for all convolutions and linear layers but the class layer.
        mean: Mean of every channel, where the layer has biases; the paper's is not stated for every layer, ours is 0.
        directions: ``"drawn"``: the filters as they were drawn; ``"pca"``: principal directions, whitened. Layers with
            groups, or with more filters than directions, keep their own, and the report says so.
        images: Training images looked at for each layer, at most all, in whole batches.
        patches: Positions sampled of each image for the principal directions; None takes all.
        batch_size: Images of a batch.
    """

    layers: Sequence[str] | None = None
    mean: float = attrs.field(default=0.0, validator=Number())
    directions: Literal["drawn", "pca"] = attrs.field(default="drawn", validator=OneOf(DIRECTIONS))
    images: int = attrs.field(default=2000, validator=Number(least=2, whole=True))
    patches: int | None = attrs.field(default=64, validator=Number(least=1, whole=True, optional=True))
    batch_size: int = attrs.field(default=250, validator=Number(least=2, whole=True))

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the layers of every task's network.

        Raises:
            UnknownName: The network has no such layer.
            UsageError: A layer is frozen, or there is none.
        """
        for state in setup.tasks.values():
            if not self._layers(setup, state):
                raise UsageError(
                    f"{NAME}: the network of task {state.name!r} has no layer before its class layer. Leave the plugin "
                    "out, or name layers.",
                    subject=state.name,
                )

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Normalize all tasks; return what was done to each layer, by task."""
        return {
            state.name: {
                name: self._normalize(pretraining, state, name, layer)
                for name, layer in self._layers(setup, state).items()
            }
            for state in setup.tasks.values()
        }

    def _layers(self, setup: SetUp, state: TaskState) -> dict[str, nn.Module]:
        device, globs = setup.precision.device, self.layers
        if globs is None:
            globs = [
                called.path
                for called in called_layers(state, device)
                if not f"{called.path}.".startswith(tuple(state.class_layer))
            ]
        return chosen_layers(NAME, state, globs, device) if globs else {}

    def _normalize(
        self, pretraining: Pretraining, state: TaskState, name: str, layer: nn.Module
    ) -> dict[str, Any]:
        """Set the weight and bias of a layer; return facts about it."""

        def batches() -> Any:
            sizes = batching(state, self.images, self.batch_size)
            return pretraining.batches(state, NAME, state.name, name, **sizes)

        reason = self._keeps(layer)
        if self.directions == "pca" and not reason:
            self._whiten(state, name, layer, batches())
        mean, deviation = _moments(state, layer, batches())
        # A channel that does not vary cannot be scaled to variance 1.
        silent = deviation <= 1e-7 * mean.abs().clamp(min=1e-7)
        scale = torch.where(silent, 1.0, 1 / deviation.clamp(min=1e-30))
        weight: Any = layer.weight
        bias: Any = layer.bias
        with torch.no_grad():
            weight.mul_(scale.to(weight).reshape(-1, *[1] * (weight.ndim - 1)))
            if bias is not None:
                bias.copy_(self.mean - (mean.to(bias) - bias) * scale.to(bias))
        record: dict[str, Any] = {"silent": int(silent.sum()), "bias": bias is not None}
        return record | ({"kept": reason} if self.directions == "pca" and reason else {})

    def _keeps(self, layer: nn.Module) -> str:
        """Return why the filters of a layer are not replaced by principal directions; empty if they can be."""
        weight: Any = layer.weight
        if reason := unsuitable(layer):
            return reason
        width = weight[0].numel()
        return f"it has {len(weight)} filters, and {width} directions" if len(weight) > width else ""

    def _whiten(self, state: TaskState, name: str, layer: nn.Module, batches: Any) -> None:
        """Replace the filters by principal directions of the input, each divided by the deviation along it."""
        moments = PatchMoments.over(
            PatchMoments.of(
                patches_of(layer, layer_input(state, layer, batch.images), batch.index, self.patches or 0)
            )
            for batch in batches
        )
        weight: Any = layer.weight
        if moments.lacking:
            raise DataError(
                f"{NAME}: the layer {name!r}: {moments.lacking}. Raise images or patches, or name other layers.",
                subject=name,
            )
        values, vectors = principal_directions(moments.covariance)
        count = len(weight)
        deviations = values[:count].clamp(min=float(values[0]) * 1e-10).sqrt()
        largest = vectors[:count].gather(1, vectors[:count].abs().argmax(1, keepdim=True))
        filters = vectors[:count] * torch.where(largest < 0, -1.0, 1.0) / deviations[:, None]
        with torch.no_grad():
            weight.copy_(filters.reshape(weight.shape))


def _moments(state: TaskState, layer: nn.Module, batches: Any) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of a layer's output, float64 ``(channels,)``."""
    total = torch.zeros((), dtype=torch.float64)
    sums: list[Tensor] = []
    for batch in batches:
        outputs = layer_output(state, layer, batch.images).double()
        flat = (
            outputs.flatten(0, -2) if isinstance(layer, nn.Linear) else outputs.movedim(1, -1).flatten(0, -2)
        )
        new = [flat.sum(0), flat.square().sum(0)]
        sums = [total + more for total, more in zip(sums, new, strict=True)] if sums else new
        total += len(flat)
    mean = sums[0] / float(total)
    return mean, (sums[1] / float(total) - mean.square()).clamp(min=0).sqrt()
