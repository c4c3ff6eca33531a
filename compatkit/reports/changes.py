"""What changed between two matrices: each pair with its interval, and a conclusion."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.evidence import PERFECT_LOSS, Cell, Figure, Part
from compatkit.foundation.display import visible
from compatkit.reports.metric_changes import MetricChange, metric_changes
from compatkit.reports.metric_changes import conclusion as metric_conclusion
from compatkit.reports.wording import figure_text, pair_count, setting_name, share, signed

Change = Literal["better", "worse", "same", "unclear", "other-images", "added", "removed", "unmeasured"]
CHANGES: tuple[Change, ...] = get_args(Change)
SAME_IMAGES = ("metric", "data_digest", "images", "sample")
"""Settings that must be equal for a difference to mean anything."""
UNIMPORTANT = ("own", "state", "device")
"""Settings that are no conditions of the figures."""
ERROR = 0.05
"""Largest share of unchanged pairs whose 95 % interval excludes 0 by accident; results on the same images are alike."""


def difference_interval(before: Figure, after: Figure) -> tuple[float, float]:
    """Return the 95 % interval of ``after.accuracy - before.accuracy``, as if of independent images.

    lower = d - sqrt((p1 - l1)^2 + (u2 - p2)^2), upper = d + sqrt((u1 - p1)^2 + (p2 - l2)^2), with d = p1 - p2 and the
    Wilson intervals (l, u) of both. On the same images, results are usually alike, and a paired interval would be
    narrower; a matrix has no results of single images.

    Source: Newcombe (1998), "Interval estimation for the difference between independent proportions", method 10.

    Args:
        before: Accuracy p2.
        after: Accuracy p1.
    """
    gain = after.accuracy - before.accuracy
    down = math.hypot(after.accuracy - after.low, before.high - before.accuracy)
    up = math.hypot(after.high - after.accuracy, before.accuracy - before.low)
    return max(-1.0, gain - down), min(1.0, gain + up)


@attrs.frozen
class PairChange:
    """One pair in two matrices.

    Attributes:
        extractor: Reference of the extractor: in the later matrix, or in the earlier one if only that has it.
        head: Reference of the head.
        change: ``better`` or ``worse``: the 95 % interval of the difference excludes 0. ``same``: it lies within one
            point. ``unclear``: neither. ``other-images``: both were measured, but on other images or classes.
            ``added`` and ``removed``: measured only later, or only before. ``unmeasured``: not measured, or stale.
        before: Cell of the earlier matrix, or None.
        after: Cell of the later matrix, or None.
        difference: Accuracy after minus before; None unless both are of the same images.
        interval: Its 95 % interval; see ``difference_interval``.
        conditions: Settings that differ: name, before, after.
        metrics: Change of each figure of metric plugins.
    """

    extractor: str
    head: str
    change: Change
    before: Cell | None = None
    after: Cell | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    conditions: tuple[tuple[str, Any, Any], ...] = ()
    metrics: tuple[MetricChange, ...] = ()

    @property
    def own(self) -> bool:
        """Whether the head was trained with this extractor."""
        cell = self.after or self.before
        return cell is not None and cell.own

    @classmethod
    def of(cls, extractor: str, head: str, before: Cell | None, after: Cell | None) -> PairChange:
        """Compare two cells.

        Args:
            extractor: Reference for display.
            head: Reference for display.
            before: Earlier cell, or None.
            after: Later cell, or None.
        """
        pair = cls._of_accuracy(extractor, head, before, after)
        return attrs.evolve(pair, metrics=metric_changes(before, after))

    @classmethod
    def _of_accuracy(cls, extractor: str, head: str, before: Cell | None, after: Cell | None) -> PairChange:
        old, new = measured(before), measured(after)
        if before is None or after is None or old is None or new is None:
            change: Change = "removed" if old else "added" if new else "unmeasured"
            return cls(extractor, head, change, before, after)
        names = sorted({*before.settings, *after.settings} - {*UNIMPORTANT})
        conditions = tuple(
            (name, before.settings.get(name), after.settings.get(name))
            for name in names
            if before.settings.get(name) != after.settings.get(name)
        )
        if before.common != after.common or any(name in SAME_IMAGES for name, _, _ in conditions):
            return cls(extractor, head, "other-images", before, after, conditions=conditions)
        low, high = difference_interval(old, new)
        if low > 0 or high < 0:
            change = "better" if low > 0 else "worse"
        else:
            change = "same" if -PERFECT_LOSS <= low and high <= PERFECT_LOSS else "unclear"
        gain = new.accuracy - old.accuracy
        return cls(extractor, head, change, before, after, gain, (low, high), conditions)

    def accuracies(self) -> str:
        """Return both accuracies as text: ``0.800 to 0.920``."""
        old, new = measured(self.before), measured(self.after)
        return " to ".join("none" if figure is None else share(figure.accuracy) for figure in (old, new))


def measured(cell: Cell | None) -> Figure | None:
    """Return the accuracy of a cell, or None if it was not measured or is stale."""
    return cell.restricted if cell is not None and cell.state == "measured" else None


@attrs.frozen(repr=False, eq=False)
class ComparedPairs:
    """Two matrices, pair by pair.

    Rows and columns are matched by reference, else by name where each matrix has it in one version.

    Attributes:
        extractors: Rows: those of the later matrix, then those that only the earlier one has.
        heads: Columns, in the same order.
        pairs: Changes, row by row.
        versions: Reference in the earlier matrix by that in the later one, where the versions differ.
    """

    extractors: tuple[Part, ...]
    heads: tuple[Part, ...]
    pairs: tuple[PairChange, ...]
    versions: Mapping[str, str] = attrs.field(factory=dict)

    def counts(self) -> dict[Change, int]:
        """Return the number of pairs by change."""
        counts = Counter(pair.change for pair in self.pairs)
        return {change: counts[change] for change in CHANGES if counts[change]}

    def conclusion(self) -> str:
        """Return what changed in a few plain sentences, with the uncertainty."""
        metrics = metric_conclusion(change for pair in self.pairs for change in pair.metrics)
        return f"{self._accuracy_conclusion()} {metrics}".rstrip()

    def _accuracy_conclusion(self) -> str:
        counts, compared = self.counts(), [pair for pair in self.pairs if pair.difference is not None]
        others = [
            f"{pair_count(counts[change])} {words}"
            for change, words in (
                ("other-images", "measured on other images or classes, so not compared"),
                ("added", "measured only in the later matrix"),
                ("removed", "measured only in the earlier matrix"),
            )
            if change in counts
        ]
        rest = f" {'; '.join(others)}." if others else ""
        if not compared:
            return f"No pair was measured on the same images in both matrices.{rest}"
        words = {
            "better": "better",
            "worse": "worse",
            "same": "the same within one point",
            "unclear": "unclear, for want of images",
        }
        found = [
            f"{counts[change]:,} {words[change]}"
            for change in CHANGES
            if change in words and change in counts
        ]
        text = f"Of {pair_count(len(compared))} measured in both: {', '.join(found)}."
        changed = sum(counts.get(change, 0) for change in ("better", "worse"))
        if changed and (expected := len(compared) * ERROR) > changed / 3:
            text += f" Up to {math.ceil(expected)} of so many would differ by accident."
        for name, pair in (
            ("gain", max(compared, key=lambda pair: pair.difference or 0.0)),
            ("loss", min(compared, key=lambda pair: pair.difference or 0.0)),
        ):
            if pair.change == ("better" if name == "gain" else "worse"):
                text += f" Largest {name}: {_sentence(pair)}."
        if conditions := sorted({name for pair in compared for name, _, _ in pair.conditions}):
            text += f" Conditions that differ: {', '.join(map(setting_name, conditions))}."
        return text + rest


def _sentence(pair: PairChange) -> str:
    low, high = pair.interval or (0.0, 0.0)
    return (
        f"{visible(pair.extractor)} with {visible(pair.head)}, {signed(pair.difference or 0.0)} "
        f"({pair.accuracies()}; 95 % interval {signed(low)} to {signed(high)})"
    )


def accuracy_rows(pair: PairChange) -> list[tuple[str, str]]:
    """Return label and text of each figure of a pair."""
    rows = [
        (label, figure_text(figure))
        for label, figure in (("Before", measured(pair.before)), ("After", measured(pair.after)))
        if figure is not None
    ]
    if pair.difference is not None and pair.interval is not None:
        low, high = map(signed, pair.interval)
        rows.append(("Difference", f"{signed(pair.difference)}, 95 % interval {low} to {high}"))
    return rows + [(visible(change.name), change.text()) for change in pair.metrics]
