"""All cells of a matrix while it is filled: from evidence, just measured, or without a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.matrices.filters import Filter, first_mismatch
from compatkit.components.matrices.metrics import MISSING, MatrixMetrics
from compatkit.components.matrices.recorded import Pair, PairQuery, RecordedCells
from compatkit.contracts import evidence as metric
from compatkit.contracts.evidence import ADAPTED, STATE, Cell
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.prospect import Prospect, notes_of, prospect
from compatkit.reports.matrix import Matrix

if TYPE_CHECKING:
    from compatkit.evaluation.pair_metrics import PairMetric

STATES = {
    "missing": ("missing",),
    "stale": ("missing", "stale"),
    "all": ("missing", "stale", "measured"),
    "none": (),
}
"""States of cells to measure, by ``fill``."""
DETAILED = 2500
"""Maximum number of pairs for which cells list the findings of their check."""
FIGURES = ("grade", "restricted", "unrestricted", "chance", "bound", "recovered", "difference")


@attrs.define(eq=False)
class Pairs:
    """All pairs of a matrix with their cells: from evidence, just measured, or without a figure.

    Attributes:
        lefts: Extractors, the rows.
        rights: Heads, the columns.
        recorded: Cells recorded before.
        filters: Filters of cells.
        metrics: Figures of metric plugins.
        todo: Metrics to measure, by pair to measure; empty for pairs without any.
        standing: Pairs that are measured for their metrics alone: their accuracy stands.
        cells: Cells by pair.
        done: Pairs measured by this call.
        failed: Pairs that this call could not measure.
    """

    lefts: Sequence[Component]
    rights: Sequence[Component]
    recorded: RecordedCells
    filters: Sequence[Filter]
    metrics: MatrixMetrics
    todo: dict[Pair, Sequence[PairMetric]] = attrs.field(init=False, factory=dict)
    standing: set[Pair] = attrs.field(init=False, factory=set)
    cells: dict[Pair, Cell] = attrs.field(init=False, factory=dict)
    done: set[Pair] = attrs.field(init=False, factory=set)
    failed: set[Pair] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        detailed = len(self.lefts) * len(self.rights) <= DETAILED
        for left in self.lefts:
            for right in self.rights:
                pair = left.reference, right.reference
                cell = self.recorded.cells.get(pair)
                if cell is None:
                    cell = _without_figure(
                        left, right, self.recorded.images[left.reference], self.recorded.queries[pair]
                    )
                elif detailed:
                    cell = self._with_findings(cell, left, right)
                self.cells[pair] = self._filtered(cell, before=True)

    def wanted(self, fill: str) -> list[Pair]:
        """Return the pairs to measure, for their accuracy or a metric."""
        for pair, cell in self.cells.items():
            if cell.state not in ("measured", "stale", "missing"):
                continue
            metrics, needed = self.metrics.wanted(pair, STATES[fill]), cell.state in STATES[fill]
            if metrics or needed:
                self.todo[pair] = metrics
            if metrics and not needed:
                self.standing.add(pair)
        return list(self.todo)

    def new(self, row: Sequence[Cell]) -> list[Cell]:
        """Return the cells of a row that has run, without those of which the accuracy stands."""
        return [cell for cell in row if (cell.extractor, cell.head) not in self.standing]

    def parts_of(
        self, todo: Sequence[Pair], bounds: Mapping[str, Component]
    ) -> tuple[list[Component], list[Component], dict[str, Component]]:
        """Return the extractors and heads of some pairs, and the heads that give the bounds of these extractors."""
        rows, columns = {left for left, _ in todo}, {right for _, right in todo}
        lefts = [component for component in self.lefts if component.reference in rows]
        rights = [component for component in self.rights if component.reference in columns]
        names = [component.reference for component in lefts]
        return lefts, rights, {name: bounds[name] for name in names if name in bounds}

    def lose(self, extractor: str, heads: Sequence[str], reason: str) -> None:
        """Note why missing cells could not be measured; stale ones keep their figures."""
        for head in heads:
            cell = self.cells[extractor, head]
            self.metrics.lose((extractor, head), reason)
            self.failed.add((extractor, head))
            if cell.state == "missing":
                self.cells[extractor, head] = attrs.evolve(cell, reason=reason)

    def take(self, cell: Cell) -> str:
        """Store a new cell; return how it differs from one recorded under the same key, or empty."""
        pair = cell.extractor, cell.head
        self.metrics.take(cell, self.todo.get(pair, ()))
        if pair in self.standing:
            return ""
        before = self.recorded.cells.get(pair)
        if pair in self.cells:
            self.cells[pair] = cell
            if cell.restricted is not None:
                self.done.add(pair)
        if before is None or before.grade == "stale" or before.restricted is None or cell.restricted is None:
            return ""
        if all(getattr(before, name) == getattr(cell, name) for name in FIGURES):
            return ""
        return (
            f"{cell.extractor} with {cell.head} was {before.restricted.accuracy:.4f} and is "
            f"{cell.restricted.accuracy:.4f}"
        )

    def matrix(self, conditions: Conditions, fill: str) -> Matrix:
        """Return the matrix without rows and columns whose cells are all left out."""
        shown = {
            pair: cell if cell.state == "left-out" else self._filtered(self._complete(cell), before=False)
            for pair, cell in self.cells.items()
        }
        lefts, rights = self.lefts, self.rights
        if self.filters:
            remaining = [pair for pair, cell in shown.items() if cell.state != "left-out"]
            rows, columns = {left for left, _ in remaining}, {right for _, right in remaining}
            lefts = [component for component in lefts if component.reference in rows]
            rights = [component for component in rights if component.reference in columns]
        pairs = [(left.reference, right.reference) for left in lefts for right in rights]
        first, second = (tuple(component.described() for component in side) for side in (lefts, rights))
        chosen = {pair: shown[pair] for pair in pairs}
        return Matrix(first, second, tuple(chosen.values()), self._settings(conditions, fill, chosen))

    def _complete(self, cell: Cell) -> Cell:
        """Return a cell that can be measured with the figures of its metrics."""
        if not self.metrics.asked or cell.state == "barred":
            return cell
        return attrs.evolve(cell, metrics=self.metrics.of((cell.extractor, cell.head)))

    def _filtered(self, cell: Cell, *, before: bool) -> Cell:
        text = first_mismatch(self.filters, cell, before=before)
        return cell.left_out(f"does not fit {text}") if text else cell

    def _settings(self, conditions: Conditions, fill: str, cells: Mapping[Pair, Cell]) -> dict[str, Any]:
        """Return the settings shared by all cells, and the numbers of cells by state."""
        states = Counter(cell.state for cell in cells.values())
        now = sum(cells[pair].state == "measured" for pair in self.done if pair in cells)
        counts = {"taken": states["measured"] - now, "measured": now}
        counts |= {name: states[name] for name in ("stale", "missing", "barred", "left-out") if states[name]}
        counts |= {"failed": len(self.failed & cells.keys())} if self.failed else {}
        settings: dict[str, Any] = {
            "metric": f"{metric.METRIC} {metric.METRIC_VERSION}",
            "normalisation": conditions.bn_policy,
            "batch_size": conditions.batch_size,
            "seed": conditions.seed,
            "precision": conditions.precision,
            "fill": fill,
            "cells": counts,
        }
        if self.metrics.asked:
            open_pairs = [pair for pair, cell in cells.items() if cell.metrics]
            settings["metrics"] = [metric.label for metric in self.metrics.asked]
            settings["cells"]["metrics"] = self.metrics.counts(open_pairs)
        return settings | ({"where": [item.text for item in self.filters]} if self.filters else {})

    def _with_findings(self, cell: Cell, left: Component, right: Component) -> Cell:
        images = self.recorded.images[left.reference]
        forecast = _prospect(left, right, images, cell.settings)
        return attrs.evolve(
            cell,
            findings=(*notes_of(forecast, cell.settings, figures=cell.state == "measured"), *cell.findings),
        )


def _prospect(left: Component, right: Component, images: ImageFacts, settings: Mapping[str, Any]) -> Prospect:
    return prospect(left, right, images, adapted=ADAPTED in settings)


def _without_figure(left: Component, right: Component, images: ImageFacts, query: PairQuery) -> Cell:
    """Return the cell of a pair without results: missing, or barred with the reason."""
    forecast = _prospect(left, right, images, query.settings)
    settings: dict[str, Any] = query.settings | {"own": right.is_own(left)}
    return Cell(
        left.reference,
        right.reference,
        forecast.report.wiring,
        forecast.report.promise,
        "none",
        common=forecast.common,
        settings=settings if forecast.reason else settings | {STATE: "missing"},
        findings=notes_of(forecast, settings, figures=False),
        reason=forecast.reason or MISSING,
    )
