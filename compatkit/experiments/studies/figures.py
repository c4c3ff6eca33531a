"""Draw the figure of a study: measures by arm, with bars for means, lines for deviations and a dot per seed."""

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
LETTERS_PER_INCH = 12
"""Letters of a title per inch."""
MAX_WIDTH = 14.0
"""Width in inches at most; wider figures are split into rows of panels."""
COLORS = ("#8a8f98", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colors of the arms in order, distinct with red-green color blindness."""


def draw(results: Results, folder: Path) -> list[str]:
    """Write all figures of a study.

    Args:
        results: Results of all runs.
        folder: Folder to write to.

    Returns:
        Names of the files; none if no run measured anything.

    Raises:
        EnvironmentFailure: The folder cannot be written.
    """
    if not results.measures:
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
    columns = min(max(1, int(MAX_WIDTH / wide)), max(1, len(measures)))
    rows = max(1, math.ceil(len(measures) / columns))
    figure = Figure(figsize=(wide * columns, 2.7 * rows + 0.6), dpi=DPI, layout="constrained")
    first: Axes | None = None  # shares use a common scale, so that panels can be compared
    places = {arm: place for place, arm in enumerate((*results.installed.study.arms, *results.own_arms))}
    for index, measure in enumerate(measures):
        share = measure.unit == "1" and _are_shares(results, measure.name)
        axes = figure.add_subplot(rows, columns, index + 1, sharey=first if share else None)
        first = axes if share else first
        for x, arm in enumerate(results.arms):
            color = COLORS[places[arm] % len(COLORS)]  # independent of the selected arms
            _bar(axes, x, results.known(arm, measure.name), color)
        axes.set_xticks(range(len(results.arms)), results.arms, rotation=30, ha="right", fontsize=8)
        axes.set_xlim(-0.6, len(results.arms) - 0.4)
        unit = "" if measure.unit == "1" else f" ({measure.unit})"
        axes.set_title(textwrap.fill(f"{measure.title}{unit}", int(LETTERS_PER_INCH * wide)), fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    count = len(results.seeds)
    seeds = "one seed" if count == 1 else f"{count} seeds; bars are means, lines standard deviations"
    title = f"Study {results.installed.number}, {results.installed.study.title}: {seeds}"
    figure.suptitle(textwrap.fill(title, int(LETTERS_PER_INCH * wide * columns)), fontsize=9)
    return figure


def _are_shares(results: Results, measure: str) -> bool:
    """Return whether all values of a measure are from 0 to 1, and at least one is over 0.1."""
    values = [value for arm in results.arms for value in results.known(arm, measure)]
    return all(0 <= value <= 1 for value in values) and max(values, default=1) > 0.1


def _bar(axes: Axes, x: int, values: list[float], color: str) -> None:
    spread = Spread.of(values)
    if spread is None:
        axes.text(x, 0, "none", ha="center", va="bottom", color=color)
        return
    axes.bar(x, spread.mean, 0.62, color=color, alpha=0.55)
    if len(values) > 1:
        axes.errorbar(x, spread.mean, spread.deviation, color="#222222", capsize=3, linewidth=1)
        shifts = [0.16 * (2 * i / (len(values) - 1) - 1) for i in range(len(values))]
        axes.plot([x + shift for shift in shifts], values, "o", color=color, markersize=3)
