"""Draw similarity maps of the layers of two networks as a PNG and as a page."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from compatkit.errors import DataError
from compatkit.reports.drawing import (
    BACKGROUND,
    EMPTY_COLOR,
    FONT,
    MUTED_COLOR,
    TEXT_COLOR,
    draw_text,
    png,
    printable,
    shade,
)
from compatkit.reports.page import content_policy, templates
from compatkit.reports.wording import setting_name, setting_text, two_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 160
CELL_SIDE, LETTER_WIDTH = 0.34, 0.065
"""Side of a cell and mean width of a letter, in inches."""
MIN_COLUMNS = 5
"""Minimal width of a map in cells, so that its title fits."""
GROUP_COLOR = "#c2410c"
MAX_NAME_LENGTH = 18
Values = NDArray[np.floating[Any]]


@attrs.frozen(eq=False)
class LayerMaps:
    """Similarities of the layers of two networks, from 0 to 1; values outside are shaded like the nearest end.

    Attributes:
        maps: Similarities ``(rows, columns)`` by title, NaN if undefined.
        rows: Layers of the first network.
        columns: Layers of the second network.
        row_groups: Part of the network of each row, or empty; a line is drawn between two parts.
        column_groups: Part of the network of each column, or empty.
        networks: Names of the two networks.
        notes: Warnings by title, one per cell, row by row; empty for a sound value.
        about: Conditions of the measurement, for the page.
        across: Number of maps side by side in the picture.

    Raises:
        DataError: Shapes or counts do not agree.
    """

    maps: Mapping[str, Values]
    rows: Sequence[str]
    columns: Sequence[str]
    row_groups: Sequence[str] = ()
    column_groups: Sequence[str] = ()
    networks: tuple[str, str] = ("this", "other")
    notes: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    about: Mapping[str, Any] = attrs.field(factory=dict)
    across: int = 3

    def __attrs_post_init__(self) -> None:
        expected = len(self.rows), len(self.columns)
        shapes = {title: np.shape(values) for title, values in self.maps.items()}
        groups = (len(self.row_groups) or expected[0], len(self.column_groups) or expected[1])
        if not shapes or set(shapes.values()) != {expected} or groups != expected or 0 in expected:
            raise DataError(
                f"Expected maps of {expected[0]} x {expected[1]} layers with a group for each layer or none; got "
                f"{shapes} and {groups[0]} x {groups[1]} groups."
            )

    def to_png(self) -> bytes:
        """Return the maps as PNG; equal maps give equal bytes."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        rows, columns = ([printable(_short(name)) for name in side] for side in (self.rows, self.columns))
        width = CELL_SIDE * max(MIN_COLUMNS, len(columns)) + LETTER_WIDTH * max(map(len, rows)) + 0.5
        height = CELL_SIDE * len(rows) + LETTER_WIDTH * max(map(len, columns)) + 0.7
        across = max(1, min(self.across, len(self.maps)))
        if len(self.maps) > across and len(self.maps) % across == 1:
            across = max(2, across - 1)  # four maps as two rows of two
        down = math.ceil(len(self.maps) / across)
        size = across * width, down * height + 0.3
        figure = Figure(figsize=size, dpi=DPI, facecolor=BACKGROUND, layout="compressed")
        grid = figure.subplots(down, across, squeeze=False).flatten()
        text: dict[str, Any] = {"fontsize": 6.5, "family": FONT, "color": TEXT_COLOR, "parse_math": False}
        for axes in grid[len(self.maps) :]:
            axes.set_axis_off()
        for axes, (title, values) in zip(grid, self.maps.items(), strict=False):
            _draw(axes, values)
            _draw_groups(axes, self.row_groups, self.column_groups)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_yticks(range(len(rows)), rows, **text)
            axes.set_xticks(range(len(columns)), columns, rotation=90, **text)
            pad = 16 if _boundaries(self.column_groups) else 6
            axes.set_title(
                printable(title), loc="left", pad=pad, **{**text, "fontsize": 8.5, "weight": "bold"}
            )
        scale = ScalarMappable(cmap=ListedColormap([shade(step / 255)[0] for step in range(256)]))
        bar = figure.colorbar(scale, ax=list(grid), shrink=0.6, aspect=30, pad=0.02)
        bar.ax.tick_params(labelsize=6.5, colors=MUTED_COLOR)
        bar.outline.set_visible(False)
        names = printable(f"rows: {self.networks[0]}; columns: {self.networks[1]}")
        figure.supxlabel(names, x=0.02, ha="left", **{**text, "fontsize": 7, "color": MUTED_COLOR})
        return png(figure, "Similarity of layers", tight=True)

    def to_html(self) -> str:
        """Return one HTML page without requests and scripts: the picture, and tables with the notes."""
        style = templates().get_template("layer_maps_style.html.j2").render()
        tables = []
        for title, values in self.maps.items():
            notes = np.reshape(self.notes.get(title, ("",) * values.size), values.shape).tolist()
            texts = (
                [(two_digits(value), note) for value, note in zip(*row, strict=True)]
                for row in zip(values.tolist(), notes, strict=True)
            )
            tables.append((title, list(zip(self.rows, texts, strict=True))))
        return (
            templates()
            .get_template("layer_maps.html.j2")
            .render(
                style=Markup(style),
                policy=content_policy(style, "img-src data:"),
                picture=base64.b64encode(self.to_png()).decode(),
                titles=list(self.maps),
                maps=tables,
                columns=self.columns,
                networks=self.networks,
                about=[(setting_name(name), setting_text(value)) for name, value in self.about.items()],
            )
        )


def _short(name: str) -> str:
    """Return the end of a long name; names of neighboring layers begin alike."""
    return name if len(name) <= MAX_NAME_LENGTH else f"…{name[1 - MAX_NAME_LENGTH :]}"


def _boundaries(groups: Sequence[str]) -> list[int]:
    """Return the indices of the first layer of each group, without the first group."""
    return [index for index in range(1, len(groups)) if groups[index] != groups[index - 1]]


def _draw(axes: Axes, values: Values) -> None:
    from matplotlib.colors import to_rgb

    colors = [
        [(EMPTY_COLOR, MUTED_COLOR) if math.isnan(value) else shade(value) for value in row]
        for row in values.tolist()
    ]
    axes.imshow([[to_rgb(fill) for fill, _ in row] for row in colors], interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        draw_text(axes, column, row, two_digits(float(value)).replace("0.", "."), 5.5, colors[row][column][1])


def _draw_groups(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a line between two parts of a network, and the names of the parts."""
    for index in _boundaries(rows):
        axes.axhline(index - 0.5, color=GROUP_COLOR, linewidth=1.2)
    for index in _boundaries(columns):
        axes.axvline(index - 0.5, color=GROUP_COLOR, linewidth=1.2)
    for groups, across in ((rows, False), (columns, True)):
        start = 0
        for name, members in groupby(groups) if _boundaries(groups) else ():
            count = len(list(members))
            middle, start = start + (count - 1) / 2, start + count
            x, y = (middle, -0.8) if across else (axes.get_xlim()[1] + 0.3, middle)
            draw_text(axes, x, y, printable(_short(name)), 6.5, GROUP_COLOR, rotation=0 if across else 90)
