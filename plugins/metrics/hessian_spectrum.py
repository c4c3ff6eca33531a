"""Hessian spectrum: the ends of the spectrum of the loss's Hessian, with residuals, and its density.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3, Fig. 3(a), App. A: the 20
    largest eigenvalues at the minimum; pretrained networks have smaller ones.
Equations: H = d^2 L / d theta^2 of the mean cross-entropy over fixed examples. Products H V by differentiating the
    gradient twice (Pearlmutter 1994). The paper uses power iteration with deflation; here block Lanczos, which needs
    fewer products and finds negative eigenvalues in their place. Density by stochastic Lanczos quadrature
    (Ghorbani et al. 2019, Sec. 2), smoothed by a Gaussian.
Certificate: every value comes with |H x - theta x|, from a product of its own; an eigenvalue lies within that distance
    (Parlett 1998, Theorem 4.5.1). It does not prove that no other eigenvalue lies further out.
Batch normalization uses its stored statistics; regularizers and label smoothing are no part of the loss.
Cost: products of basis vectors, at most ``most``, each about twice a training step; ``most`` vectors of the size of
    the parameters in memory.
Limits: of fixed examples, 256 unless set, and in evaluation mode. A small residual does not prove that no larger
    eigenvalue is missing. The order of pretrained and random starts depends on how they were trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, WHOLE, Number
from compatkit.hooks import Register

from ._lanczos import Ritz, block_lanczos, quadrature, residuals
from ._loss import CASES, PAPER, LossMetric, LossSurface, SampledExamples

compatkit_api = 1
ENDS = ("largest", "smallest", "magnitude")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``hessian_spectrum``."""
    register("hessian_spectrum", HessianSpectrum)


