"""Figures of metric plugins for a pair, as plain values beside the accuracies of its cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

MetricStatus = Literal["ok", "approximate", "degenerate", "undefined", "stale", "missing", "failed"]
MetricDirection = Literal["higher", "lower", "none"]


@attrs.frozen
class MetricFigure:
    """One number that a metric gives for a pair, or why there is none.

    Attributes:
        name: Name of the result, unique in its cell; a figure of a table adds its names along the axes:
            ``leep[logits, as given]``.
        metric: Metric as it was asked for: ``accuracy``, or with settings ``accuracy(top=5)``.
        value: Measured value; None if there is none.
        status: That of the result. ``stale``: measured, but the metric's distribution, the images or the own head have
            changed since. ``missing``: not measured yet. ``failed``: the metric cannot measure this pair.
        reason: Why the status is not ``ok``, else empty.
        unit: ``"1"`` for a share or a ratio, ``"nats"``, ...
        direction: Which values are better.
        estimator: Kind of estimate.
        count: Number of images it was computed from.
        plugin: Distribution of the metric and its version.
    """

    name: str
    metric: str
    value: float | None = None
    status: MetricStatus = "ok"
    reason: str = ""
    unit: str = ""
    direction: MetricDirection = "none"
    estimator: str = ""
    count: int = 0
    plugin: str = ""


def distinct(figures: Iterable[MetricFigure]) -> tuple[MetricFigure, ...]:
    """Return the figures of a cell; a name that another metric has already is followed by its metric.

    Args:
        figures: Figures of all metrics, in the order of the metrics.
    """
    seen: dict[str, MetricFigure] = {}
    for figure in figures:
        name = (
            figure.name if figure.name not in seen else f"{figure.name} ({figure.metric} of {figure.plugin})"
        )
        seen[name] = attrs.evolve(figure, name=name)
    return tuple(seen.values())
