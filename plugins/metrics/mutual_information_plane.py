"""Mutual information plane: how much a layer tells about the input, I(X;T), and about the label, I(T;Y), in bits.

Paper: "Reviving Autoencoder Pretraining", Sec. 3 and B.1; binning as Shwartz-Ziv, Tishby (2017), arXiv:1703.00810
    (code IDNNs): 30 edges from -1 to 1, each unit's bin is a digit, a layer's code is the row of its digits.
Equations: the inputs are equally likely and the network is a function of them, so I(X;T) = H(T) and
    I(T;Y) = H(T) - sum over y of p(y) H(T | y), with H = log2 N - sum c log2 c / N over counts c of codes.
    Over a complete set of patterns, each once, these are exact for the binned layer.
Range: edges from -1 to 1 are right for tanh. A layer with values outside is binned from its least to its largest value,
    and its estimator says so: for ReLU the fixed edges would put all large values into one bin. The last layer is
    binned as softmax probabilities, from 0 to 1.
Saturation: with N examples H(T) is log2 N at most. Near it nearly every example has a code of its own, and I(X;T)
    counts examples and not information; such cells are ``degenerate``.
Cost: the values of the layers are kept until the end, in float32; one sort of the codes a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.hooks import Register
from compatkit.metrics import Cell, Table

compatkit_api = 1
QUANTITIES = ("I(X;T)", "I(T;Y)")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``mutual_information_plane``."""
    register("mutual_information_plane", MutualInformationPlane)


def entropy(counts: NDArray[np.int64]) -> float:
    """Return the entropy of a distribution in bits, from how often each value came, all at least once."""
    total = int(counts.sum())
    return max(0.0, math.log2(total) - float((counts * np.log2(counts)).sum()) / total) if total else 0.0