@attrs.define(eq=False, kw_only=True)
class HessianSpectrum(LossMetric):
    """Tables ``hessian_spectrum``, ``hessian_spectrum/residual`` and, with probes, ``hessian_spectrum/density``.

    Layers that are named restrict the Hessian to the block of their parameters.

    Attributes:
        count: Eigenvalues of each end.
        ends: Among ``largest``, ``smallest`` (the most negative first) and ``magnitude``, with their signs.
        block: Vectors of a product.
        most: Largest basis.
        tolerance: Tolerance of a residual, relative to the largest absolute eigenvalue.
        probes: Random vectors of the density; 0 leaves it out.
        steps: Steps of Lanczos for each of them.
        points: At which the density is given.
        width: Deviation of the Gaussian that smooths it, as a share of the range of eigenvalues.
    """

    count: int = attrs.field(default=20, validator=COUNT)
    ends: Sequence[str] = ENDS
    block: int = attrs.field(default=4, validator=COUNT)
    most: int = attrs.field(default=200, validator=Number(least=2, whole=True))
    tolerance: float = attrs.field(default=1e-3, validator=Number(above=0, below=1))
    probes: int = attrs.field(default=0, validator=WHOLE)
    steps: int = attrs.field(default=60, validator=Number(least=2, whole=True))
    points: int = attrs.field(default=200, validator=Number(least=2, whole=True))
    width: float = attrs.field(default=0.01, validator=Number(above=0, below=1))

    def __attrs_post_init__(self) -> None:
        unknown = [end for end in self.ends if end not in ENDS]
        if isinstance(self.ends, str) or unknown or not self.ends:
            raise UsageError(
                f"hessian_spectrum: ends is a list of {', '.join(ENDS)}; got {self.ends!r:.60}.",
                subject="ends",
            )

    def finalize(
        self, state: SampledExamples | None, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> tuple[Table, ...]:
        """Return the tables."""
        cases = CASES if self.controls else CASES[:1]
        fields: dict[str, Any] = {
            "direction": "none",
            "count": 0 if state is None else len(state.labels),
            "paper": PAPER,
        }
        values, residual_cells, density = list[TableCell](), list[TableCell](), list[TableCell]()
        if state is None:
            none = TableCell(None, "undefined", "no examples")
            values = residual_cells = [none] * (len(cases) * len(self.ends) * self.count)
            density = [none] * (len(cases) * self.points * 2)
        else:
            for surface in self.surfaces(state, network, layers).values():
                eigenvalues, certified, ritz = self._eigenvalues(surface)
                values, residual_cells = values + eigenvalues, residual_cells + certified
                density += self._density(surface, ritz) if self.probes else []
        axes = {
            "case": cases,
            "end": tuple(self.ends),
            "place": tuple(str(rank) for rank in range(1, self.count + 1)),
        }
        estimator = f"block Lanczos, full basis, blocks of {self.block}, {self.precision}, tolerance {self.tolerance:g}"
        tables = [
            Table(
                name=name,
                axes=axes,
                cells=tuple(cells),
                unit="loss",
                estimator=estimator,
                equation="Sec. 3, Fig. 3(a)",
                **fields,
            )
            for name, cells in (("hessian_spectrum", values), ("hessian_spectrum/residual", residual_cells))
        ]
        if self.probes:
            tables.append(
                Table(
                    name="hessian_spectrum/density",
                    axes={
                        "case": cases,
                        "point": tuple(str(rank) for rank in range(1, self.points + 1)),
                        "quantity": ("eigenvalue", "density"),
                    },
                    cells=tuple(density),
                    unit="loss",
                    estimator=f"stochastic Lanczos quadrature, {self.probes} probes, {self.steps} steps, Gaussian of "
                    f"{self.width:g} of the range",
                    equation="not in the paper; Ghorbani et al. (2019), Sec. 2",
                    **fields,
                )
            )
        return tuple(tables)

    def indices_by_end(self, values: Tensor) -> dict[str, Tensor]:
        """Return the indices of the requested eigenvalues among ascending values, by end."""
        count = min(self.count, len(values))
        ascending = torch.arange(len(values), device=values.device)
        ends = {
            "largest": ascending.flip(0)[:count],
            "smallest": ascending[:count],
            "magnitude": values.abs().argsort(descending=True, stable=True)[:count],
        }
        return {end: ends[end] for end in self.ends}

    def _eigenvalues(self, surface: LossSurface) -> tuple[list[TableCell], list[TableCell], Ritz]:
        like = next(iter(surface.parameters.values()))
        ritz = block_lanczos(
            surface.products,
            surface.size,
            lambda values: torch.cat(list(self.indices_by_end(values).values())),
            block=min(self.block, surface.size),
            min_size=max(self.count, 2 * self.block),
            max_size=max(self.most, self.count),
            tolerance=self.tolerance,
            draw=torch.Generator().manual_seed(self.seed),
            like=like,
        )
        chosen = self.indices_by_end(ritz.values)
        unique = torch.cat(list(chosen.values())).unique()
        certified = dict(
            zip(
                unique.tolist(),
                residuals(surface.products, ritz, unique, self.block).tolist(),
                strict=True,
            )
        )
        limit = self.tolerance * float(ritz.values.abs().max())
        values, residual_cells = list[TableCell](), list[TableCell]()
        for indices in chosen.values():
            for index in indices.tolist():
                error = certified[index]
                value = float(ritz.values[index])
                if error <= limit:
                    values.append(TableCell(value))
                else:
                    values.append(
                        TableCell(value, "approximate", f"residual {error:.3g} above {limit:.3g}; raise most")
                    )
                residual_cells.append(TableCell(error))
            reason = f"the Hessian has {len(ritz.values)} known eigenvalues of {surface.size}"
            missing = [TableCell(None, "undefined", reason)] * (self.count - len(indices))
            values, residual_cells = values + missing, residual_cells + missing
        return values, residual_cells, ritz

    def _density(self, surface: LossSurface, ritz: Ritz) -> list[TableCell]:
        nodes, weights = quadrature(
            surface.products,
            surface.size,
            probes=self.probes,
            steps=self.steps,
            draw=torch.Generator().manual_seed(self.seed + 1),
            like=next(iter(surface.parameters.values())),
        )
        low, high = (float(bound) for bound in (ritz.values.min(), ritz.values.max()))
        deviation = self.width * max(high - low, 1e-300)
        grid = torch.linspace(low - 4 * deviation, high + 4 * deviation, self.points, dtype=torch.float64).to(
            nodes.device
        )
        curves = torch.exp(-(((grid[:, None] - nodes.flatten()) / deviation) ** 2) / 2)
        density = curves @ weights.flatten() / (self.probes * deviation * math.sqrt(2 * math.pi))
        return [
            TableCell(float(value))
            for pair in zip(grid.tolist(), density.tolist(), strict=True)
            for value in pair
        ]
