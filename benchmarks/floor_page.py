"""The page of the floor: tables of rows, the picture, and the figures that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from contest import machine
from floor import AREAS, ROWS
from floor.row import Figure, Row

from compatkit.reports.drawing import COLORS, MUTED_COLOR, png

KEPT = Path(__file__).parents[1] / "docs" / "results" / "floor.json"
PICTURE = "floor.png"
COLUMNS = ("row", "work", "rival", "goal", "measured", "met")
READING = """\
`measured`: median and quartiles over the rounds, of our time by the rival's; with a unit, of the time that ours adds;
of growth, the slope of the line through log time over log size. A row meets its goal if the median does. One row again:
`python -m benchmarks --only ROW`."""


def table(
    rows: Sequence[Row], measured: Mapping[str, Figure], kept: Mapping[str, Figure] | None = None
) -> list[str]:
    """Return the lines of the table of rows that were measured, with the kept figures if there are any."""
    columns = COLUMNS if kept is None else (*COLUMNS, "kept")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        figure = measured[row.key]
        met = "yes" if figure.median <= row.goal else "**no**"
        cells = [row.key, row.work, row.rival, _amount(row, row.goal), _text(row, figure), met]
        if kept is not None:
            cells.append(_text(row, kept[row.key]) if row.key in kept else "")
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


def keep(figures: Mapping[str, Figure]) -> None:
    """Write figures to ``floor.json``, and page and picture, beside the kept ones of other rows."""
    figures = {**kept(), **figures}
    rows = [row for row in ROWS if row.key in figures]
    met = [row for row in rows if figures[row.key].median <= row.goal]
    KEPT.write_text(json.dumps([attrs.asdict(figures[row.key]) for row in rows], indent=1) + "\n")
    KEPT.with_name(PICTURE).write_bytes(_picture(rows, figures))
    lines = [
        "# Speed against the floor",
        "",
        "    python -m benchmarks --keep",
        "",
        machine(),
        "",
        READING,
        "",
    ]
    lines += [f"**{len(met)} of {len(rows)} goals are met.**", ""]
    lines += [f"![Measured by goal, for each row; beyond the line the goal is missed]({PICTURE})", ""]
    for title, area in AREAS.items():
        measured = [row for row in area if row.key in figures]
        if measured:
            lines += [f"## {title}", "", *table(measured, figures), ""]
            reasons = [f"- **{row.key}**: {row.why}" for row in measured if row.why]
            lines += [*reasons, ""] if reasons else []
    loads = sorted({figures[row.key].load for row in rows})
    lines += [f"Load of the machine at the end of a row: {loads[0]:g} to {loads[-1]:g}.", ""]
    for why, needs in (("Not measured yet", ""), ("Not measured yet, as no machine had a GPU", "cuda")):
        if missing := [row.key for row in ROWS if row.key not in figures and row.needs == needs]:
            lines += [f"{why}: {', '.join(missing)}.", ""]
    KEPT.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")


def _picture(rows: Sequence[Row], figures: Mapping[str, Figure]) -> bytes:
    """Return a dot for each row, measured by goal on a logarithmic axis, with a line between its quartiles."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas((8, 0.6 + 0.19 * len(rows)), dpi=110, layout="constrained")
    axes = canvas.subplots()
    for place, row in enumerate(reversed(rows)):
        figure = figures[row.key]
        low, middle, high = (max(value / row.goal, 0.1) for value in (figure.low, figure.median, figure.high))
        color = COLORS[2] if figure.median <= row.goal else COLORS[1]
        axes.plot([low, high], [place, place], color=color, lw=1.5)
        axes.plot(middle, place, "o" if figure.median <= row.goal else "D", color=color, ms=4.5)
    axes.axvline(1, color=MUTED_COLOR, lw=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1 or less", "0.2", "0.5", "goal", "2 x", "5 x"])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [row.key for row in reversed(rows)], fontsize=7)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.grid(axis="x", color="#eceef1")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(
        "measured by goal: left of the line it is met (dots), right of it missed (diamonds)", fontsize=8
    )
    return png(canvas, "Speed against the floor")
