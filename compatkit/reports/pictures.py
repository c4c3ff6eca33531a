"""Draw results of metrics: signed weights, images with reconstructions, the information plane, loss landscapes.

The functions return PNG bytes, equal for equal values, and do not change matplotlib's global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compatkit.errors import DataError
from compatkit.reports.drawing import (
    BACKGROUND,
    COLORS,
    MARKS,
    MUTED_COLOR,
    TEXT_COLOR,
    draw_text,
    png,
    printable,
)
from compatkit.reports.layer_maps import LayerMaps as LayerMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
SIDE, GAP, TITLE = 1.0, 0.12, 0.26
"""Side of a picture, gap between two pictures, and height of a title, in inches."""
MIN_LABEL_DISTANCE = 0.04
"""Minimal distance of two labels as a share of an axis; nearer ones would overlap."""
MAX_CONTOURS = 60
"""Maximal number of contours of a landscape."""
Floats = NDArray[np.floating[Any]]


def signed(pictures: Floats, titles: Sequence[str] = (), *, columns: int = 5) -> bytes:
    """Return a PNG of weights: red above zero, blue below, white at zero, each scaled separately.

    Args:
        pictures: ``(n, height, width)``, or ``(n, channels, height, width)`` with channels drawn side by side.
        titles: Titles of the pictures, such as singular values; or none.
        columns: Number of pictures per row.

    Raises:
        DataError: The shape is wrong, a value is not finite, or the number of titles differs.
    """
    values = np.asarray(pictures, dtype=np.float64)
    if values.ndim == 4:
        values = values.transpose(0, 2, 1, 3).reshape(len(values), values.shape[2], -1)
    if values.ndim != 3 or not len(values) or (titles and len(titles) != len(values)):
        raise DataError(
            f"Expected weights (n, height, width) or (n, channels, height, width), with one title each or none; "
            f"got {np.shape(pictures)} and {len(titles)} titles."
        )
    _check_finite(values)
    across = min(columns, len(values))
    figure, add_axes = _grid(math.ceil(len(values) / across), across, values.shape[2] / values.shape[1])
    for number, picture in enumerate(values):
        limit = float(np.abs(picture).max()) or 1.0
        axes = add_axes(*divmod(number, across))
        axes.imshow(picture, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto")
        if titles:
            _title(axes, titles[number])
    return png(figure, "Singular features")


def image_grid(rows: Mapping[str, Floats], *, low: float, high: float, titles: Sequence[str] = ()) -> bytes:
    """Return a PNG with rows of images, such as inputs above their reconstructions.

    Args:
        rows: Images by row name, ``(n, channels, height, width)`` with 1 or 3 channels, in equal shapes.
        low: Pixel value of black.
        high: Pixel value of white.
        titles: Titles of the columns, such as errors; or none.

    Raises:
        DataError: The rows differ in shape, or a value is not finite.
    """
    shapes = {np.shape(images) for images in rows.values()}
    shape = next(iter(shapes), ())
    if len(shapes) != 1 or len(shape) != 4 or shape[1] not in (1, 3) or not shape[0] or not low < high:
        raise DataError(
            f"Expected rows (n, 1 or 3 channels, height, width) in equal shapes, and low below high; got {shapes}, "
            f"low={low}, high={high}."
        )
    figure, add_axes = _grid(len(rows), shape[0], shape[3] / shape[2], left=1.1)
    for row, (name, images) in enumerate(rows.items()):
        values = np.asarray(images, dtype=np.float64)
        _check_finite(values)
        scaled = ((values - low) / (high - low)).clip(0, 1)
        for column, image in enumerate(scaled.transpose(0, 2, 3, 1)):
            axes = add_axes(row, column)
            axes.imshow(np.repeat(image, 3 // shape[1], axis=2), interpolation="nearest", aspect="auto")
            if titles and not row:
                _title(axes, titles[column])
            if not column:
                options = {"transform": axes.transAxes, "ha": "right"}
                draw_text(axes, -0.08, 0.5, printable(name), 9, TEXT_COLOR, **options)
    return png(figure, "Images beside images")


def information_plane(
    arms: Mapping[str, Sequence[Floats]],
    *,
    max_information: float,
    layers: Sequence[str] = (),
    label_entropy: float = 1.0,
) -> bytes:
    """Return a PNG of the mutual information plane: I(X;T) to the right, I(T;Y) upwards, layers connected.

    Args:
        arms: Array ``(layers, 2)`` of each run, by arm: ``table.values`` of ``mutual_information_plane``. Runs of an
            arm share a color, and their mean is drawn with a thick line.
        max_information: Upper end of I(X;T) in bits: log2 of the number of patterns.
        layers: Names of the layers, drawn at the means of the first arm.
        label_entropy: Upper end of I(T;Y) in bits.

    Raises:
        DataError: Runs of an arm differ in shape, or a value is not finite.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.4), dpi=DPI, facecolor=BACKGROUND)
    axes = figure.add_axes((0.11, 0.12, 0.86, 0.84))
    for number, (name, runs) in enumerate(arms.items()):
        points = [np.asarray(run, dtype=np.float64) for run in runs]
        if not points or any(values.ndim != 2 or values.shape != (len(points[0]), 2) for values in points):
            raise DataError(
                f"Expected arrays (layers, 2) of equal shape for {name!r}; got {[values.shape for values in points]}."
            )
        _check_finite(np.stack(points))
        color, mark = COLORS[number % len(COLORS)], MARKS[number % len(MARKS)]
        for values in points if len(points) > 1 else ():
            axes.plot(values[:, 0], values[:, 1], "-", color=color, alpha=0.25, linewidth=0.8)
        mean = np.mean(points, axis=0)
        axes.plot(mean[:, 0], mean[:, 1], f"{mark}-", color=color, label=printable(name), markersize=5)
        for text, (x, y) in _labels(layers, mean, (max_information, label_entropy)) if not number else ():
            left = x > 0.96 * max_information  # right of the point, the name would exceed the picture
            axes.annotate(
                printable(text),
                (x, y),
                (-6 if left else 6, -9),
                ha="right" if left else "left",
                textcoords="offset points",
                fontsize=6,
                color=MUTED_COLOR,
            )
    axes.set_xlim(-0.03 * max_information, 1.03 * max_information)
    axes.set_ylim(-0.03 * label_entropy, 1.05 * label_entropy)
    axes.set_xlabel("I(X;T) in bits", color=TEXT_COLOR)
    axes.set_ylabel("I(T;Y) in bits", color=TEXT_COLOR)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return png(figure, "Mutual information plane")


