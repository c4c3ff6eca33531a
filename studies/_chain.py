"""Picture of all releases' extractors with all releases' heads, one panel per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from textwrap import wrap
from typing import Any

from compatkit.reports.pictures import png

Rows = Sequence[Mapping[str, Any]]
"""Cells of one run: ``extractor``, ``head``, ``policy`` and ``accuracy``."""
ACROSS = 5
"""Panels per row."""
LETTERS = 12
"""Letters of the title per inch."""
DARK = 0.6
"""Accuracy above which figures are printed in white."""


def means(runs: Sequence[Rows], policy: str) -> dict[tuple[str, str], float]:
    """Return the mean accuracy over runs by extractor and head.

    Args:
        runs: One per seed.
        policy: Batch-norm policy.
    """
    accuracies: dict[tuple[str, str], list[float]] = {}
    for cell in (cell for rows in runs for cell in rows if cell["policy"] == policy):
        accuracies.setdefault((cell["extractor"], cell["head"]), []).append(cell["accuracy"])
    return {pair: mean(values) for pair, values in accuracies.items()}


def chain(arms: Mapping[str, Mapping[tuple[str, str], float]], title: str) -> bytes:
    """Return a PNG with extractors as rows and heads as columns, in the order of release.

    Args:
        arms: Accuracies by arm, and by extractor and head; from ``means``.
        title: Title of the picture.
    """
    import numpy as np
    from matplotlib.figure import Figure

    across = min(ACROSS, len(arms))
    down = -(-len(arms) // across)
    figure = Figure(figsize=(0.8 + 2.1 * across, 0.7 + 2.3 * down), dpi=130, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (arm, cells) in zip(panels, arms.items(), strict=False):
        names = sorted({name for pair in cells for name in pair})
        values = np.array([[cells[row, column] for column in names] for row in names])
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1.1)
        for (row, column), value in np.ndenumerate(values):
            ink = "white" if value > DARK else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
        axes.set_xticks(range(len(names)), [name[1:] for name in names])
        axes.set_yticks(range(len(names)), [name[1:] for name in names])
        axes.tick_params(length=0, labelsize=8)
        axes.set_title(arm, fontsize=9)
    for axes in panels[len(arms) :]:
        axes.set_axis_off()
    figure.suptitle("\n".join(wrap(title, int(LETTERS * figure.get_figwidth()))), fontsize=10)
    figure.supxlabel("head of release", fontsize=9)
    figure.supylabel("extractor of release", fontsize=9)
    return png(figure)
