"""The results of metrics of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from compatkit.errors import UnknownName, suggest
from compatkit.evaluation.metrics import Measured, Result, Table, TableCell
from compatkit.foundation.display import Shown, aligned
from compatkit.reports.tabular import Tabular

FEW = 8
"""Most cells of a table that are printed one by one."""


@attrs.frozen(eq=False, repr=False)
class Measurement(Shown, Tabular, Mapping[str, Measured]):
    """The results of metrics of a network, by their names.

    As a table it has a row for each figure; those of tables have the names along their axes as columns.

    Attributes:
        results: By name.
        settings: The conditions of the measurement: data, layers, batch-norm policy, batch size, precision, device,
            version of torch, a digest of the order of the images.
    """

    results: Mapping[str, Measured]
    settings: Mapping[str, Any]

    _columns = ("metric", "value", "status", "reason")

    def _rows(self) -> list[Any]:
        return [row for result in self.results.values() for row in result._rows()]

    def __getitem__(self, name: str) -> Measured:
        """Return a result.

        Raises:
            UnknownName: No result has this name.
        """
        if name not in self.results:
            raise UnknownName(
                f"There is no result {name!r:.80}.{suggest(name, self.results)} Results here: "
                f"{', '.join(self.results) or 'none'}.",
                subject=name,
            )
        return self.results[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a result of this name."""
        return name in self.results

    def get(self, name: str, default: Any = None) -> Any:
        """Return a result, or ``default``."""
        return self.results.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("metric", "value", "unit", "of", "status")]
        for name, result in self.results.items():
            if isinstance(result, Table):
                rows += _of_table(name, result)
                continue
            rows.append((name, *_figure(result, result)))
        return "\n".join(aligned(rows))

    def table(self, name: str) -> Table:
        """Return a result that is a table: ``measure(...).table("retrieval").at(layer="fc", ...)``.

        Raises:
            UnknownName: No result has this name, or one that is a single figure.
        """
        if isinstance(result := self[name], Table):
            return result
        raise UnknownName(f"{name!r} is a single figure, not a table.", subject=name)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        results = {name: result.to_json() for name, result in self.results.items()}
        return {"results": results, "settings": dict(self.settings)}


def _of_table(name: str, table: Table) -> list[tuple[str, ...]]:
    """Return rows of the figures of a small table, or one with the shape of a larger."""
    if len(table.cells) > FEW or not table.cells:
        shape = " x ".join(f"{len(names):,} {axis}" for axis, names in table.axes.items())
        return [(name, f"table of {shape}", table.unit, f"{table.count:,}", "")]
    return [
        (f"{name} ({', '.join(names)})" if len(table.cells) > 1 else name, *_figure(cell, table))
        for names, cell in table
    ]


def _figure(cell: Result | TableCell, of: Measured) -> tuple[str, ...]:
    """Return value, unit, count and status as printed."""
    value = "" if cell.value is None else f"{cell.value:.4g}"
    return value, of.unit, f"{of.count:,}", f"{cell.status} {cell.reason}".strip()
