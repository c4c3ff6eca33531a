"""Convert figures of metrics to the registry's records and back.

A record of a metric has the form of that of a cell. Its key differs in ``metric`` (distribution, name and settings) and
``metric_version`` (version of the distribution), so readers of accuracies pass it over.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from compatkit.contracts.metric_figures import MetricFigure
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError, UsageError
from compatkit.evaluation.conditions import Settings, key_of
from compatkit.evaluation.records import CLASSES, WIRING

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.pair_metrics import PairMetric
    from compatkit.registry.store import Store

KEPT = ("name", "value", "status", "reason", "unit", "direction", "estimator", "count")
"""Attributes of a figure that are stored; the others follow from the key."""


class _Figure(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: float | None
    status: str
    reason: str
    unit: str
    direction: str
    estimator: str
    count: int


class _Figures(msgspec.Struct):
    results: list[_Figure]


def keep_metrics(
    store: Store,
    cell: Cell,
    parts: tuple[Component, Component],
    measured: Sequence[tuple[PairMetric, Settings]],
) -> bool:
    """Record the figures of metrics that measured a pair; warn if the registry cannot be written.

    Args:
        store: Registry that records them.
        cell: Measured cell.
        parts: Extractor and head.
        measured: Metrics with the settings of their keys.

    Returns:
        Whether all were recorded.
    """
    where = {name: cell.settings[name] for name in ("device", "torch") if name in cell.settings}
    for metric, settings in measured:
        figures = [
            figure
            for figure in cell.metrics
            if figure.metric == metric.label and figure.plugin == metric.plugin
        ]
        if not figures or any(figure.status in ("failed", "missing", "stale") for figure in figures):
            continue
        results = [{name: getattr(figure, name) for name in KEPT} for figure in figures]
        try:
            store.evidence.add(
                *(part.function for part in parts),
                conditions=key_of(settings),
                settings={**settings, **where, CLASSES: list(cell.common), WIRING: cell.wiring},
                figures={"results": results},
                measured_as={"extractor": cell.extractor, "head": cell.head},
            )
        except (EnvironmentFailure, IntegrityError, UsageError) as error:
            warnings.warn(f"The figures of metrics are not kept as evidence: {error}", stacklevel=3)
            return False
    return True


def read_metrics(figures: Mapping[str, Any], metric: PairMetric, plugin: str) -> tuple[MetricFigure, ...]:
    """Return stored figures.

    Args:
        figures: As ``keep_metrics`` writes them.
        metric: Metric that they are of.
        plugin: Distribution and version that measured them.

    Raises:
        FormatError: A figure is missing or malformed.
    """
    try:
        read = msgspec.convert(figures, _Figures)
        found = tuple(
            msgspec.convert(
                {**msgspec.structs.asdict(figure), "metric": metric.label, "plugin": plugin}, MetricFigure
            )
            for figure in read.results
        )
    except msgspec.ValidationError as error:
        raise FormatError(f"the figures of a metric are not complete: {error}.") from error
    if not found:
        raise FormatError("the figures of a metric are not complete: there is none.")
    if bad := [each for each in found if (each.value is None) != (each.status == "undefined")]:
        raise FormatError(f"the figure {bad[0].name!r:.80} cannot be {bad[0].value} and {bad[0].status}.")
    return found


def stale(figures: Sequence[MetricFigure], reason: str) -> tuple[MetricFigure, ...]:
    """Return figures marked as stale.

    Args:
        figures: Figures measured before.
        reason: What has changed since.
    """
    return tuple(attrs.evolve(figure, status="stale", reason=reason) for figure in figures)
