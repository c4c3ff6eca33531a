"""Scaled initial weights: He, Glorot or orthogonal, times a scale for the network or for single layers.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", App. A and B: He or
    orthogonal weights times ``init_scale``, zero biases. That the scale multiplies the standard deviation, and that the
    class layer is drawn as the others are, is our reading.
Cost: none in a step.
Limits: convolutions and linear layers only. That the scale multiplies the deviation is our reading of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from compatkit import SetUp, hookimpl
from compatkit.hooks import Register

from ._called_layers import check_globs
from ._initial_weights import STREAM, check_scheme, draw, layers_of, norm_of

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``scaled_init``."""
    register("scaled_init", ScaledInit)


@attrs.define(eq=False)
class ScaledInit:
    """Draws all convolutions and linear layers anew before the first step; biases are zero.

    The report, ``fit.run["pretraining"]["plugins"]["scaled_init"]``, has the norm of each layer's weight by task and
    layer, for ``transfer``.

    Attributes:
        scheme: ``"he"``, ``"glorot"`` or ``"orthogonal"``.
        scale: Factor of all weights (of their standard deviation).
        layers: Further factors by path or glob in the whole network: ``{"blocks.0.conv": 0.1}``.
    """

    scheme: str = "he"
    scale: float = 1.0
    layers: Mapping[str, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Check scheme and scales."""
        check_scheme("scaled_init", self.scheme, self.scale, self.layers)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Check that every task has the layers that are named.

        Raises:
            UnknownName: A glob names no layer.
            UsageError: A task trains only a part of its network.
        """
        for state in setup.tasks.values():
            check_globs("scaled_init", state, self.layers, layers_of(state, setup))

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp) -> Mapping[str, Any]:
        """Draw the weights; return the norm of each layer's weight, by task and layer."""
        record: dict[str, Any] = {}
        for state in setup.tasks.values():
            layers = layers_of(state, setup)
            for called in layers:
                rng = setup.rng(STREAM, state.name, called.path)
                draw(called, self.scheme, self.scale, self.layers, rng)
            record[state.name] = {called.path: norm_of(called) for called in layers}
        return record
