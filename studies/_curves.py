"""Accuracy along a row of stages, such as steps: means as lines, each seed faint behind them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from statistics import mean

from compatkit.pictures import COLOURS, MARKS
from compatkit.studies import Results

Rows = Sequence[Sequence[float | None]]
"""One a seed, with a value for each stage."""
WIDTH = 6.4
"""Inches; more where stages would stand on each other."""


def along_measures(
    results: Results,
    measures: Sequence[str],
    ticks: Sequence[str],
    title: str,
    height: str = "accuracy on the target's test images",
) -> bytes:
    """Return a picture of some measures in a row as PNG, a line an arm; nothing is drawn where there is no value.

    Args:
        results: Of the study.
        measures: In the order of the row, from 0 to 1 each.
        ticks: What each is called below the picture.
        title: Below those.
        height: What is drawn upwards.
    """
    lines = {
        arm: list(zip(*(results.values(arm, one) for one in measures), strict=True)) for arm in results.arms
    }
    return _drawn(lines, ticks, title, height)


def along_arms(
    results: Results,
    arms: Sequence[str],
    measures: Mapping[str, str],
    title: str,
    *,
    ticks: Mapping[str, str] | None = None,
    across: Mapping[str, float] | None = None,
) -> bytes:
    """Return a picture of some arms in a row as PNG, a line a measure, from 0 up.

    Args:
        results: Of the study; arms that were not run are left out.
        arms: In the order of the row.
        measures: What each is called in the picture, by name.
        title: Below the picture.
        ticks: What arms are called below the picture, where not as they are.
        across: Levels to compare with, by what they are called.
    """
    made = [one for one in arms if one in results.arms]
    lines = {
        called: list(zip(*(results.values(arm, name) for arm in made), strict=True))
        for name, called in measures.items()
    }
    shown = [(ticks or {}).get(one, one) for one in made]
    return _drawn(lines, shown, title, "accuracy on test images", across or {}, bottom=0.0)


def _drawn(
    lines: Mapping[str, Rows],
    ticks: Sequence[str],
    title: str,
    beside: str,
    across: Mapping[str, float] | None = None,
    bottom: float | None = None,
) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wide = max(WIDTH, 0.11 * sum(len(one) + 1 for one in ticks))
    figure = Figure(figsize=(wide, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for place, (called, rows) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        for row in rows if len(rows) > 1 else ():
            axes.plot(*_known(row), color=colour, alpha=0.25, linewidth=1)
        column = [[one for one in values if one is not None] for values in zip(*rows, strict=True)]
        line = [mean(values) if values else None for values in column]
        if not any(column):  # left out, for want of its data
            continue
        axes.plot(*_known(line), color=colour, marker=MARKS[place % len(MARKS)], label=called)
    for place, (called, level) in enumerate((across or {}).items()):
        axes.axhline(
            level, color="#222222", linewidth=1, linestyle=("--", ":", "-.")[place % 3], label=called
        )
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.2, len(ticks) - 0.8)
    axes.set_ylim(bottom=bottom)
    axes.set_xlabel(title)
    axes.set_ylabel(beside)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out, metadata={"Software": "compatkit"})
    return out.getvalue()


def _known(row: Sequence[float | None]) -> tuple[list[int], list[float]]:
    pairs = [(place, value) for place, value in enumerate(row) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]
