"""Compare two matrices pair by pair: what got better or worse, and by how much."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.foundation.display import Shown, aligned, visible
from compatkit.reports.changes import ComparedPairs, PairChange, measured
from compatkit.reports.tabular import Tabular
from compatkit.reports.wording import setting_name, setting_text, signed
from compatkit.reports.writing import json_text, write, write_optional

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Part
    from compatkit.reports.grid import CellGrid

SCHEMA = 1
SHOWN = 10
"""Number of changed pairs in a printed table."""


@attrs.frozen(repr=False, eq=False)
class Comparison(Shown, ComparedPairs, Tabular):
    """Two matrices, pair by pair, with tables, JSON and a page; ``ComparedPairs`` has the attributes."""

    _columns = (
        "extractor",
        "head",
        "own",
        "change",
        "accuracy_before",
        "accuracy_after",
        "difference",
        "difference_low",
        "difference_high",
        "count_before",
        "count_after",
        "conditions",
    )

    def _grid(self) -> tuple[str, str, str]:
        return ("extractor", "head", "difference")

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {**_row(pair), **{name: value for change in pair.metrics for name, value in change.row().items()}}
            for pair in self.pairs
        ]

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page and return its path.

        Args:
            path: Path of the file.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.comparison_page import render

        return write(path, render(self))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the comparison as JSON; also write it if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        value = {
            "schema": SCHEMA,
            "kind": "matrix-comparison",
            "conclusion": self.conclusion(),
            "counts": self.counts(),
            "versions": dict(self.versions),
            "pairs": [
                {
                    **_row(pair),
                    "conditions": {name: [old, new] for name, old, new in pair.conditions},
                    "metrics": [attrs.asdict(change) for change in pair.metrics],
                }
                for pair in self.pairs
            ],
        }
        return write_optional(json_text(value), path)

    def __str__(self) -> str:
        changed = sorted(
            (pair for pair in self.pairs if pair.change in ("better", "worse")),
            key=lambda pair: -abs(pair.difference or 0.0),
        )
        if not changed:
            return self.conclusion()
        table = [("extractor", "head", "change", "accuracy", "difference")]
        table += [
            (
                visible(pair.extractor),
                visible(pair.head),
                pair.change,
                pair.accuracies(),
                signed(pair.difference or 0.0),
            )
            for pair in changed[:SHOWN]
        ]
        more = [f"and {len(changed) - SHOWN:,} more"] if len(changed) > SHOWN else []
        return "\n".join([self.conclusion(), "", *aligned(table), *more])


def compare(before: CellGrid, after: CellGrid) -> Comparison:
    """Return the comparison of two matrices; see ``Matrix.compare``."""
    sides = [_matched(before.extractors, after.extractors), _matched(before.heads, after.heads)]
    pairs = [
        PairChange.of(
            row.reference, column.reference, before.find(*_both(old, older)), after.find(*_both(new, newer))
        )
        for (row, old, new), (column, older, newer) in product(*sides)
    ]
    versions = {
        new: old
        for side in sides
        for _, old, new in side
        if old is not None and new is not None and old != new
    }
    rows, columns = (tuple(part for part, _, _ in side) for side in sides)
    return Comparison(rows, columns, tuple(pairs), versions)


def _both(extractor: str | None, head: str | None) -> tuple[str, str]:
    return extractor or "", head or ""  # no reference is empty


def _matched(before: Sequence[Part], after: Sequence[Part]) -> list[tuple[Part, str | None, str | None]]:
    """Return each part with its references in the earlier and the later matrix."""
    left = {part.reference for part in before}

    def by_name(parts: Sequence[Part]) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for part in parts:
            names.setdefault(part.reference.rpartition("@")[0], []).append(part.reference)
        return names

    old_names, new_names = by_name(before), by_name(after)
    result: list[tuple[Part, str | None, str | None]] = []
    for part in after:
        name = part.reference.rpartition("@")[0]
        same = old_names.get(name, [])
        alone = name and len(same) == len(new_names[name]) == 1
        old = part.reference if part.reference in left else same[0] if alone else None
        result.append((part, old, part.reference))
    used = {old for _, old, _ in result}
    return result + [(part, part.reference, None) for part in before if part.reference not in used]


def _row(pair: PairChange) -> dict[str, Any]:
    old, new = measured(pair.before), measured(pair.after)
    low, high = pair.interval or (None, None)
    return {
        "extractor": pair.extractor,
        "head": pair.head,
        "own": pair.own,
        "change": pair.change,
        "accuracy_before": old and old.accuracy,
        "accuracy_after": new and new.accuracy,
        "difference": pair.difference,
        "difference_low": low,
        "difference_high": high,
        "count_before": old and old.count,
        "count_after": new and new.count,
        "conditions": "; ".join(
            f"{setting_name(name)}: {setting_text(old)} to {setting_text(new)}"
            for name, old, new in pair.conditions
        ),
    }
