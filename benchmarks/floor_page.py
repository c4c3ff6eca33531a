"""The page of the floor: the table of rows, and the figures that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
from contest import machine
from floor import ROWS, Figure, Row

KEPT = Path(__file__).parents[1] / "docs" / "results" / "floor.json"
HEADER = ("row", "work", "rival", "goal", "measured", "met", "kept")


def table(rows: list[Row], measured: dict[str, Figure], kept: dict[str, Figure]) -> list[str]:
    """Return the lines of the table of rows that were measured."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    for row in rows:
        figure = measured[row.key]
        met = "yes" if figure.median <= row.goal else "**no**"
        before = _text(row, kept[row.key]) if row.key in kept else ""
        cells = (row.key, row.work, row.rival, _amount(row, row.goal), _text(row, figure), met, before)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(row: Row, figure: Figure) -> str:
    return f"{_amount(row, figure.median)} [{figure.low:.3g}, {figure.high:.3g}]"


def _amount(row: Row, value: float) -> str:
    return f"{value:+.3g} {row.unit}" if row.unit in ("us", "ms") else f"{value:.3g}"


def kept() -> dict[str, Figure]:
    """Return the kept figures by row."""
    figures = [Figure(**figure) for figure in json.loads(KEPT.read_text())] if KEPT.exists() else []
    return {figure.key: figure for figure in figures}


def keep(figures: dict[str, Figure]) -> None:
    """Write figures to ``floor.json`` and their table to ``floor.md``, beside the kept ones of other rows."""
    figures = {**kept(), **figures}
    rows = [row for row in ROWS if row.key in figures]
    KEPT.write_text(json.dumps([attrs.asdict(figures[row.key]) for row in rows], indent=1) + "\n")
    lines = ["# Speed against the floor", "", "    python -m benchmarks --keep", "", machine(), ""]
    lines += [line.rsplit(" | ", 1)[0] + " |" for line in table(rows, figures, {})]
    days = {(figures[row.key].date, figures[row.key].load) for row in rows}
    loads = ", ".join(f"{load:g}" for _, load in sorted(days))
    lines += ["", f"Medians and quartiles of the rounds; load of the machine: {loads}.", ""]
    lines += [f"- **{row.key}**: {row.why}" for row in rows if row.why]
    if missing := [row.key for row in ROWS if row.key not in figures and row.needs]:
        lines += ["", f"Not measured yet, as no machine had a GPU: {', '.join(missing)}."]
    KEPT.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")
