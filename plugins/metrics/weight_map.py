"""Weight map: which networks have close weights, as distances and as points in a plane.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3, Fig. 4, App. A: t-SNE of the
    distances between the weights of fine-tuned networks; those of one pretraining lie together, whatever their target.
Equations: distance: |W_a - W_b|_F over all weights in one vector; ``mds``: classical scaling (Torgerson 1952), the
    leading eigenvectors of the doubly centered squared distances times the roots of their eigenvalues; ``tsne``:
    van der Maaten and Hinton (2008) on the distances, as in the paper.
Reading: of some 6 to 30 points t-SNE shows neighbors, not distances; the matrix has the figures, and
    ``weight_map/kept`` the share of the squared distances that two axes of ``mds`` keep.
Cost: none beside the weights, compared in float64, pair by pair.
Limits: networks of one architecture only; two axes keep a part of the distances, and t-SNE keeps neighbors alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import SEED
from compatkit.hooks import Register

from ._loss import PAPER, weighted

compatkit_api = 1
METHODS = ("mds", "tsne")
FEWEST = 4
"""Networks below which t-SNE has no perplexity to choose."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``weight_map``."""
    register("weight_map", WeightMap)


@attrs.define(eq=False, kw_only=True)
class WeightMap:
    """Tables ``weight_map/distance`` (network x network), ``weight_map`` (two coordinates), ``weight_map/kept``.

    The network that is measured is ``this``; name its layers, by which the weights of further ones are found.

    Attributes:
        networks: State dicts of further networks by name, such as ``fit.weights("digits")``.
        perplexity: Perplexity of t-SNE, below the number of networks; None for a third of it, at most 30.
        seed: Seed of t-SNE.
    """

    networks: Mapping[str, Mapping[str, Tensor]]
    perplexity: float | None = None
    seed: int = attrs.field(default=0, validator=SEED)

    def __attrs_post_init__(self) -> None:
        networks = self.networks.values() if isinstance(self.networks, Mapping) else ()
        if (
            not networks
            or "this" in self.networks
            or not all(isinstance(network, Mapping) for network in networks)
        ):
            raise UsageError(
                "weight_map: networks are state dicts of further networks by name, at least one; `this` is the one "
                f"that is measured. Got {', '.join(map(str, self.networks)) or 'none'}."
            )
        count = len(self.networks) + 1
        if self.perplexity is not None and not 0 < self.perplexity < count:
            raise UsageError(
                f"weight_map: perplexity lies between 0 and the number of networks, {count}; got "
                f"{self.perplexity!r:.60}.",
                subject="perplexity",
            )

    def init(self) -> None:
        """Return the empty state."""

    def update(self, state: None) -> None:
        """Not called: weights are looked at once."""

    def merge(self, left: None, right: None) -> None:
        """Return the empty state."""

    def finalize(self, state: None, network: nn.Module, layers: Mapping[str, nn.Module]) -> tuple[Table, ...]:
        """Return the tables.

        Raises:
            UsageError: A further network lacks a weight, or has it in another shape.
        """
        names = ("this", *self.networks)
        squares = np.zeros((len(names), len(names)))
        known = weighted(layers or {"": network})
        for layer, module in known.items():
            weights = [
                module.weight.detach(),
                *(self._weight(other, layer, module) for other in self.networks),
            ]
            rows = [weight.double().cpu().flatten() for weight in weights]
            for a, row in enumerate(rows):
                for b in range(a):
                    squares[a, b] = squares[b, a] = squares[a, b] + float((row - rows[b]).square().sum())
        if not np.isfinite(squares).all():
            raise DataError(
                "weight_map: weights of some networks are not finite, so that they have no distances."
            )
        distances = np.sqrt(squares)
        scaled, share = classical_scaling(distances)
        cells = [TableCell(float(value)) for value in scaled.flatten()] + self._tsne(distances)
        fields: dict[str, Any] = {"direction": "none", "count": len(names), "paper": PAPER}
        return (
            Table(
                name="weight_map",
                axes={"method": METHODS, "network": names, "axis": ("1", "2")},
                cells=tuple(cells),
                unit="1",
                estimator=f"classical scaling; t-SNE with seed {self.seed}",
                equation="Sec. 3, Fig. 4",
                **fields,
            ),
            Table(
                name="weight_map/distance",
                axes={"network": names, "from": names},
                cells=tuple(TableCell(float(value)) for value in distances.flatten()),
                unit="1",
                estimator=f"Frobenius, {len(known)} weights without biases and normalization",
                equation="App. A",
                **fields,
            ),
            Table(
                name="weight_map/kept",
                axes={"method": METHODS[:1]},
                cells=(
                    TableCell(share)
                    if distances.any()
                    else TableCell(None, "undefined", "all weights are equal"),
                ),
                unit="1",
                estimator="two largest eigenvalues over the sum of absolute ones",
                equation="Torgerson (1952)",
                **fields,
            ),
        )

    def _weight(self, name: str, layer: str, module: nn.Module) -> Tensor:
        key, own = f"{layer}.weight", module.weight
        weight = self.networks[name].get(key)
        if weight is None or weight.shape != own.shape:  # type: ignore[union-attr]
            problem = "lacks it" if weight is None else f"has it in the shape {tuple(weight.shape)}"
            raise UsageError(
                f"weight_map compares {key} {tuple(own.shape)}; the network {name!r} {problem}. Name the layers that "  # type: ignore[arg-type]
                "all networks share, by the paths of their state dicts.",
                subject=key,
            )
        return weight.detach()

    def _tsne(self, distances: NDArray[np.float64]) -> list[TableCell]:
        from sklearn.manifold import TSNE

        count = len(distances)
        if count < FEWEST:
            return [TableCell(None, "undefined", f"t-SNE needs {FEWEST} networks, got {count}")] * (2 * count)
        points = TSNE(
            metric="precomputed",
            init="random",
            perplexity=self.perplexity or min(30.0, count / 3),
            random_state=self.seed,
        ).fit_transform(distances)
        return [TableCell(float(value)) for value in points.flatten()]


def classical_scaling(distances: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return coordinates ``(n, 2)`` and the share of the squared distances that they keep.

    Args:
        distances: Symmetric, ``(n, n)``.
    """
    squares = distances**2
    centered = squares - squares.mean(0) - squares.mean(1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centered / 2)
    order = np.argsort(values)[::-1][:2]
    top = np.maximum(values[order], 0)
    vectors = vectors[:, order] * np.where(vectors[np.abs(vectors[:, order]).argmax(0), order] < 0, -1, 1)
    total = np.abs(values).sum()
    return vectors * np.sqrt(top), float(top.sum() / total) if total else 0.0
