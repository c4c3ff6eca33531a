"""Misalignment: how far the covariance of a layer's filters is from having the eigenvectors of its data.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Definition 2.
Equation: with the eigenspaces V_1, ..., V_r of the data's covariance A, the covariance B of the filters, and S aligned
    with A, M(A, B) = inf_S tr(S^-1 B + B^-1 S) / 2 - d = sum_i sqrt(tr(B|V_i) tr(B^-1|V_i)) - d. M >= 0, and 0 where B
    is aligned with A; it does not depend on the scale of B or on a common rotation.
Reading: an isotropic B is aligned with every basis, and n filters estimate B with noise that adds about d^2 / (2 n) for
    n far above d, in any basis. So the figure means something only beside that of random bases, and beside that of the
    network at its initialization (``other``). M is not continuous in A: which eigenvalues count as equal is
    ``tolerance``, and the table ``misalignment/counts`` says how many eigenspaces are left.
Cost: one pass for the patches' covariance; an eigendecomposition and a Cholesky factor of d x d numbers for each layer.
Limits: it needs more filters than a filter has values, or shrinkage, or several networks. From He's own start next to
    nothing shows; the paper's figures need starts of a tenth of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, SEED, Number
from compatkit.hooks import Register

from ..patch_covariance import ONE_DIRECTION, TOLERANCE, Eigenspaces, PatchMoments, filter_covariance
from ._alignment import PAPER, PatchMetric, SeenPatches

compatkit_api = 1
CONDITION = 1e10
"""Largest ratio of eigenvalues of a covariance that is inverted."""
BASES = ("data", "random", "random-least")
COUNTS = ("filters", "dimensions", "eigenspaces", "patches")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``misalignment``."""
    register("misalignment", Misalignment)


def misalignment(spaces: Eigenspaces, covariance: Tensor) -> float:
    """Return M(A, B), at least 0.

    Args:
        spaces: Eigenspaces of A.
        covariance: B, positive definite, float64 ``(d, d)``.

    Raises:
        DataError: B is not positive definite, or nearly not.
    """
    values = torch.linalg.eigvalsh(covariance)
    if not values[0] * CONDITION > values[-1]:
        raise DataError(
            f"Misalignment inverts the covariance of the filters, whose eigenvalues reach from {float(values[0]):.3g} "
            f"to {float(values[-1]):.3g}. Pool the filters of further networks, or give a shrinkage."
        )
    factor = torch.linalg.cholesky(covariance)
    # v'Bv = |L'v|^2 and v'B^-1v = |L^-1 v|^2 for each basis vector; traces are sums over those of an eigenspace.
    direct = (spaces.vectors @ factor).square().sum(1)
    inverse = torch.linalg.solve_triangular(factor, spaces.vectors.T, upper=False).square().sum(0)
    traces = torch.zeros(2, spaces.count, dtype=torch.float64, device=covariance.device)
    traces.index_add_(1, spaces.spaces, torch.stack([direct, inverse]))
    return max(0.0, float(traces.prod(0).sqrt().sum()) - len(covariance))


def random_basis(spaces: Eigenspaces, draw: torch.Generator) -> Eigenspaces:
    """Return eigenspaces of the same dimensions in a random position (Haar measure)."""
    drawn = torch.randn(spaces.vectors.shape, generator=draw, dtype=torch.float64)
    basis, right = torch.linalg.qr(drawn)
    signs = torch.where(right.diagonal() < 0, -1.0, 1.0)
    return attrs.evolve(spaces, vectors=(basis * signs).T.to(spaces.vectors))


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Return ``(1 - share) B + share tr(B) / d I``."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - share) * covariance + share * covariance.trace() / len(covariance) * identity


