"""Cross-correlation of two networks' channels on the same images: in order, and under the best permutation.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", App. C.2 and Fig. 6; the permutation is that of Li et al. (2016), "Convergent Learning".
Equations: r_ij = cov(f_i, g_j) / (s_i s_j) over images and positions, in float64. ``direct``: mean of r_ii.
    ``matched``: mean of r_i,p(i) under the permutation p with the largest sum (linear assignment). ``shuffled``:
    ``matched`` with each image of one network paired with another image of the other, mean over ``shuffles`` random
    pairings. Matching gives positive values even for unrelated networks: compare ``matched`` with ``shuffled``. Each is
    also computed for |r|, with its own permutation.
Constant channels have no correlation; they count as 0 and are reported in their own table.
Cost: one matrix product per batch; memory for all channel pairs; an assignment of C^3 for each shuffle and one more.
Limits: maps must be of one size with channels first. Matching flatters unrelated networks, so it means something only
    beside ``shuffled``. It did not predict which parts fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from compatkit import hookimpl
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import SEED, WHOLE
from compatkit.hooks import Register

from ._moments import NEGLIGIBLE, Pair, best_pairs, drawn_keys, real, rows_of, within_range
from ._partners import partner

compatkit_api = 1
PAPER = {
    "paper": "Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components",
    "equation": "App. C.2",
}
PAIRINGS, SIGNS = ("direct", "matched", "shuffled"), ("signed", "absolute")
State = Mapping[str, Pair]


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``cross_correlation``."""
    register("cross_correlation", CrossCorrelation)


