"""Maps of layers by layers (similarities) as a PNG and as a page, with a line where a part of a network ends."""

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
from compatkit.reports.ink import EMPTY, FONT, INK, PAPER, QUIET, png, printable, shade, text_at
from compatkit.reports.page import policy, templates
from compatkit.reports.wording import setting_name, setting_text, two_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 160
CELL, LETTER = 0.34, 0.065
"""Inches: side of a cell, mean width of a letter of a name."""
FEWEST = 5
"""Width of a map in cells, at least: its title has to fit."""
EDGE = "#c2410c"
LETTERS = 18
Values = NDArray[np.floating[Any]]


@attrs.frozen(eq=False)
class LayerMaps:
    """Similarities of the layers of two networks, from 0 to 1; what is outside is shaded as the nearest end.

    Attributes:
        maps: ``(rows, columns)`` by title, NaN where undefined.
        rows: Layers of this network.
        columns: Layers of the other.
        row_groups: The part that each layer of this network is in; a line is drawn where it changes. Or empty.
        column_groups: The same of the other.
        networks: What the two networks are called.
        notes: By title, for each cell row by row, why it is not sound; or empty.
        about: Conditions of the measurement, for the page.
        across: Maps beside each other in the picture.

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
        wanted = len(self.rows), len(self.columns)
        shapes = {title: np.shape(values) for title, values in self.maps.items()}
        groups = (len(self.row_groups) or wanted[0], len(self.column_groups) or wanted[1])
        if not shapes or set(shapes.values()) != {wanted} or groups != wanted or 0 in wanted:
            raise DataError(
                f"Expected maps of {wanted[0]} x {wanted[1]} layers with a group for each layer or none; got {shapes} "
                f"and {groups[0]} x {groups[1]} groups."
            )

    def to_png(self) -> bytes:
        """Return the maps as a picture; equal maps give equal bytes."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        rows, columns = ([printable(_short(name)) for name in side] for side in (self.rows, self.columns))
        width = CELL * max(FEWEST, len(columns)) + LETTER * max(map(len, rows)) + 0.5
        height = CELL * len(rows) + LETTER * max(map(len, columns)) + 0.7
        across = max(1, min(self.across, len(self.maps)))
        if len(self.maps) > across and len(self.maps) % across == 1:
            across = max(2, across - 1)  # four maps as two rows of two
        down = math.ceil(len(self.maps) / across)
        size = across * width, down * height + 0.3
        figure = Figure(figsize=size, dpi=DPI, facecolor=PAPER, layout="compressed")
        grid = figure.subplots(down, across, squeeze=False).flatten()
        text: dict[str, Any] = {"fontsize": 6.5, "family": FONT, "color": INK, "parse_math": False}
        for axes in grid[len(self.maps) :]:
            axes.set_axis_off()
        for axes, (title, values) in zip(grid, self.maps.items(), strict=False):
            _draw(axes, values)
            _draw_groups(axes, self.row_groups, self.column_groups)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_yticks(range(len(rows)), rows, **text)
            axes.set_xticks(range(len(columns)), columns, rotation=90, **text)
            pad = 16 if _lines(self.column_groups) else 6
            axes.set_title(
                printable(title), loc="left", pad=pad, **{**text, "fontsize": 8.5, "weight": "bold"}
            )
        scale = ScalarMappable(cmap=ListedColormap([shade(step / 255)[0] for step in range(256)]))
        bar = figure.colorbar(scale, ax=list(grid), shrink=0.6, aspect=30, pad=0.02)
        bar.ax.tick_params(labelsize=6.5, colors=QUIET)
        bar.outline.set_visible(False)
        names = printable(f"rows: {self.networks[0]}; columns: {self.networks[1]}")
        figure.supxlabel(names, x=0.02, ha="left", **{**text, "fontsize": 7, "color": QUIET})
        return png(figure, "Similarity of layers", tight=True)

    def to_html(self) -> str:
        """Return the maps as one page that makes no requests and runs no scripts; its tables say what is not sound."""
        style = templates().get_template("layer_maps_style.html.j2").render()
        shown = []
        for title, values in self.maps.items():
            notes = np.reshape(self.notes.get(title, ("",) * values.size), values.shape).tolist()
            texts = (
                [(two_digits(value), note) for value, note in zip(*row, strict=True)]
                for row in zip(values.tolist(), notes, strict=True)
            )
            shown.append((title, list(zip(self.rows, texts, strict=True))))
        return (
            templates()
            .get_template("layer_maps.html.j2")
            .render(
                style=Markup(style),
                policy=policy(style, "img-src data:"),
                picture=base64.b64encode(self.to_png()).decode(),
                titles=list(self.maps),
                maps=shown,
                columns=self.columns,
                networks=self.networks,
                about=[(setting_name(name), setting_text(value)) for name, value in self.about.items()],
            )
        )


def _short(name: str) -> str:
    """Return the end of a long name; its beginning is that of its neighbors."""
    return name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"


def _lines(groups: Sequence[str]) -> list[int]:
    """Return the places at which another group begins, without the first."""
    return [place for place in range(1, len(groups)) if groups[place] != groups[place - 1]]


def _draw(axes: Axes, values: Values) -> None:
    from matplotlib.colors import to_rgb

    inks = [
        [(EMPTY, QUIET) if math.isnan(value) else shade(value) for value in row] for row in values.tolist()
    ]
    axes.imshow([[to_rgb(fill) for fill, _ in row] for row in inks], interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        text_at(axes, column, row, two_digits(float(value)).replace("0.", "."), 5.5, inks[row][column][1])


def _draw_groups(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a line where a part ends, and name the parts."""
    for place in _lines(rows):
        axes.axhline(place - 0.5, color=EDGE, linewidth=1.2)
    for place in _lines(columns):
        axes.axvline(place - 0.5, color=EDGE, linewidth=1.2)
    for groups, across in ((rows, False), (columns, True)):
        start = 0
        for name, members in groupby(groups) if _lines(groups) else ():
            count = len(list(members))
            middle, start = start + (count - 1) / 2, start + count
            x, y = (middle, -0.8) if across else (axes.get_xlim()[1] + 0.3, middle)
            text_at(axes, x, y, printable(_short(name)), 6.5, EDGE, rotation=0 if across else 90)
