"""Common parts of the similarity metrics: storage of rows, and tables of the layers of two networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from compatkit.errors import DataError
from compatkit.evaluation.metrics import FLATTENINGS, Status, Table, TableCell, flattened
from compatkit.foundation.limits import OneOf

from ._rows import Rows, different, same_layers

ROUNDING = 1e-6
"""A similarity is above 1 by no more than this, from rounding."""

Prepared = TypeVar("Prepared")
PAPER = "Bonheme and Grzes (2023), How Good Are Variational Autoencoders at Transfer Learning?"


Grid = Sequence[Sequence[TableCell]]
"""Cells of layers of this network by layers of the other."""


def not_above_0(names: Sequence[str], own: Tensor) -> list[str]:
    """Return why layers have no similarity: empty where the own product is above 0.

    Args:
        names: Names of the layers.
        own: ``(l,)``.
    """
    reasons = []
    for name, value in zip(names, own.tolist(), strict=True):
        why = "its own product is not above 0" if math.isfinite(value) else "its values are not finite"
        reasons.append("" if math.isfinite(value) and value > 0 else f"{name}: {why}")
    return reasons


def at_most_one(values: Tensor) -> Tensor:
    """Return similarities, those that rounding put above 1 as 1."""
    return torch.where((values > 1) & (values <= 1 + ROUNDING), 1.0, values)


def judged(value: Tensor, reason: str = "", status: Status = "degenerate") -> TableCell:
    """Return a cell; with a reason it has the status."""
    return TableCell(float(at_most_one(value)), status if reason else "ok", reason)


def forced(left: Rows, right: Rows, directions: tuple[int, int]) -> str:
    """Return why some correlations are 1 whatever the values are, or empty.

    Args:
        left: A layer.
        right: The other.
        directions: How many of each are correlated.
    """
    if sum(directions) <= max(left.different, right.different) - 1:
        return ""
    samples = different(left, right)
    what = f"{samples} samples" if samples == len(left.values) else f"{samples} different samples"
    forced = f"{directions[0]} and {directions[1]} directions of {what}: correlations of 1 are forced"
    return forced if sum(directions) > samples - 1 else ""


REPEATED = 0.9
"""Share of samples that have to differ for estimates that take them as independent."""
ALIKE = 0.9
"""Share of the most directions that samples can span from which on they count as equally far from each other."""


def repeated(cell: TableCell, count: int, rows: int) -> TableCell:
    """Return a cell, degenerate where so many samples repeat that they are not independent.

    Args:
        cell: With a value, or undefined.
        count: How many samples differ.
        rows: All samples.
    """
    if cell.status not in ("ok", "approximate") or count >= REPEATED * rows:
        return cell
    return TableCell(
        cell.value, "degenerate", f"{count} of {rows} samples differ; the estimate takes all as independent"
    )


def doubted(cell: TableCell, count: int, rows: int) -> TableCell:
    """Return a cell, degenerate where its samples are two points or repeat; see ``repeated``."""
    return two_points(cell) if count <= 2 else repeated(cell, count, rows)


def distinct(digests: Sequence[Tensor]) -> int:
    """Return how many rows differ, by their digests of all batches."""
    return len(torch.cat([batch.cpu() for batch in digests]).unique())


def spread(square: float, trace: float) -> float:
    """Return the number of directions over which a Gram K spreads its variance, (tr K)^2 / |K|^2, at least 1."""
    return trace * trace / square if square > 0 else 1.0


def equally_far(spreads: tuple[float, float], samples: int) -> str:
    """Return why a similarity is the same for every pairing of the samples, or empty.

    The Gram of n samples that are equally far from each other is a multiple of the centering matrix, and a rotation
    brings it near any other: of Gaussian values this is so of far fewer samples than values.

    Args:
        spreads: Spreads of the two layers.
        samples: How many samples differ, n.
    """
    if samples < 2 or max(spreads) <= ALIKE * (samples - 1):
        return ""
    return (
        f"{samples} samples are about equally far from each other in a layer, so that the value hardly depends on "
        "which of them are paired; give more samples"
    )


def grid(values: Tensor, left: Sequence[str] = (), right: Sequence[str] = ()) -> Grid:
    """Return cells; one without a value is undefined.

    Args:
        values: ``(a, b)``, NaN where undefined.
        left: Why a layer of this network has no value, or empty, for each.
        right: The same of the other network.
    """
    return [
        [
            TableCell(value)
            if value == value
            else TableCell(None, "undefined", "; ".join(filter(None, (left[i], right[j]))))
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(values.tolist())
    ]


def pairwise(
    left: Sequence[Rows],
    right: Sequence[Rows],
    prepare: Callable[[Rows], Prepared],
    measure: Callable[[Prepared, Prepared], TableCell],
    *,
    symmetric: bool = True,
) -> Grid:
    """Return the cell of each pair of layers.

    Args:
        left: Layers of this network.
        right: Layers of the other.
        prepare: Called once for each layer.
        measure: Called with what that gave.
        symmetric: Whether order does not matter: where both sides are the same, each pair is then measured once.
    """
    lefts, same = [prepare(layer) for layer in left], same_layers(left, right)
    rights = lefts if same else [prepare(layer) for layer in right]
    if not same or not symmetric:
        return [[measure(layer, other) for other in rights] for layer in lefts]
    cells: list[list[TableCell]] = []
    for i, layer in enumerate(lefts):
        cells.append([cells[j][i] for j in range(i)] + [measure(layer, other) for other in lefts[i:]])
    return cells


def few(rows: Sequence[Rows]) -> str:
    """Return what a table says of samples for values: below 1 an estimate is too high."""
    shares = [len(layer.values) / layer.values.shape[1] for layer in rows if layer.values.shape[1]]
    if not shares or min(shares) >= 1:
        return ""
    return f"; {min(shares):.3g} samples a value at least, and below 1 it is too high"


def table(name: str, axes: tuple[Sequence[str], Sequence[str]], cells: Grid, **fields: Any) -> Table:
    """Return a table of layers of ``this`` network by layers of the ``other``.

    Args:
        name: Name of the result.
        axes: Names of the layers.
        cells: One row a layer of this network.
        **fields: Fields of ``Table``.
    """
    return Table(
        name=name,
        axes={"this": tuple(axes[0]), "other": tuple(axes[1])},
        cells=tuple(cell for row in cells for cell in row),
        **{"unit": "1", "direction": "none", "paper": PAPER, **fields},
    )


Pieces = Mapping[str, tuple[Tensor, ...]]


@attrs.frozen(eq=False)
class SeenRows:
    """Outputs of the layers of two networks, batch by batch; ``examples`` counts the images."""

    examples: int = 0
    this: Pieces = attrs.field(factory=dict)
    other: Pieces = attrs.field(factory=dict)


@attrs.define(eq=False)
class FlatteningMetric:
    """A metric of two networks' layers as rows.

    Attributes:
        flatten: ``all``: every value of an image is a column; ``pooled``: channels, each the mean over its positions;
            ``positions``: channels, with every position of every image a row.
    """

    flatten: str = attrs.field(default="all", validator=OneOf(FLATTENINGS))

    def sides(
        self, outputs: Mapping[str, Tensor], others: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the rows of a batch, ``(n, p)`` each, of both networks."""
        left, right = (
            {name: flattened(name, output, self.flatten) for name, output in side.items()}
            for side in (outputs, others)
        )
        return left, right