@attrs.define(eq=False)
class Misalignment(PatchMetric):
    """Tables by layer: ``misalignment`` in the data's basis and in random ones, ``misalignment/counts``.

    With another network, such as this one at its initialization, its filters are compared with the same patches.

    Attributes:
        draws: Random bases; ``random`` is their mean, ``random-least`` the least of them.
        seed: Seed of the random bases.
        tolerance: Eigenvalues of the data closer than this share of the largest count as equal.
        shrinkage: Share of a multiple of the identity that is mixed into the covariance of the filters, between 0 and
            1; None refuses layers with too few filters.
    """

    draws: int = attrs.field(default=10, validator=COUNT)
    seed: int = attrs.field(default=0, validator=SEED)
    tolerance: float = attrs.field(default=TOLERANCE, validator=Number(least=0, below=1))
    shrinkage: float | None = attrs.field(default=None, validator=Number(above=0, most=1, optional=True))

    def finalize(
        self,
        state: SeenPatches,
        layers: Mapping[str, nn.Module],
        other_layers: Mapping[str, nn.Module],
    ) -> tuple[Table, Table]:
        """Return the tables."""
        names = tuple(state.layers) or tuple(layers)
        networks = ("this", "other") if other_layers else ("this",)
        common: dict[str, Any] = {"direction": "lower", "count": state.examples, "paper": PAPER}
        shrinking = "" if self.shrinkage is None else f", shrinkage {self.shrinkage:g}"
        positions = "all positions" if self.patches is None else f"{self.patches} positions an image"
        estimator = (
            f"closed form, {self.draws} random bases, equal within {self.tolerance:g} of the largest eigenvalue, "
            f"{positions}{shrinking}"
        )
        table = Table(
            name="misalignment",
            axes={"layer": names, "network": networks, "basis": BASES},
            cells=tuple(
                cell
                for name in names
                for pair in zip(networks, (layers, other_layers), strict=False)
                for cell in self._cells(state, name, pair[1], pooled=pair[0] == "this")
            ),
            unit="1",
            estimator=estimator,
            equation="Definition 2, Sec. 2.2",
            **common,
        )
        counts = Table(
            name="misalignment/counts",
            axes={"layer": names, "what": COUNTS},
            cells=tuple(cell for name in names for cell in self._counts(state, name, layers)),
            unit="count",
            estimator=estimator,
            equation="Appendix A.6",
            **{**common, "direction": "none"},
        )
        return table, counts

    def _cells(
        self, state: SeenPatches, name: str, layers: Mapping[str, nn.Module], *, pooled: bool
    ) -> Iterator[TableCell]:
        """Yield the figures of one network in each basis."""
        layer, seen = layers.get(name.split("#")[0]), state.layers.get(name)
        reason = "no examples" if seen is None else "the other network has no such layer"
        if layer is not None and seen is not None:
            weight: Any = layer.weight
            filters = self.filters(name, layer) if pooled else weight.detach().flatten(1)
            reason = self._refused(len(filters), filters.shape[1], seen)
            if not reason:
                yield from self._figures(seen.covariance, filters, name in state.sampled)
                return
        yield from [TableCell(None, "undefined", reason)] * len(BASES)

    def _refused(self, filters: int, values: int, seen: PatchMoments) -> str:
        width = len(seen.mean)
        if seen.lacking:
            return seen.lacking
        if width == 1:
            return ONE_DIRECTION
        if values != width:
            return f"the other network's filters have {values} values, the patches {width}"
        if filters - 1 < width and self.shrinkage is None:
            return (
                f"{filters} filters, centered, cannot span {width} dimensions; pool more than {width} filters of "
                "several networks (further), or give a shrinkage"
            )
        return ""

    def _figures(self, data: Tensor, filters: Tensor, sampled: bool) -> Iterator[TableCell]:
        spaces = Eigenspaces.of(data, self.tolerance)
        weights = filter_covariance(filters).to(data.device)
        if self.shrinkage is not None:
            weights = shrunk(weights, self.shrinkage)
        draw = torch.Generator().manual_seed(self.seed)
        try:
            own = misalignment(spaces, weights)
            drawn = [misalignment(random_basis(spaces, draw), weights) for _ in range(self.draws)]
        except DataError as error:
            yield from [TableCell(None, "undefined", str(error))] * len(BASES)
            return
        for value in (own, sum(drawn) / len(drawn), min(drawn)):
            yield (
                TableCell(value, "approximate", "a sample of the positions") if sampled else TableCell(value)
            )

    def _counts(self, state: SeenPatches, name: str, layers: Mapping[str, nn.Module]) -> Iterator[TableCell]:
        seen = state.layers.get(name)
        if seen is None:
            yield from [TableCell(None, "undefined", "no examples")] * len(COUNTS)
            return
        filters = self.filters(name, layers[name.split("#")[0]])
        yield TableCell(float(len(filters)))
        yield TableCell(float(filters.shape[1]))
        yield TableCell(float(Eigenspaces.of(seen.covariance, self.tolerance).count))
        yield TableCell(float(seen.count))
