"""Dot plot with one row per item and one mark per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from compatkit.reports.pictures import COLORS, MARKS, png

Values = Sequence[float]
"""One value per seed; empty if not run."""
STEP = 0.12
"""Vertical offset between the marks of two methods, as a share of the row height, so that equal values stay visible."""


def rows(
    ways: Mapping[str, Mapping[str, Values]], title: str, *, across: Mapping[str, float] | None = None
) -> bytes:
    """Return a PNG: means as marks, joined within their row, single seeds faint beside them.

    Args:
        ways: Values by method and row; rows are in order of first occurrence, from the top.
        title: Label of the horizontal axis.
        across: Reference levels by label.
    """
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(row for way in ways.values() for row, values in way.items() if values))
    figure = Figure(figsize=(7.0, 1.3 + 0.5 * len(labels)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for row, label in enumerate(labels):
        means = [mean(way[label]) for way in ways.values() if way.get(label)]
        axes.plot([min(means), max(means)], [row, row], color="#c8ccd2", linewidth=2, zorder=1)
    plotted = [label for label, way in ways.items() if any(way.values())]
    for index, label in enumerate(plotted):
        way, shift = ways[label], STEP * (index - (len(plotted) - 1) / 2)
        color, mark = COLORS[index % len(COLORS)], MARKS[index % len(MARKS)]
        known = [(row, way[label]) for row, label in enumerate(labels) if way.get(label)]
        axes.plot(
            [value for _, values in known for value in values],
            [row + shift for row, values in known for _ in values],
            ".",
            color=color,
            alpha=0.4,
            zorder=2,
        )
        axes.plot(
            [mean(values) for _, values in known],
            [row + shift for row, _ in known],
            mark,
            color=color,
            markersize=7,
            label=label,
            zorder=3,
        )
    for index, (label, level) in enumerate((across or {}).items()):
        axes.axvline(level, color="#222222", linewidth=1, linestyle=("--", ":")[index % 2], label=label)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(title)
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8, frameon=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return png(figure)
