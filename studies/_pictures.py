"""Pictures of weights: kept as small whole numbers in a run's line, drawn as rows of arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = Sequence[Sequence[int]]
DEEPEST = 127


def kept(values: Any, size: tuple[int, int]) -> list[list[int]]:
    """Return numbers as a picture of whole numbers, -127 to 127, the largest positive.

    Args:
        values: As many numbers as pixels; their sign means nothing, as that of a singular vector.
        size: Height and width.
    """
    array = np.asarray(values, dtype=np.float64).reshape(size)
    largest = array.flat[np.abs(array).argmax()] or 1.0
    return np.rint(array / largest * DEEPEST).astype(int).tolist()


def grid(title: str, rows: Mapping[str, Sequence[Picture]], above: Sequence[str]) -> Figure:
    """Return a figure with one row of pictures for each name; zero is grey.

    Args:
        title: Above all.
        rows: Pictures by the name of the row.
        above: What stands above each column.
    """
    from matplotlib.figure import Figure

    columns = max((len(one) for one in rows.values()), default=1)
    figure = Figure(figsize=(0.85 * columns + 1.2, 0.95 * len(rows) + 0.7), layout="constrained")
    figure.suptitle(title, fontsize=9)
    for row, (name, pictures) in enumerate(rows.items()):
        for column, picture in enumerate(pictures):
            axes = figure.add_subplot(len(rows), columns, row * columns + column + 1)
            axes.imshow(np.asarray(picture), cmap="gray", vmin=-DEEPEST, vmax=DEEPEST)
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name, fontsize=9)
            if row == 0 and column < len(above):
                axes.set_title(above[column], fontsize=7)
    return figure
