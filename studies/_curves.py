"""Curves of accuracy over stages such as steps: means as lines, single seeds faint behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from compatkit.experiments.studies import Results
from compatkit.reports.pictures import COLORS, MARKS, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Sequence[float | None]]
"""One row per seed, with a value per stage."""
WIDTH = 6.4
"""Width in inches; increased if stages would overlap."""


def along_measures(
    results: Results,
    measures: Sequence[str],
    ticks: Sequence[str],
    title: str,
    height: str = "accuracy on the target's test images",
    *,
    apart: bool = False,
    across: Mapping[str, float] | None = None,
) -> bytes:
    """Return a PNG of several measures in sequence, one line per arm; empty without values.

    Args:
        results: Results of the study.
        measures: Measures in order, each from 0 to 1.
        ticks: Their labels on the horizontal axis.
        title: Label of the horizontal axis.
        height: Label of the vertical axis.
        apart: Whether each arm has its own panel and scale, for arms far from each other.
        across: Reference levels by label.
    """
    lines = {
        arm: list(zip(*(results.values(arm, measure) for measure in measures), strict=True))
        for arm in results.arms
    }
    known = {
        arm: rows for arm, rows in lines.items() if any(value is not None for row in rows for value in row)
    }
    panels = {arm: {arm: rows} for arm, rows in known.items()} if apart else {"": known}
    return _drawn(panels, ticks, title, height, across)


def along_arms(
    results: Results,
    arms: Sequence[str],
    measures: Mapping[str, str],
    title: str,
    *,
    ticks: Mapping[str, str] | None = None,
    across: Mapping[str, float] | None = None,
    at: Sequence[float] | None = None,
    height: str = "accuracy on test images",
) -> bytes:
    """Return a PNG of several arms in sequence, one line per measure, with a vertical axis from 0.

    Args:
        results: Results of the study; arms that were not run are omitted.
        arms: Arms in order.
        measures: Labels by name of the measure.
        title: Label of the horizontal axis.
        ticks: Labels of arms, if not their names.
        across: Reference levels by label.
        at: Horizontal positions of the arms; None for equal spacing.
        height: Label of the vertical axis.
    """
    run_arms = [arm for arm in arms if arm in results.arms]
    lines = {
        label: list(zip(*(results.values(arm, name) for arm in run_arms), strict=True))
        for name, label in measures.items()
    }
    shown = [(ticks or {}).get(arm, arm) for arm in run_arms]
    positions = None if at is None else [at[index] for index, arm in enumerate(arms) if arm in run_arms]
    return _drawn({"": lines}, shown, title, height, across or {}, bottom=0.0, at=positions)


def panels(
    drawn: Mapping[str, Mapping[str, Rows]],
    steps: Sequence[int],
    title: str,
    *,
    height: str = "",
    same: bool = False,
    close: Sequence[str] = (),
    logs: Sequence[str] = (),
) -> bytes:
    """Return a PNG of adjacent panels, one line per arm, each with its own vertical axis from 0.

    Args:
        drawn: Values by panel and arm; an arm has the same color in all panels, and the first panel names it.
        steps: Horizontal positions of the values.
        title: Label of each panel's horizontal axis.
        height: Label of the first panel's vertical axis.
        same: Whether all panels have one vertical scale.
        close: Panels whose vertical axis does not begin at 0.
        logs: Panels with a logarithmic one.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(drawn), 3.9), dpi=130, layout="constrained")
    numbers = {
        arm: number
        for number, arm in enumerate(dict.fromkeys(arm for lines in drawn.values() for arm in lines))
    }
    first: Axes | None = None
    for column, (name, lines) in enumerate(drawn.items(), 1):
        axes = figure.add_subplot(1, len(drawn), column, sharey=first)
        first = axes if same else None
        for arm, rows in lines.items():
            _line(axes, rows, [float(step) for step in steps], numbers[arm], arm)
        if name in logs:
            axes.set_yscale("log")
        elif name not in close and not (same and column < len(drawn)):  # it fixes the top, too
            axes.set_ylim(bottom=0)
        axes.set_xlabel(title)
        axes.set_ylabel(height if column == 1 else "")
        axes.set_title(name, fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if column == 1:
            figure.legend(
                *axes.get_legend_handles_labels(),
                fontsize=8,
                frameon=False,
                loc="outside upper left",
                ncols=8,
            )
    return png(figure)


def _drawn(
    panels: Mapping[str, Mapping[str, Rows]],
    ticks: Sequence[str],
    title: str,
    beside: str,
    across: Mapping[str, float] | None = None,
    bottom: float | None = None,
    at: Sequence[float] | None = None,
) -> bytes:
    from matplotlib.figure import Figure

    positions = list(range(len(ticks))) if at is None else list(at)
    wide = max(WIDTH / min(2, len(panels)), 0.11 * sum(len(labels) + 1 for labels in ticks))
    figure = Figure(figsize=(wide * len(panels), 4.2), dpi=130, layout="constrained")
    for number, (name, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), number + 1)
        for index, (label, rows) in enumerate(lines.items()):
            _line(axes, rows, positions, number + index, label)
        for index, (label, level) in enumerate((across or {}).items()):
            style = ("--", ":", "-.")[index % 3]
            axes.axhline(level, color="#222222", linewidth=1, linestyle=style, label=label)
        axes.set_xticks(positions, ticks)
        axes.set_xlim(positions[0] - 0.2, positions[-1] + 0.2)
        axes.set_ylim(bottom=bottom)
        axes.set_xlabel(title)
        if number == 0:
            axes.set_ylabel(beside)
        if name:
            axes.set_title(name, fontsize=9)
        elif axes.get_legend_handles_labels()[0]:
            figure.legend(fontsize=8, frameon=False, loc="outside upper left", ncols=4)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return png(figure)


def _line(axes: Axes, rows: Rows, positions: Sequence[float], number: int, label: str) -> None:
    """Draw the mean over seeds, and single seeds faintly if there are several."""
    color = COLORS[number % len(COLORS)]
    for row in rows if len(rows) > 1 else ():
        axes.plot(*_known(row, positions), color=color, alpha=0.25, linewidth=1)
    columns = [[value for value in values if value is not None] for values in zip(*rows, strict=True)]
    line = [mean(values) if values else None for values in columns]
    if any(columns):
        axes.plot(*_known(line, positions), color=color, marker=MARKS[number % len(MARKS)], label=label)


def _known(row: Sequence[float | None], positions: Sequence[float]) -> tuple[list[float], list[float]]:
    pairs = [(position, value) for position, value in zip(positions, row, strict=True) if value is not None]
    return [position for position, _ in pairs], [value for _, value in pairs]
