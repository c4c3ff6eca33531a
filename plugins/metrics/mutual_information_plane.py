"""Mutual information plane: information of a layer about the input, I(X;T), and the label, I(T;Y), in bits.

Paper: "Reviving Autoencoder Pretraining", Sec. 3 and B.1; binning as Shwartz-Ziv, Tishby (2017), arXiv:1703.00810
    (code IDNNs): 30 edges from -1 to 1; the bins of a layer's units form the digits of its code.
Equations: inputs are equally likely and the network is deterministic, so I(X;T) = H(T) and
    I(T;Y) = H(T) - sum over y of p(y) H(T | y), with H = log2 N - sum c log2 c / N over counts c of codes.
    For a complete set of patterns, each once, these are exact for the binned layer.
Range: edges from -1 to 1 suit tanh. A layer with values outside is binned from its minimum to its maximum, and the
    estimator says so: for ReLU the fixed edges would put all large values into one bin. The last layer is binned as
    softmax probabilities, from 0 to 1.
Saturation: with N examples H(T) is at most log2 N. Close to it nearly every example has its own code, and I(X;T) counts
    examples rather than information; such cells are ``degenerate``.
Cost: keeps the values of all layers; sorts the codes of each layer once.
Limits: exact for deterministic networks over all patterns, and for binned layers only. For images it saturates:
    nearly each has its own code.
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
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from ._moments import real

compatkit_api = 1
QUANTITIES = ("I(X;T)", "I(T;Y)")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``mutual_information_plane``."""
    register("mutual_information_plane", MutualInformationPlane)


def entropy(counts: NDArray[np.int64]) -> float:
    """Return the entropy in bits of a distribution given by counts >= 1."""
    total = int(counts.sum())
    return max(0.0, math.log2(total) - float((counts * np.log2(counts)).sum()) / total) if total else 0.0


def codes(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one number per example, equal if all units fall into the same bins.

    Args:
        values: ``(n, units)``.
        edges: Ascending; a value equal to an edge lies above it.

    Returns:
        ``(n,)``, from 0.
    """
    digits = np.digitize(values, edges).astype(np.int16)
    if not digits.shape[1]:
        return np.zeros(len(digits), np.int64)
    # Rows as raw bytes are sorted faster than by np.unique(axis=0), which compares field by field.
    rows = np.ascontiguousarray(digits).view(np.dtype((np.void, digits.itemsize * digits.shape[1]))).ravel()
    return np.unique(rows, return_inverse=True)[1].ravel().astype(np.int64)


def information(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float, int]:
    """Return I(X;T) and I(T;Y) in bits, and the number of codes.

    Args:
        numbers: Code of each example, ``(n,)``.
        labels: ``(n,)``.
    """
    counts = np.unique(numbers, return_counts=True)[1]
    whole = entropy(counts)
    conditional = 0.0
    for label in np.unique(labels):
        own = numbers[labels == label]
        conditional += len(own) / len(labels) * entropy(np.unique(own, return_counts=True)[1])
    return whole, max(0.0, whole - conditional), len(counts)


@attrs.frozen(eq=False)
class Parts:
    """Batches: positions, labels, and values by layer, ``(batch, units)``."""

    batches: tuple[tuple[Tensor, Tensor, Mapping[str, Tensor]], ...] = ()


@attrs.define
class MutualInformationPlane:
    """Two tables: ``information`` by layer and quantity in bits, ``codes`` by layer.

    Attributes:
        edges: Number of bin edges, at least 2.
        range: ``"tanh"``: from -1 to 1, except for layers that exceed it; ``"adapted"``: from minimum to maximum of
            each layer.
        last: Layer of the logits, binned as softmax probabilities; None finds the last one that gives the logits.
        saturation: Distance from log2 N, in bits, within which I(X;T) is ``degenerate``.
    """

    edges: int = attrs.field(default=30, validator=Number(least=2, whole=True))
    range: str = attrs.field(default="tanh", validator=OneOf(("tanh", "adapted")))
    last: str | None = None
    saturation: float = attrs.field(default=0.1, validator=Number(least=0))

    def init(self) -> Parts:
        """Return the empty state."""
        return Parts()

    def update(
        self, state: Parts, positions: Tensor, labels: Tensor, logits: Tensor, outputs: Mapping[str, Tensor]
    ) -> Parts:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices of the examples, ``(batch,)``.
            labels: Class indices, ``(batch,)``.
            logits: ``(batch, classes)``.
            outputs: Output of each layer, ``(batch, ...)``.

        Raises:
            UsageError: The layer of the logits is not among the measured layers.
        """
        if self.last is not None and self.last not in outputs:
            raise UsageError(
                f"mutual_information_plane: last={self.last!r} is not among the layers {', '.join(outputs)}."
            )
        layers: dict[str, Tensor] = {}
        same = [
            name
            for name, output in outputs.items()
            if output.shape == logits.shape and torch.equal(output.to(logits.dtype), logits)
        ]
        last = self.last or (same[-1] if same else None)
        for name, output in outputs.items():
            values = real(output.detach()).flatten(1)
            layers[name] = values.softmax(1) if name == last else values
        if last is not None:
            layers = {
                name if name != last else f"{name} (softmax)": output for name, output in layers.items()
            }
        return Parts((*state.batches, (positions, labels, layers)))

    def merge(self, left: Parts, right: Parts) -> Parts:
        """Return the batches of both parts."""
        return Parts((*left.batches, *right.batches))

    def finalize(self, state: Parts, layers: Mapping[str, object]) -> tuple[Table, ...]:
        """Return the tables.

        Args:
            state: Codes and labels of all batches.
            layers: Layers that were asked for; they name the rows if no image was seen.

        Raises:
            DataError: An example occurred twice, so inputs are not equally likely.
        """
        count = sum(len(labels) for _, labels, _ in state.batches)
        if not count:
            names, nothing = tuple(layers), TableCell(None, "undefined", "no examples")
            cells = [[nothing] * 2 for _ in names]
            return self._tables(names, cells, [nothing] * len(names), 0, "")
        positions = np.concatenate([part.cpu().numpy() for part, _, _ in state.batches])
        if len(np.unique(positions)) < count:
            raise DataError("mutual_information_plane: an example occurred twice; give each pattern once.")
        labels = np.concatenate([part.cpu().numpy() for _, part, _ in state.batches])
        names = tuple(state.batches[0][2])
        cells, numbers, ranges = [], [], []
        for name in names:
            values = np.concatenate([part[name].cpu().double().numpy() for _, _, part in state.batches])
            low, high = self._range(name, values)
            ranges.append(f"{name} [{low:.6g}, {high:.6g}]")
            about_x, about_y, occupied = information(
                codes(values, np.linspace(low, high, self.edges)), labels
            )
            doubts = (
                ["one example"] * 2
                if count == 1
                else ["", "" if len(set(labels.tolist())) > 1 else "one class"]
            )
            full = about_x > math.log2(count) - self.saturation and count > 1
            reason = f"{occupied:,} codes for {count:,} examples: within {self.saturation:g} bits of log2 N"
            doubts = [reason] * 2 if full else doubts
            cells.append(
                [
                    TableCell(bits, "degenerate" if doubt else "ok", doubt)
                    for bits, doubt in zip((about_x, about_y), doubts, strict=True)
                ]
            )
            numbers.append(TableCell(float(occupied)))
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
        cells: Sequence[Sequence[TableCell]],
        numbers: Sequence[TableCell],
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
        flat = tuple(cell for row in cells for cell in row)
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
