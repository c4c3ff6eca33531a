"""Posterior collapse: which latent variables of a VAE say something about the image.

Papers: Burda, Grosse, Salakhutdinov (2016), "Importance Weighted Autoencoders", Sec. 5 and App. C: a unit is active
    where the variance of its mean over images is above .01. Bonheme and Grzes (2021), "Be More Active!": a variable is
    passive where its posterior is the prior for all images, active where it is for none, mixed otherwise.
Equations: for each variable the variance of mu over images, the mean of s^2, the mean KL from N(0, 1) in nats, and the
    share of images with s^2 above .9: passive from .95 on, active up to .05. The limits .9 and .95 are ours.
Cost: a few sums of the latent layers' outputs.
Limits: for variational autoencoders only, and for a layer that gives means and log-variances side by side. The limits
    .9 and .95 are ours.
Name one layer that gives means and log-variances side by side, such as ``latent`` of ``vae_conv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Result, Table, TableCell
from compatkit.hooks import Register

compatkit_api = 1
ACTIVE = 0.01
WIDE, MOST = 0.9, 0.95
QUANTITIES = ("variance of the mean", "mean variance", "divergence", "share near the prior")
PAPER = "Bonheme and Grzes (2021), Be More Active! Mean and Sampled Representations of VAEs"


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``posterior_collapse``."""
    register("posterior_collapse", PosteriorCollapse)


@attrs.frozen(eq=False)
class Moments:
    """Sums over ``count`` images, float64.

    Attributes:
        count: Number of images.
        mean: Mean of the means, ``(variables,)``.
        squares: Sum of their squared deviations, ``(variables,)``.
        sums: Sums of variances, divergences, and 1[s^2 > .9], ``(3, variables)``.
    """

    count: int = 0
    mean: Tensor | None = None
    squares: Tensor | None = None
    sums: Tensor | None = None


class PosteriorCollapse:
    """The counts ``units/active``, ``units/mixed`` and ``units/passive``, ``units/varying`` and a table of units."""

    def init(self) -> Moments:
        """Return the empty state."""
        return Moments()

    def update(self, state: Moments, outputs: Mapping[str, Tensor]) -> Moments:
        """Return the state with one more batch.

        Args:
            state: State so far.
            outputs: Outputs of one layer, means and log-variances ``(batch, 2 * variables)``.

        Raises:
            DataError: There are several layers, or the output is no such vector.
        """
        (name, values), *more = outputs.items()
        if more or values.ndim != 2 or values.shape[1] % 2:
            raise DataError(
                "posterior_collapse takes one layer that gives means and log-variances (batch, 2 * variables), such as "
                f"layers=['latent']; got {', '.join(outputs)} with {name} {tuple(values.shape)}.",
                subject=name,
            )
        mean, log_variance = values.double().chunk(2, dim=1)
        variance = log_variance.exp()
        divergence = 0.5 * (mean.square() + variance - log_variance - 1)
        if not bool(divergence.isfinite().all()):
            raise DataError(
                f"The layer {name!r} gives log-variances up to {float(log_variance.max()):.3g}, whose exponentials, or "
                "means whose squares, leave the range of float64. Name the layer of means and log-variances.",
                subject=name,
            )
        middle = mean.mean(0)
        sums = torch.stack([part.sum(0) for part in (variance, divergence, (variance > WIDE).double())])
        return self.merge(state, Moments(len(values), middle, (mean - middle).square().sum(0), sums))

    def merge(self, left: Moments, right: Moments) -> Moments:
        """Return the state of both parts."""
        if left.mean is None or left.squares is None or left.sums is None:
            return right
        if right.mean is None or right.squares is None or right.sums is None:
            return left
        count, step = left.count + right.count, right.mean - left.mean
        squares = left.squares + right.squares + step.square() * (left.count * right.count / count)
        return Moments(count, left.mean + step * (right.count / count), squares, left.sums + right.sums)

    def finalize(self, state: Moments) -> tuple[Result | Table, ...]:
        """Return counts of units, and the table.

        Args:
            state: State of all images.
        """
        fields: dict[str, Any] = {
            "direction": "none",
            "estimator": "exact",
            "count": state.count,
            "paper": PAPER,
        }
        if state.sums is None or state.squares is None:
            nothing: Any = {"value": None, "status": "undefined", "reason": "no examples", "unit": "count"}
            return (Result(name="units/varying", equation="", **nothing, **fields),)
        variance, divergence, share = state.sums.cpu() / state.count
        moved = state.squares.cpu() / state.count
        passive, active = share >= MOST, share <= 1 - MOST
        counts = {
            "active": active,
            "mixed": ~(active | passive),
            "passive": passive,
            "varying": moved > ACTIVE,
        }
        rows = torch.stack([moved, variance, divergence, share], dim=1)
        table = Table(
            name="units",
            axes={"unit": tuple(map(str, range(len(rows)))), "quantity": QUANTITIES},
            cells=tuple(map(TableCell, rows.flatten().tolist())),
            unit="1",
            equation="Var[mu], mean s^2, KL in nats, share of images with s^2 > .9",
            **fields,
        )
        results = [
            Result(name=f"units/{name}", value=float(units.sum()), unit="count", equation="", **fields)
            for name, units in counts.items()
        ]
        return (*results, table)