@attrs.define(eq=False)
class RowsMetric(FlatteningMetric):
    """A metric that needs all rows at once: they are kept until the last batch.

    Attributes:
        min_samples: Smallest number of samples.
    """

    min_samples = 2

    def init(self) -> SeenRows:
        """Return the empty state."""
        return SeenRows()

    def update(
        self,
        state: SeenRows,
        positions: Tensor,
        outputs: Mapping[str, Tensor],
        other_outputs: Mapping[str, Tensor],
    ) -> SeenRows:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices of the images, ``(batch,)``.
            outputs: Output of each layer, ``(batch, ...)``.
            other_outputs: The same of the other network, on the same images.

        Raises:
            DataError: A layer has no form that can be flattened.
        """
        left, right = self.sides(outputs, other_outputs)
        return self.merge(
            state,
            SeenRows(
                len(positions),
                {name: (rows,) for name, rows in left.items()},
                {name: (rows,) for name, rows in right.items()},
            ),
        )

    def merge(self, left: SeenRows, right: SeenRows) -> SeenRows:
        """Return the state of both parts."""

        def joined(pieces: Pieces, more: Pieces) -> Pieces:
            return {name: (*pieces.get(name, ()), *more.get(name, ())) for name in {**pieces, **more}}

        return SeenRows(
            left.examples + right.examples, joined(left.this, right.this), joined(left.other, right.other)
        )

    def finalize(
        self, state: SeenRows, layers: Mapping[str, Any], other_layers: Mapping[str, Any]
    ) -> tuple[Table, ...]:
        """Return the tables.

        Args:
            state: Rows of all layers.
            layers: Layers that were asked for; they name the axes if no image was seen.
            other_layers: The same of the other network.

        Raises:
            DataError: There are too few samples.
        """
        axes = tuple(state.this) or tuple(layers), tuple(state.other) or tuple(other_layers)
        if not state.examples:
            nothing = [[TableCell(None, "undefined", "no examples")] * len(axes[1])] * len(axes[0])
            return tuple(
                table(name, axes, nothing, count=0, **fields)
                for name, fields in self.fields_of((), ()).items()
            )
        left, right = (
            [Rows.of(name, pieces) for name, pieces in side.items()] for side in (state.this, state.other)
        )
        cells: dict[str, list[list[TableCell]]] = {}
        tables = self.fields_of(left, right)
        for name in tables:
            cells[name] = [[_apart(layer, other) for other in right] for layer in left]
        for count in dict.fromkeys(len(layer.values) for layer in left):
            self.check_samples(next(iter(tables)), count)
            rows = [
                (i, layer) for i, layer in enumerate(left) if len(layer.values) == count and not layer.reason
            ]
            columns = [
                (j, layer) for j, layer in enumerate(right) if len(layer.values) == count and not layer.reason
            ]
            if not rows or not columns:
                continue
            compared = self.compare([layer for _, layer in rows], [layer for _, layer in columns])
            for name, values in compared.items():
                for (i, layer), line in zip(rows, values, strict=True):
                    for (j, other), cell in zip(columns, line, strict=True):
                        cells[name][i][j] = _doubted(cell, layer, other)
        return tuple(
            table(name, axes, cells[name], count=state.examples, **fields) for name, fields in tables.items()
        )

    def check_samples(self, name: str, count: int) -> None:
        """Raise if there are too few samples.

        Raises:
            DataError: There are fewer than ``min_samples``.
        """
        if count < self.min_samples:
            raise DataError(
                f"{name} needs at least {self.min_samples} samples; got {count}. Give more.", subject=name
            )

    def fields_of(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, dict[str, Any]]:
        """Return estimator, equation and other fields of each table, by its name."""
        raise NotImplementedError

    def compare(self, left: Sequence[Rows], right: Sequence[Rows]) -> dict[str, Grid]:
        """Return the cells of each table, for layers of one count of rows that all vary."""
        raise NotImplementedError


def _doubted(cell: TableCell, this: Rows, other: Rows) -> TableCell:
    """Return a cell, degenerate where its samples are two points, which any two layers show alike."""
    if cell.status == "undefined" or max(this.different, other.different) > 2 or different(this, other) > 2:
        return cell
    return two_points(cell)


def two_points(cell: TableCell) -> TableCell:
    """Return a cell that has a value as degenerate: its samples are two points."""
    reason = "only two samples differ: layers of two points are alike whatever they hold"
    reasons = "; ".join(filter(None, (cell.reason, reason)))
    return cell if cell.value is None else TableCell(cell.value, "degenerate", reasons)


def _apart(this: Rows, other: Rows) -> TableCell:
    """Return the cell of a pair that cannot be compared."""
    reason = "; ".join(dict.fromkeys(filter(None, (this.reason, other.reason))))
    return TableCell(
        None, "undefined", reason or f"{len(this.values):,} rows cannot be paired with {len(other.values):,}"
    )