def codes(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one number an example, equal where all units fall into the same bins.

    Args:
        values: ``(n, units)``.
        edges: Rising; a value equal to an edge lies above it.

    Returns:
        ``(n,)``, from 0.
    """
    digits = np.digitize(values, edges).astype(np.int16)
    if not digits.shape[1]:
        return np.zeros(len(digits), np.int64)
    # Rows as single items of raw bytes: sorted once, whatever their length, where np.unique(axis=0) compares fields.
    rows = np.ascontiguousarray(digits).view(np.dtype((np.void, digits.itemsize * digits.shape[1]))).ravel()
    return np.unique(rows, return_inverse=True)[1].ravel().astype(np.int64)


def information(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float, int]:
    """Return I(X;T) and I(T;Y) in bits, and how many codes there are.

    Args:
        numbers: Code of each example, ``(n,)``.
        labels: ``(n,)``.
    """
    counts = np.unique(numbers, return_counts=True)[1]
    whole = entropy(counts)
    given = 0.0
    for label in np.unique(labels):
        own = numbers[labels == label]
        given += len(own) / len(labels) * entropy(np.unique(own, return_counts=True)[1])
    return whole, max(0.0, whole - given), len(counts)


@attrs.frozen(eq=False)
class Parts:
    """Batches as they came: positions, labels, and by layer the values, ``(batch, units)``."""

    batches: tuple[tuple[Tensor, Tensor, Mapping[str, Tensor]], ...] = ()


@attrs.define
class MutualInformationPlane:
    """Gives two tables: ``information`` by layer and quantity in bits, ``codes`` by layer.

    Attributes:
        edges: How many, from 2.
        range: ``"tanh"``: from -1 to 1, a layer that exceeds it adapts; ``"adapted"``: every layer from its least to
            its largest value.
        last: The layer of logits, binned as softmax probabilities; None takes the last one that gives the logits.
        saturation: Bits below log2 N from where on I(X;T) is ``degenerate``.
    """

    edges: int = 30
    range: str = "tanh"
    last: str | None = None
    saturation: float = 0.1

    def __attrs_post_init__(self) -> None:
        if isinstance(self.edges, bool) or not isinstance(self.edges, int) or self.edges < 2:
            raise UsageError(f"mutual_information_plane: edges is a count, at least 2; got {self.edges!r}.")
        if self.range not in ("tanh", "adapted"):
            raise UsageError(f"mutual_information_plane: range is 'tanh' or 'adapted'; got {self.range!r}.")
        if not 0 <= self.saturation < math.inf:
            raise UsageError(
                f"mutual_information_plane: saturation is in bits, from 0; got {self.saturation!r}."
            )

    def init(self) -> Parts:
        """Return no batches."""
        return Parts()

    def update(
        self, state: Parts, positions: Tensor, labels: Tensor, logits: Tensor, outputs: Mapping[str, Tensor]
    ) -> Parts:
        """Return the batches with one more.

        Raises:
            UsageError: The layer of logits is not among those that are looked at.
        """
        if self.last is not None and self.last not in outputs:
            raise UsageError(
                f"mutual_information_plane: last={self.last!r} is not among the layers {', '.join(outputs)}."
            )
        kept: dict[str, Tensor] = {}
        same = [
            name
            for name, one in outputs.items()
            if one.shape == logits.shape and torch.equal(one.float(), logits)
        ]
        last = self.last or (same[-1] if same else None)
        for name, one in outputs.items():
            values = one.detach().float().flatten(1)
            kept[name] = values.softmax(1) if name == last else values
        if last is not None:
            kept = {name if name != last else f"{name} (softmax)": one for name, one in kept.items()}
        return Parts((*state.batches, (positions, labels, kept)))

    def merge(self, left: Parts, right: Parts) -> Parts:
        """Return the batches of both."""
        return Parts((*left.batches, *right.batches))

    def finalise(self, state: Parts, layers: Mapping[str, object]) -> tuple[Table, ...]:
        """Return the tables.

        Raises:
            DataError: An example came twice: the inputs would not be equally likely.
        """
        count = sum(len(labels) for _, labels, _ in state.batches)
        if not count:
            names, nothing = tuple(layers), Cell(None, "undefined", "no examples")
            cells = [[nothing] * 2 for _ in names]
            return self._tables(names, cells, [nothing] * len(names), 0, "")
        positions = np.concatenate([one.cpu().numpy() for one, _, _ in state.batches])
        if len(np.unique(positions)) < count:
            raise DataError("mutual_information_plane: an example came twice; give each pattern once.")
        labels = np.concatenate([one.cpu().numpy() for _, one, _ in state.batches])
        names = tuple(state.batches[0][2])
        cells, numbers, ranges = [], [], []
        for name in names:
            values = np.concatenate([one[name].cpu().double().numpy() for _, _, one in state.batches])
            low, high = self._range(name, values)
            ranges.append(f"{name} [{low:.6g}, {high:.6g}]")
            about_x, about_y, occupied = information(
                codes(values, np.linspace(low, high, self.edges)), labels
            )
            full = about_x > math.log2(count) - self.saturation and count > 1
            reason = f"{occupied:,} codes for {count:,} examples: within {self.saturation:g} bits of log2 N"
            cells.append(
                [Cell(one, "degenerate", reason) if full else Cell(one) for one in (about_x, about_y)]
            )
            numbers.append(Cell(float(occupied)))
        return self._tables(names, cells, numbers, count, ", ".join(ranges))

    def _range(self, name: str, values: NDArray[np.float64]) -> tuple[float, float]:
        if name.endswith(" (softmax)"):
            return 0.0, 1.0
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
        if self.range == "tanh" and low >= -1 and high <= 1:
            return -1.0, 1.0
        return (low, high) if high > low else (low, low + 1)

    def _tables(
        self,
        names: tuple[str, ...],
        cells: Sequence[Sequence[Cell]],
        numbers: Sequence[Cell],
        count: int,
        ranges: str,
    ) -> tuple[Table, ...]:
        common = {
            "direction": "none",
            "estimator": f"plug-in, {self.edges} edges" + (f": {ranges}" if ranges else ""),
            "count": count,
            "paper": "Reviving Autoencoder Pretraining (anonymous, 2020); Shwartz-Ziv, Tishby (2017)",
            "equation": "Sec. 3, B.1",
        }
        flat = tuple(one for row in cells for one in row)
        return (
            Table(
                name="mutual_information_plane/information",
                axes={"layer": names, "quantity": QUANTITIES},
                cells=flat,
                unit="bits",
                **common,  # type: ignore[arg-type]
            ),
            Table(
                name="mutual_information_plane/codes",
                axes={"layer": names},
                cells=tuple(numbers),
                unit="count",
                **common,  # type: ignore[arg-type]
            ),
        )
