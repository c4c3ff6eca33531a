"""Figures of metrics of all pairs of a matrix: kept as evidence, just measured, or without a figure."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.components.matrices.recorded import Between, Pair, PairQuery
from compatkit.contracts.evidence import Cell
from compatkit.contracts.metric_figures import MetricFigure, distinct
from compatkit.errors import FormatError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Settings
from compatkit.evaluation.metric_records import keep_metrics, read_metrics, stale
from compatkit.evaluation.records import Cells
from compatkit.registry.evidence import StoredResult
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.evaluation.pair_metrics import PairMetric

MISSING = "nothing is recorded under these conditions; use fill to measure it"
Figures = tuple[MetricFigure, ...]


@attrs.define(eq=False)
class MatrixMetrics:
    """Figures by pair and metric.

    Attributes:
        asked: Metrics, in the order of their columns.
        settings: Settings of the key, by pair and key of the metric.
        figures: Figures by pair and key of the metric; absent if there are none.
        states: ``measured``, ``stale`` or ``missing``, by pair and key of the metric.
        parts: Extractor and head of each pair.
        done: What this call measured.
    """

    asked: Sequence[PairMetric]
    settings: dict[tuple[Pair, str], Settings] = attrs.field(factory=dict)
    figures: dict[tuple[Pair, str], Figures] = attrs.field(factory=dict)
    states: dict[tuple[Pair, str], str] = attrs.field(factory=dict)
    parts: dict[Pair, tuple[Component, Component]] = attrs.field(factory=dict)
    done: set[tuple[Pair, str]] = attrs.field(factory=set)

    @classmethod
    def recorded(
        cls,
        store: Store,
        asked: Sequence[PairMetric],
        extractors: Sequence[Component],
        heads: Sequence[Component],
        images: Mapping[str, ImageFacts],
        conditions: Conditions,
        *,
        bounds: Mapping[str, Component],
        between: Between,
    ) -> MatrixMetrics:
        """Return the figures that are kept as evidence; damaged ones are left out with a warning.

        Args:
            store: Store of the registry.
            asked: Metrics.
            extractors: Rows of the matrix.
            heads: Columns of the matrix.
            images: Images by reference of the extractor.
            conditions: Conditions of all cells.
            bounds: The extractor's own head, by reference of the extractor.
            between: Function digest and description of each adapter of a pair.
        """
        found, cells = cls(asked), Cells()
        if not asked:
            return found
        results: dict[Pair, list[StoredResult]] = {}
        functions = [part.function for part in extractors], [part.function for part in heads]
        for result in store.evidence.results(*functions):
            if not result.error:  # those of the accuracies are reported there
                results.setdefault((result.extractor, result.head), []).append(result)
        for extractor in extractors:
            own, facts = bounds.get(extractor.reference), images[extractor.reference]
            for head in heads:
                pair = extractor.reference, head.reference
                found.parts[pair] = extractor, head
                for metric in asked:
                    settings = metric.conditions(
                        conditions, facts, extractor, head, own, between.get(pair, ())
                    )
                    found.settings[pair, metric.key] = settings
                    same = results.get((extractor.function, head.function), ())
                    found._look_up(
                        pair,
                        metric,
                        [each for each in same if each.settings.get("metric") == metric.key],
                        cells,
                    )
        cells.warn(stacklevel=5)
        return found

    def _look_up(self, pair: Pair, metric: PairMetric, results: Sequence[StoredResult], cells: Cells) -> None:
        query, place = PairQuery(self.settings[pair, metric.key], cells), (pair, metric.key)
        self.states[place] = "missing"
        for result in reversed(results):
            try:
                reason = query.match(result)
                if reason is None or (reason and self.states[place] != "missing"):
                    continue
                version = result.conditions["metric_version"]
                measured_by = f"{metric.offer.distribution or 'unknown'} {version}".strip()
                figures = read_metrics(result.figures, metric, measured_by)
            except FormatError as error:
                cells.leave_out(*pair, error)
                continue
            self.figures[place] = stale(figures, reason) if reason else figures
            self.states[place] = "stale" if reason else "measured"
            if not reason:
                return

    def wanted(self, pair: Pair, states: Collection[str]) -> list[PairMetric]:
        """Return the metrics of a pair to measure.

        Args:
            pair: References of extractor and head.
            states: States to measure.
        """
        return [metric for metric in self.asked if self.states.get((pair, metric.key)) in states]

    def take(self, cell: Cell, measured: Sequence[PairMetric]) -> None:
        """Store the figures of a cell that has just run.

        Args:
            cell: The cell.
            measured: Metrics that were to be measured on it.
        """
        pair = cell.extractor, cell.head
        for metric in measured:
            figures = tuple(
                figure
                for figure in cell.metrics
                if (figure.metric, figure.plugin) == (metric.label, metric.plugin)
            )
            failed = not figures or any(figure.status == "failed" for figure in figures)
            if figures and not (failed and self.states[pair, metric.key] == "stale"):
                self.figures[pair, metric.key] = figures
                self.states[pair, metric.key] = "failed" if failed else "measured"
            if not failed:
                self.done.add((pair, metric.key))

    def lose(self, pair: Pair, reason: str) -> None:
        """Note why missing figures of a pair could not be measured; stale ones stay.

        Args:
            pair: References of extractor and head.
            reason: Why the pair could not run.
        """
        for metric in self.wanted(pair, ("missing",)):
            self.figures[pair, metric.key] = metric.without_figure("missing", reason)

    def keep(self, store: Store, cell: Cell, measured: Sequence[PairMetric]) -> bool:
        """Record the figures of a cell that has just run; return whether that worked.

        Args:
            store: Store of the registry.
            cell: The cell.
            measured: Metrics that were measured on it.
        """
        pair = cell.extractor, cell.head
        keyed = [(metric, self.settings[pair, metric.key]) for metric in measured]
        return not keyed or keep_metrics(store, cell, self.parts[pair], keyed)

    def of(self, pair: Pair) -> Figures:
        """Return the figures of a cell, in the order of the metrics."""
        return distinct(
            figure
            for metric in self.asked
            for figure in self.figures.get((pair, metric.key)) or metric.without_figure("missing", MISSING)
        )

    def counts(self, pairs: Collection[Pair]) -> dict[str, int]:
        """Return the numbers of figures of metrics, by state: one for each pair and metric.

        Args:
            pairs: Pairs of the matrix that have or may have figures.
        """
        places = [(pair, metric.key) for pair in pairs for metric in self.asked]
        states = Counter(self.states.get(place, "missing") for place in places)
        now = sum(place in self.done for place in places)
        counts = {"taken": states["measured"] - now, "measured": now}
        return counts | {name: states[name] for name in ("stale", "missing", "failed") if states[name]}

    def warn(self, *, stacklevel: int) -> None:
        """Warn once for each metric that failed."""
        for metric in self.asked:
            failed = [
                pair for (pair, key), state in self.states.items() if key == metric.key and state == "failed"
            ]
            if failed:
                reason = self.figures[failed[0], metric.key][0].reason
                warnings.warn(
                    f"The metric {metric.label} has no figure of {len(failed):,} "
                    f"pair{'' if len(failed) == 1 else 's'}, such as {' with '.join(failed[0])}: {reason}",
                    stacklevel=stacklevel,
                )