def landscapes(grids: Mapping[str, Floats], coordinates: Sequence[float], *, step: float = 0.05) -> bytes:
    """Return a PNG of loss landscapes side by side, in one scale: equal colors and contours mean equal losses.

    Args:
        grids: Losses ``(points, points)`` by name: ``table.values[0]`` of ``loss_landscape``; NaN stays blank.
        coordinates: Coordinates along both axes, ``(points,)``.
        step: Difference in loss between two contours; doubled until there are at most 60.

    Raises:
        DataError: A grid has another shape, or no loss is finite.
    """
    from matplotlib.figure import Figure

    losses = {name: np.asarray(values, dtype=np.float64) for name, values in grids.items()}
    if not losses or any(grid.shape != (len(coordinates),) * 2 for grid in losses.values()) or not step > 0:
        raise DataError(
            f"Expected grids ({len(coordinates)}, {len(coordinates)}) and a step above 0; got "
            f"{[grid.shape for grid in losses.values()]} and {step}."
        )
    finite = np.concatenate([grid[np.isfinite(grid)] for grid in losses.values()])
    if not finite.size:
        raise DataError("Expected finite losses for a picture of a landscape, got none.")
    low, high = float(finite.min()), float(finite.max())
    while (high - low) / step > MAX_CONTOURS:
        step *= 2
    levels = np.arange(math.floor(low / step), math.ceil(high / step) + 2) * step
    width = 0.7 + 2.7 * len(losses) + 0.8
    figure = Figure(figsize=(width, 3.1), dpi=DPI, facecolor=BACKGROUND)
    filled: Any = None
    for number, (name, grid) in enumerate(losses.items()):
        axes = figure.add_axes(((0.7 + 2.7 * number) / width, 0.15, 2.4 / width, 2.4 / 3.1))
        filled = axes.contourf(coordinates, coordinates, grid.T, levels=levels, cmap="viridis")
        if low < high:
            axes.contour(
                coordinates, coordinates, grid.T, levels=levels, colors=BACKGROUND, linewidths=0.4, alpha=0.6
            )
        axes.set_title(printable(name), fontsize=9, color=TEXT_COLOR, parse_math=False)
        axes.tick_params(labelsize=6, labelleft=not number, colors=MUTED_COLOR)
        axes.plot(0, 0, "+", color=BACKGROUND, markersize=7)
    scale = figure.add_axes(((width - 0.65) / width, 0.15, 0.13 / width, 2.4 / 3.1))
    bar = figure.colorbar(filled, cax=scale)
    bar.ax.tick_params(labelsize=6, colors=MUTED_COLOR)
    draw_text(figure, 0.7 / width, 0.03, f"loss; contours every {step:g}; norms of filters", 7, MUTED_COLOR)
    return png(figure, "Loss landscapes")


def _labels(
    layers: Sequence[str], points: Floats, ends: tuple[float, float]
) -> list[tuple[str, tuple[float, float]]]:
    """Return labels with positions; consecutive layers at nearly the same position share a label."""
    labels: list[tuple[str, tuple[float, float]]] = []
    for name, (x, y) in zip(layers, points.tolist(), strict=False):
        if labels:
            names, (last_x, last_y) = labels[-1]
            if (
                abs(x - last_x) < MIN_LABEL_DISTANCE * ends[0]
                and abs(y - last_y) < MIN_LABEL_DISTANCE * ends[1]
            ):
                labels[-1] = f"{names}, {name}", (last_x, last_y)
                continue
        labels.append((name, (x, y)))
    return labels


def _grid(rows: int, columns: int, ratio: float, left: float = GAP) -> tuple[Figure, Any]:
    """Return a figure, and a function that adds axes at a row and column."""
    from matplotlib.figure import Figure

    width = left + columns * (SIDE * ratio + GAP)
    height = GAP + rows * (SIDE + TITLE)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=BACKGROUND)

    def add_axes(row: int, column: int) -> Axes:
        x, y = left + column * (SIDE * ratio + GAP), GAP + (rows - 1 - row) * (SIDE + TITLE)
        axes = figure.add_axes((x / width, y / height, SIDE * ratio / width, SIDE / height))
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color("#cfd5db")
        return axes

    return figure, add_axes


def _title(axes: Axes, text: str) -> None:
    draw_text(axes, 0.5, 1.0 + TITLE / SIDE / 2, printable(text), 8, TEXT_COLOR, transform=axes.transAxes)


def _check_finite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise DataError("Expected finite values for a picture, got NaN or infinity.")
