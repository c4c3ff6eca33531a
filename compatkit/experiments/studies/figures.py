"""The figure of a study: all measures by arm, with bars for means, lines for deviations and a dot per seed."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.experiments.spread import Spread
from compatkit.experiments.studies.results import Results
from compatkit.reports.drawing import png
from compatkit.reports.writing import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
LETTERS = 12
"""Letters of a title per inch."""
WIDEST = 14.0
"""Largest width in inches; wider figures are split into rows of panels."""
COLORS = ("#8a8f98", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colors of the arms in order; distinguishable with red-green color blindness."""


def draw(results: Results, folder: Path) -> list[str]:
    """Write all pictures of a study; return the names of the files.

    Args:
        results: Of all runs.
        folder: Where to write.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    if not results.measures:  # every run was left out
        return []
    pictures: dict[str, bytes] = {"figure": png(_bars(results))}
    if results.installed.study.draw is not None:
        pictures |= results.installed.study.draw(results)
    for name, content in pictures.items():
        write(folder / f"{name}.png", content)
    return [f"{name}.png" for name in pictures]


def _bars(results: Results) -> Figure:
    """Return a figure with one panel per measure."""
    from matplotlib.figure import Figure

    measures = [measure for measure in results.measures if measure.drawn] or list(results.measures)
    wide = max(3.2, 0.55 * len(results.arms) + 1.2)
    columns = min(max(1, int(WIDEST / wide)), max(1, len(measures)))
    rows = max(1, math.ceil(len(measures) / columns))
    figure = Figure(figsize=(wide * columns, 2.7 * rows + 0.6), dpi=DPI, layout="constrained")
    first: Axes | None = None  # shares use a common scale, so that panels can be compared
    for place, measure in enumerate(measures):
        share = measure.unit == "1" and _shares(results, measure.name)
        axes = figure.add_subplot(rows, columns, place + 1, sharey=first if share else None)
        first = axes if share else first
        for at, arm in enumerate(results.arms):
            color = COLORS[
                results.installed.study.arms.index(arm) % len(COLORS)
            ]  # independent of the arms run
            _bar(axes, at, results.known(arm, measure.name), color)
        axes.set_xticks(range(len(results.arms)), results.arms, rotation=30, ha="right", fontsize=8)
        axes.set_xlim(-0.6, len(results.arms) - 0.4)
        unit = "" if measure.unit == "1" else f" ({measure.unit})"
        axes.set_title(textwrap.fill(f"{measure.title}{unit}", int(LETTERS * wide)), fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    count = len(results.seeds)
    seeds = "one seed" if count == 1 else f"{count} seeds; bars are means, lines standard deviations"
    title = f"Study {results.installed.number}, {results.installed.study.title}: {seeds}"
    figure.suptitle(textwrap.fill(title, int(LETTERS * wide * columns)), fontsize=9)
    return figure


def _shares(results: Results, measure: str) -> bool:
    """Return whether all values of a measure are from 0 to 1, and not so small that this scale would hide them."""
    values = [value for arm in results.arms for value in results.known(arm, measure)]
    return all(0 <= value <= 1 for value in values) and max(values, default=1) > 0.1


def _bar(axes: Axes, at: int, values: list[float], color: str) -> None:
    spread = Spread.of(values)
    if spread is None:
        axes.text(at, 0, "none", ha="center", va="bottom", color=color)
        return
    axes.bar(at, spread.mean, 0.62, color=color, alpha=0.55)
    if len(values) > 1:
        axes.errorbar(at, spread.mean, spread.deviation, color="#222222", capsize=3, linewidth=1)
        shifts = [0.16 * (2 * i / (len(values) - 1) - 1) for i in range(len(values))]
        axes.plot([at + shift for shift in shifts], values, "o", color=color, markersize=3)
