"""Accuracy along a row of stages, such as steps: a line an arm, the mean of its seeds, each seed faint behind it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import mean

from compatkit.pictures import COLOURS, MARKS
from compatkit.studies import Results


def curves(
    results: Results,
    measures: Sequence[str],
    ticks: Sequence[str],
    title: str,
    height: str = "accuracy on the target's test images",
) -> bytes:
    """Return a picture of some measures in a row as PNG; nothing is drawn where there is no value.

    Args:
        results: Of the study.
        measures: In the order of the row, from 0 to 1 each.
        ticks: What each is called below the picture.
        title: Below those.
        height: What is drawn upwards.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for place, arm in enumerate(results.arms):
        colour = COLOURS[place % len(COLOURS)]
        rows = [[held.get(one) for one in measures] for held in _values(results, arm)]
        for row in rows if len(rows) > 1 else ():
            axes.plot(*_known(row), color=colour, alpha=0.25, linewidth=1)
        column = [[one for one in values if one is not None] for values in zip(*rows, strict=True)]
        line = [mean(values) if values else None for values in column]
        axes.plot(*_known(line), color=colour, marker=MARKS[place % len(MARKS)], label=arm)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-0.2, len(ticks) - 0.8)
    axes.set_xlabel(title)
    axes.set_ylabel(height)
    axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    out = io.BytesIO()
    FigureCanvasAgg(figure).print_png(out, metadata={"Software": "compatkit"})
    return out.getvalue()


def _values(results: Results, arm: str) -> list[dict[str, float | None]]:
    """Return the values of an arm by measure, one mapping a seed."""
    names = [one.name for one in results.measures]
    columns = [results.values(arm, name) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _known(row: Sequence[float | None]) -> tuple[list[int], list[float]]:
    pairs = [(place, value) for place, value in enumerate(row) if value is not None]
    return [place for place, _ in pairs], [value for _, value in pairs]
