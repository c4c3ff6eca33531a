"""Differences of metrics of pairs between two matrices; without intervals, as a metric gives one figure a pair."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.reports.wording import visible

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.metric_figures import MetricFigure

SAME_IMAGES = ("data_digest", "images", "sample")
"""Settings that must be equal for a difference to mean anything."""
SAME_METRIC = ("metric", "plugin", "unit", "estimator", "count")
"""Attributes of both figures that must be equal for a difference to mean anything."""
UNUSABLE = ("stale", "missing", "failed")


@attrs.frozen
class MetricChange:
    """One figure of a metric of a pair in two matrices.

    Attributes:
        name: Name of the figure.
        before: Value in the earlier matrix; None if there is none.
        after: Value in the later matrix.
        difference: After minus before; None if they cannot be compared.
        reason: Why not, else empty.
        unit: ``"1"``, ``"nats"``, ...
        direction: Which values are better: ``higher``, ``lower`` or ``none``.
    """

    name: str
    before: float | None
    after: float | None
    difference: float | None
    reason: str
    unit: str
    direction: str

    @classmethod
    def of(
        cls, name: str, before: MetricFigure | None, after: MetricFigure | None, reason: str
    ) -> MetricChange:
        """Compare two figures of one name.

        Args:
            name: Name of the figure.
            before: Earlier figure, or None.
            after: Later figure, or None.
            reason: Why the cells cannot be compared, else empty.
        """
        old, new = (None if one is None or one.status in UNUSABLE else one.value for one in (before, after))
        if old is None or new is None:
            which = "neither" if old is new else "only the later" if old is None else "only the earlier"
            reason = f"measured in {which} matrix"
        elif before is not None and after is not None and not reason:
            other = [key for key in SAME_METRIC if getattr(before, key) != getattr(after, key)]
            reason = f"measured with another {' and '.join(other)}" if other else ""
        difference = None if reason or old is None or new is None else new - old
        known = after if after is not None else before
        unit, direction = ("1", "none") if known is None else (known.unit, known.direction)
        return cls(name, old, new, difference, reason, unit, direction)

    def text(self) -> str:
        """Return both values and the difference in one line."""
        values = " to ".join(
            "none" if value is None else f"{value:.4g}" for value in (self.before, self.after)
        )
        unit = f" {visible(self.unit)}" if self.unit != "1" else ""
        better = f", {self.direction} is better" if self.direction != "none" else ""
        if self.difference is None:
            return f"{values}{unit}; not compared: {self.reason}"
        return f"{values}{unit}, difference {self.difference:+.4g}{better}"

    def row(self) -> dict[str, Any]:
        """Return the columns of a table."""
        values = {"before": self.before, "after": self.after, "difference": self.difference}
        return {f"metric_{self.name}_{key}": value for key, value in values.items()}


def metric_changes(before: Cell | None, after: Cell | None) -> tuple[MetricChange, ...]:
    """Return the change of each figure of metrics of a pair.

    Args:
        before: Earlier cell, or None.
        after: Later cell, or None.
    """
    old, new = (
        {one.name: one for one in cell.metrics} if cell is not None else {} for cell in (before, after)
    )
    reason = ""
    if before is not None and after is not None:
        other = any(before.settings.get(name) != after.settings.get(name) for name in SAME_IMAGES)
        reason = "measured on other images" if other else ""
    return tuple(MetricChange.of(name, old.get(name), new.get(name), reason) for name in {**new, **old})


def conclusion(changes: Iterable[MetricChange]) -> str:
    """Return a sentence for each metric with the spread of its differences; empty without any."""
    compared: dict[str, list[float]] = {}
    for change in changes:
        if change.difference is not None:
            compared.setdefault(change.name, []).append(change.difference)
    sentences = [
        f"{visible(name)} changed by {median(values):+.4g} (median of {len(values):,} "
        f"pair{'s' * (len(values) != 1)}; {min(values):+.4g} to {max(values):+.4g})."
        for name, values in compared.items()
    ]
    note = "Metrics have no intervals, so whether accident explains a difference is not said."
    return " ".join([*sentences, note]) if sentences else ""
