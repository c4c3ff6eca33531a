"""Maps of layers by layers (similarities) as a PNG and as a page, with a line where a part of a network ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from compatkit.errors import DataError
from compatkit.reports.ink import INK, PAPER, QUIET, png, printable, shade, text_at
from compatkit.reports.page import LEVELS, style_policy, templates
from compatkit.reports.wording import setting_name, setting_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 160
CELL, GAP, LETTER = 0.34, 0.3, 0.065
"""Inches: side of a cell, space between maps, mean width of a letter of a name."""
FEWEST = 5
"""Width of a map in cells, at least: its title has to fit."""
EMPTY, EDGE = "#eceef1", "#c2410c"
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
        from matplotlib.figure import Figure

        rows, columns = ([printable(_short(name)) for name in side] for side in (self.rows, self.columns))
        left = 0.35 + LETTER * max(map(len, rows)) + (0.22 if _lines(self.row_groups) else 0)
        below = 0.15 + LETTER * max(map(len, columns))
        above = 0.5 + (0.2 if _lines(self.column_groups) else 0)
        width, height = CELL * max(FEWEST, len(columns)), CELL * len(rows)
        across = max(1, min(self.across, len(self.maps)))
        down = math.ceil(len(self.maps) / across)
        size = across * (left + width) + GAP, down * (above + height + below) + 0.3
        figure = Figure(figsize=size, dpi=DPI, facecolor=PAPER)
        for number, (title, values) in enumerate(self.maps.items()):
            row, column = divmod(number, across)
            x, y = (
                column * (left + width) + left,
                0.3 + (down - 1 - row) * (above + height + below) + below,
            )
            area = (x / size[0], y / size[1], CELL * len(columns) / size[0], height / size[1])
            axes = figure.add_axes(area)
            axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
            axes.axis("off")
            _draw(axes, values)
            _draw_groups(axes, self.row_groups, self.column_groups)
            for place, name in enumerate(rows):
                text_at(axes, -0.15, place + 0.5, name, 6.5, INK, ha="right")
            for place, name in enumerate(columns):
                text_at(axes, place + 0.5, len(rows) + 0.15, name, 6.5, INK, va="top", rotation=90)
            over = -0.35 - (0.6 if _lines(self.column_groups) else 0)
            text_at(axes, 0, over, printable(title), 8.5, INK, ha="left", weight="bold")
        names = f"rows: {self.networks[0]}; columns: {self.networks[1]}"
        text_at(figure, 0.12 / size[0], 0.13 / size[1], printable(names), 7, QUIET)
        return png(figure, "Similarity of layers")

    def to_html(self) -> str:
        """Return the maps as one page that makes no requests and runs no scripts."""
        made = templates()
        style = made.get_template("layer_maps_style.html.j2").render(levels=LEVELS)
        edges = [{0, *_lines(side)} for side in (self.row_groups, self.column_groups)]
        shown = []
        for title, values in self.maps.items():
            notes = list(self.notes.get(title, ())) or [""] * np.size(values)
            lines = []
            for i, (name, row) in enumerate(zip(self.rows, values.tolist(), strict=True)):
                cells = [
                    {
                        "text": _text(value),
                        "level": None if math.isnan(value) else _level(value),
                        "note": notes[i * len(self.columns) + j],
                        "edge": j in edges[1],
                    }
                    for j, value in enumerate(row)
                ]
                group = self.row_groups[i] if self.row_groups else ""
                lines.append({"name": name, "group": group, "edge": i in edges[0], "cells": cells})
            shown.append({"title": title, "rows": lines})
        heads = [
            {
                "name": name,
                "group": self.column_groups[j] if self.column_groups else "",
                "edge": j in edges[1],
            }
            for j, name in enumerate(self.columns)
        ]
        return made.get_template("layer_maps.html.j2").render(
            style=Markup(style),
            policy=style_policy(style),
            networks=self.networks,
            maps=shown,
            heads=heads,
            about=[(setting_name(name), setting_text(value)) for name, value in self.about.items()],
        )


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"  # + 0.0: there is no -0.00


def _level(value: float) -> int:
    return round(min(1.0, max(0.0, value)) * LEVELS)


def _short(name: str) -> str:
    """Return the end of a long name; its beginning is that of its neighbors."""
    return name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"


def _lines(groups: Sequence[str]) -> list[int]:
    """Return the places at which another group begins, without the first."""
    return [place for place in range(1, len(groups)) if groups[place] != groups[place - 1]]


def _draw(axes: Axes, values: Values) -> None:
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        known = not math.isnan(value)
        fill, ink = shade(float(value)) if known else (EMPTY, QUIET)
        axes.add_patch(
            Rectangle(
                (column, row),
                1,
                1,
                facecolor=fill,
                edgecolor=PAPER,
                hatch=None if known else "////",
                linewidth=0.4,
            )
        )
        text_at(axes, column + 0.5, row + 0.5, _text(float(value)).replace("0.", "."), 5.5, ink)


def _draw_groups(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a line where a part ends, and name the parts."""
    height, width = axes.get_ylim()[0], axes.get_xlim()[1]
    for place in _lines(rows):
        axes.plot([0, width], [place, place], color=EDGE, linewidth=1.2)
    for place in _lines(columns):
        axes.plot([place, place], [0, height], color=EDGE, linewidth=1.2)
    for groups, across in ((rows, False), (columns, True)):
        start = 0
        for name, members in groupby(groups) if _lines(groups) else ():
            count = len(list(members))
            middle = start + count / 2
            start += count
            if across:
                text_at(axes, middle, -0.3, printable(_short(name)), 6.5, EDGE)
            else:
                text_at(axes, width + 0.25, middle, printable(_short(name)), 6.5, EDGE, rotation=90)
