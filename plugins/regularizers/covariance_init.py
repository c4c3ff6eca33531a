"""Covariance initialization: filters are drawn from a normal distribution with a given covariance.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.4, Fig. 5:
    filters drawn with the covariance of those that were trained on random labels help as much as the trained ones.
Equation: w ~ N(0, Sigma_w), biases 0; the layer is then scaled to the norm that it was initialized with.
Cost: one eigendecomposition of d x d numbers for each layer, before the first step.
Limits: convolutions without groups and linear layers. One layer alone gained no more than chance here, so the paper's
    Fig. 5 was not reproduced.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import Pretraining, SetUp, hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

from ..patch_covariance import principal_directions, unsuitable
from ._called_layers import chosen_layers

compatkit_api = 1
NAME = "covariance_init"
ROUNDING = 1e-6
"""Share of the largest entry by which a covariance may differ from its transpose, or an eigenvalue be below 0."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``covariance_init``."""
    register(NAME, CovarianceInit)


@attrs.define(eq=False)
class CovarianceInit:
    """Draws the filters of some layers before the first step; other layers stay as they were drawn.

    It has no loss: its weight says nothing, but that 0 leaves it out. If another plugin draws weights before the first
    step too, say which comes first: ``use("covariance_init", after="scaled_init", ...)``.

    Attributes:
        covariances: Covariance of the filters, ``(d, d)``, by path of the layer; nested lists, arrays or tensors. d is
            channels x height x width of a filter. Of trained filters: ``numpy.cov(weight.reshape(out, -1).T)``.
        match_norm: Whether the layer gets the norm that its weight had before; else filters are as drawn.
    """

    covariances: Mapping[str, Any]
    match_norm: bool = True
    _known: dict[str, Tensor] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the covariances.

        Raises:
            UsageError: One is not symmetric and positive semidefinite, or there is none.
        """
        if not isinstance(self.covariances, Mapping) or not self.covariances:
            raise UsageError(
                f"covariance_init: covariances map paths of layers to matrices; got {self.covariances!r:.100}."
            )
        self._known = {name: _checked(name, matrix) for name, matrix in self.covariances.items()}

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the layers of every task's network, and report digests of the covariances.

        Raises:
            UnknownName: The network has no such layer.
            UsageError: Its filters have another size, or are not those of a plain layer.
        """
        for state in setup.tasks.values():
            for name, layer in self._layers(setup, state).items():
                reason = unsuitable(layer)
                weight: Any = layer.weight
                if not reason and weight[0].numel() != len(self._known[name]):
                    reason = (
                        f"its filters have {weight[0].numel()} values, the covariance is of "
                        f"{len(self._known[name])}"
                    )
                if reason:
                    raise UsageError(
                        f"covariance_init cannot draw the layer {name!r} of task {state.name!r}: {reason}. Leave it "
                        "out, or give the covariance of such filters.",
                        subject=name,
                    )
        setup.tell({"covariances": {name: _digest(matrix) for name, matrix in self._known.items()}})

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Draw the filters of all tasks; return the norm of each layer by task."""
        record: dict[str, dict[str, float]] = {}
        for state in setup.tasks.values():
            record[state.name] = {}
            for name, layer in self._layers(setup, state).items():
                draw = setup.rng(NAME, state.name, name)
                record[state.name][name] = self._draw(layer, self._known[name], draw)
        return record

    def _layers(self, setup: SetUp, state: Any) -> dict[str, nn.Module]:
        return chosen_layers(NAME, state, list(self._known), setup.precision.device)

    def _draw(self, layer: nn.Module, covariance: Tensor, draw: torch.Generator) -> float:
        weight: Any = layer.weight
        values, vectors = principal_directions(covariance)
        drawn = torch.randn(len(weight), len(values), generator=draw, dtype=torch.float64)
        filters = (drawn * values.sqrt()) @ vectors
        if self.match_norm:
            filters = filters * (float(weight.detach().norm()) / float(filters.norm()))
        with torch.no_grad():
            weight.copy_(filters.reshape(weight.shape))
            if isinstance(layer.bias, Tensor):
                layer.bias.zero_()
        return float(weight.detach().norm())


def _checked(name: str, covariance: Any) -> Tensor:
    """Return a covariance as a symmetric float64 matrix."""
    try:
        matrix = torch.as_tensor(covariance, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"covariance_init: expected a matrix of numbers for {name!r}; got {covariance!r:.80}.",
            subject=name,
        ) from error
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.numel() > 0
    reason = "" if square else f"its shape is {tuple(matrix.shape)}"
    if square:
        largest = float(matrix.abs().max())
        lowest = float(torch.linalg.eigvalsh(matrix)[0]) if math.isfinite(largest) else 0.0
        if not math.isfinite(largest) or largest == 0:
            reason = "it holds zeros alone" if largest == 0 else "it holds numbers that are not finite"
        elif float((matrix - matrix.T).abs().max()) > ROUNDING * largest:
            reason = "it is not symmetric"
        elif lowest < -ROUNDING * largest * len(matrix):
            reason = f"it has the negative eigenvalue {lowest:.3g}"
    if reason:
        raise UsageError(
            f"covariance_init: expected a symmetric, positive semidefinite matrix (d, d) for {name!r}; {reason}.",
            subject=name,
        )
    return (matrix + matrix.T) / 2


def _digest(matrix: Tensor) -> str:
    return f"sha256:{hashlib.sha256(matrix.numpy().tobytes()).hexdigest()}"