@attrs.frozen
class CrossCorrelation:
    """Correlation of the layers of one network with those of another.

    Attributes:
        shuffles: Number of random pairings for ``shuffled``; 0 omits it and keeps no images.
        shuffled_images: Most images kept for it; a random sample if there are more.
        seed: Seed of the sample and the pairings.
    """

    shuffles: int = attrs.field(default=3, validator=WHOLE)
    shuffled_images: int = attrs.field(default=2048, validator=WHOLE)
    seed: int = attrs.field(default=0, validator=SEED)

    def init(self) -> State:
        """Return the empty state."""
        return {}

    def update(
        self,
        state: State,
        positions: Tensor,
        outputs: Mapping[str, Tensor],
        other_outputs: Mapping[str, Tensor],
    ) -> State:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices of the images, ``(batch,)``.
            outputs: Output of each layer, ``(batch, channels, ...)``, tokens or vectors.
            other_outputs: The same of the other network.

        Raises:
            DataError: Two layers of one name have different positions, or one has no output.
        """
        keys, pairs = drawn_keys(positions, self.seed), dict(state)
        for name, output in outputs.items():
            left, right = rows_of(name, output, partner("cross_correlation", name, other_outputs))
            for side in (left, right):
                within_range(name, side)
            pair = Pair.of(real(left), real(right), keys.to(left.device), self._most)
            pairs[name] = state[name].merged(pair, self._most) if name in state else pair
        return pairs

    def merge(self, left: State, right: State) -> State:
        """Return the state of both parts."""
        return {
            name: left[name].merged(right[name], self._most)
            if name in left and name in right
            else (left if name in left else right)[name]
            for name in {**left, **right}
        }

    def finalize(self, state: State, layers: Mapping[str, Any]) -> tuple[Table, ...]:
        """Return tables of means, of channels, and of the numbers of constant channels.

        Args:
            state: Moments of pairs of layers, by name.
            layers: Layers that were asked for; they name the rows if no image was seen.
        """
        names = tuple(state) or tuple(layers)
        images = max((pair.images for pair in state.values()), default=0)
        means, channels, constant = [], [], []
        widest = max((len(pair.means[0]) for pair in state.values()), default=0)
        for name in names:
            pair = state.get(name)
            means += _doubted(pair, self._means(pair))
            channels += _channels(pair, widest)
            constant += _constant(pair)
        how = "Pearson over images and positions, float64"
        common: dict[str, Any] = {"direction": "none", "count": images, **PAPER}
        return (
            Table(
                name="cross_correlation",
                axes={"layer": names, "pairing": PAIRINGS, "sign": SIGNS},
                cells=tuple(means),
                unit="1",
                estimator=f"mean over channels of {how}; shuffled: mean of {self.shuffles} pairings",
                **common,
            ),
            Table(
                name="cross_correlation/channels",
                axes={
                    "layer": names,
                    "pairing": PAIRINGS[:2],
                    "channel": tuple(str(channel) for channel in range(widest)),
                },
                cells=tuple(channels),
                unit="1",
                estimator=how,
                **common,
            ),
            Table(
                name="cross_correlation/constant",
                axes={"layer": names, "network": ("this", "other")},
                cells=tuple(constant),
                unit="count",
                estimator="channels without variance, which count as 0",
                **common,
            ),
        )

    @property
    def _most(self) -> int:
        return self.shuffled_images if self.shuffles else 0

    def _means(self, pair: Pair | None) -> list[TableCell]:
        """Return the cells of a layer: each pairing, signed and absolute."""
        reason = _lacking(pair)
        if reason or pair is None:
            return [TableCell(None, "undefined", reason)] * (len(PAIRINGS) * len(SIGNS))
        correlations = pair.correlations()
        a, b = correlations.shape
        if a == b:
            direct = [
                TableCell(float(matrix.diagonal().mean())) for matrix in (correlations, correlations.abs())
            ]
            matched = [
                TableCell(float(best_pairs(matrix).mean())) for matrix in (correlations, correlations.abs())
            ]
        else:
            why = f"the networks give {a} and {b} channels, so that none stands at the place of another"
            partial = f"{min(a, b)} of {max(a, b)} channels have a partner"
            direct = [TableCell(None, "undefined", why)] * 2
            matched = [
                TableCell(float(best_pairs(matrix).mean()), "approximate", partial)
                for matrix in (correlations, correlations.abs())
            ]
        return [*direct, *matched, *self._shuffled(pair)]

    def _shuffled(self, pair: Pair) -> list[TableCell]:
        count = len(pair.keys)
        if count < 2 or not self.shuffles:
            why = (
                "no pairing was drawn" if not self.shuffles else f"{count} images are kept; shuffling needs 2"
            )
            return [TableCell(None, "undefined", why)] * 2
        draw = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(count, generator=draw) for _ in range(self.shuffles)]
        shuffled = [pair.shuffled(order.roll(1)[order.argsort()]) for order in orders]  # each gets another
        means = [
            sum(
                float(best_pairs(correlations if sign == "signed" else correlations.abs()).mean())
                for correlations in shuffled
            )
            / len(shuffled)
            for sign in SIGNS
        ]
        if count == pair.images:
            return [TableCell(mean) for mean in means]
        reason = f"of {count:,} of {pair.images:,} images; of all it would be nearer to 0"
        return [TableCell(mean, "approximate", reason) for mean in means]


def _lacking(pair: Pair | None) -> str:
    """Return why there is no correlation, or empty."""
    if pair is None:
        return "no examples"
    if pair.rows < 2:
        return "one value a channel"
    if len(pair.digests) == 2:
        return "only two different values a channel, between which every correlation is 1 or -1"
    varies = all(bool(channels.any()) for channels in pair.varies())
    return "" if varies else _lost(pair) or "no channel varies in one of the networks"


def _lost(pair: Pair) -> str:
    """Return why channels that vary count as constant, or empty."""
    if not (count := pair.lost()):
        return ""
    return (
        f"{count} channels deviate by less than {NEGLIGIBLE:g} of their mean, of which float64 keeps too few digits, "
        "and count as 0; take off the mean first"
    )


def _doubted(pair: Pair | None, cells: list[TableCell]) -> list[TableCell]:
    """Return cells, degenerate where channels that vary count as constant."""
    if pair is None or not (reason := _lost(pair)):
        return cells
    return [cell if cell.value is None else TableCell(cell.value, "degenerate", reason) for cell in cells]


def _channels(pair: Pair | None, widest: int) -> list[TableCell]:
    """Return the correlation of each channel with its partner, direct and matched."""
    reason = _lacking(pair)
    if reason or pair is None:
        return [TableCell(None, "undefined", reason)] * (2 * widest)
    correlations = pair.correlations().cpu()
    nobody = TableCell(None, "undefined", "no partner")
    rows, columns = linear_sum_assignment(correlations.numpy(), maximize=True)
    direct, matched = [nobody] * widest, [nobody] * widest
    for row, column in zip(rows, columns, strict=True):
        matched[row] = TableCell(float(correlations[row, column]))
    if correlations.shape[0] == correlations.shape[1]:
        direct[: len(correlations)] = [TableCell(float(value)) for value in correlations.diagonal()]
    return [*direct, *matched]


def _constant(pair: Pair | None) -> list[TableCell]:
    if pair is None:
        return [TableCell(None, "undefined", "no examples")] * 2
    return [TableCell(float((~varies).sum())) for varies in pair.varies()]
