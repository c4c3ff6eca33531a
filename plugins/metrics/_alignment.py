"""Common parts of the alignment metrics: patches of layers in one pass, and the filters of one or several networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.limits import Number

from ..patch_covariance import PatchMoments, patches_of, unsuitable

PAPER = "Maennel et al. (2020), What Do Neural Networks Learn When Trained With Random Labels?"


@attrs.frozen(eq=False)
class SeenPatches:
    """Moments of what each layer saw, by layer.

    Attributes:
        examples: Number of images.
        layers: Layers by name; a layer that is called several times has one entry a call.
        sampled: Names of the layers of which not every position was taken.
    """

    examples: int = 0
    layers: Mapping[str, PatchMoments] = attrs.field(factory=dict)
    sampled: frozenset[str] = frozenset()


@attrs.define(eq=False)
class PatchMetric:
    """The pass of a metric that compares filters with patches.

    Attributes:
        patches: Positions sampled of each image, always the same ones; None takes all.
        further: State dicts of further networks, such as other seeds, whose filters are pooled with this network's.
    """

    patches: int | None = attrs.field(default=None, validator=Number(least=1, whole=True, optional=True))
    further: Sequence[Mapping[str, Tensor]] = ()

    def init(self) -> SeenPatches:
        """Return the empty state."""
        return SeenPatches()

    def update(
        self,
        state: SeenPatches,
        positions: Tensor,
        inputs: Mapping[str, Tensor],
        layers: Mapping[str, nn.Module],
    ) -> SeenPatches:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices in the data set, ``(batch,)``.
            inputs: Input of each layer, ``(batch, ...)``.
            layers: The layers by name.

        Raises:
            UsageError: A layer has no filters that could be compared.
        """
        patches_by_layer, sampled = dict(state.layers), set(state.sampled)
        for name, values in inputs.items():
            layer = layers[name.split("#")[0]]
            if reason := unsuitable(layer):
                raise UsageError(
                    f"The layer {name!r} has no filters to compare with its input: {reason}. Name other layers.",
                    subject=name,
                )
            rows = patches_of(layer, values, positions, self.patches or 0)
            if self.patches is not None and len(rows) == len(values) * self.patches:
                sampled.add(name)
            new = PatchMoments.of(rows)
            patches_by_layer[name] = patches_by_layer[name].merged(new) if name in patches_by_layer else new
        return SeenPatches(state.examples + len(positions), patches_by_layer, frozenset(sampled))

    def merge(self, left: SeenPatches, right: SeenPatches) -> SeenPatches:
        """Return the moments of both parts."""
        if not left.examples or not right.examples:
            return left if left.examples else right
        layers = {name: patches.merged(right.layers[name]) for name, patches in left.layers.items()}
        return SeenPatches(left.examples + right.examples, layers, left.sampled | right.sampled)

    def filters(self, name: str, layer: nn.Module) -> Tensor:
        """Return the filters of a layer and of the same layer of ``further``, float64 ``(networks * out, d)``.

        Raises:
            UsageError: A further network lacks the layer, or has it in another shape.
        """
        key = f"{name.split('#')[0]}.weight"
        own: Any = layer.weight
        filters = [own.detach().flatten(1).double()]
        for number, weights in enumerate(self.further, 1):
            other = weights.get(key)
            if other is None or other.shape[1:] != own.shape[1:]:
                problem = "lacks it" if other is None else f"has it in the shape {tuple(other.shape)}"
                raise UsageError(
                    f"Filters of {key} {tuple(own.shape)} cannot be pooled: further network {number} {problem}. Give "
                    "networks of one architecture, as Fit.weights gives them.",
                    subject=key,
                )
            filters.append(other.detach().flatten(1).double().to(own.device))
        return torch.cat(filters)
