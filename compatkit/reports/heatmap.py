"""Draw a matrix as a PNG heat map, without touching matplotlib's global state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from textwrap import wrap
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.evidence import Cell, Part
from compatkit.reports.conclusion import scale_of
from compatkit.reports.ink import (
    EMPTY,
    INK,
    OWN_EDGE,
    PAPER,
    QUIET,
    STALE_EDGE,
    png,
    printable,
    shade,
    text_at,
)
from compatkit.reports.labels import shortened
from compatkit.reports.wording import (
    DASH,
    brief,
    clip,
    explained,
    interval,
    meaning_in_brief,
    rung_of,
    settings_line,
    share,
    through,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from compatkit.reports.grid import CellGrid

DPI = 160
LINE = 0.18  # inches between lines of settings
LETTERS_AN_INCH = 14  # in a line of settings
KEPT = "\u00a0"  # non-breaking space: keeps a setting on one line
LETTERS = 30
LETTER = 0.6  # mean width of a letter, relative to the font size
BOUND_AT, BOUND_WIDTH = 0.3, 0.8  # in cells: gap before the column of bounds, and its width


@attrs.frozen
class Scale:
    """Sizes in inches and points for a number of rows and columns."""

    width: float
    height: float
    number: float
    small: float
    names: float
    lines: int

    @property
    def slanted(self) -> bool:
        """True if the columns are too narrow for level names."""
        return self.lines < 3

    @classmethod
    def of(cls, rows: int, columns: int) -> Scale:
        """Return sizes: full cells for few parts, one number and a mark for many.

        Args:
            rows: Number of extractors.
            columns: Number of heads.
        """
        most = max(rows, columns)
        if most <= 6:
            return cls(1.55, 0.95, 15.0, 8.0, 9.5, 3)
        if most <= 14:
            return cls(0.82, 0.58, 10.5, 7.0, 8.5, 2)
        return cls(0.46, 0.40, 8.0, 5.5, 7.5, 2)


def render(matrix: CellGrid) -> bytes:
    """Return the PNG; rows are extractors, a column at the right shows each one's upper bound."""
    return png(_figure(matrix), "Compatibility matrix")


def _figure(matrix: CellGrid) -> Figure:
    from matplotlib.figure import Figure

    rows, columns = max(1, len(matrix.extractors)), max(1, len(matrix.heads))
    scale = Scale.of(rows, columns)
    row_names, column_names = _names(matrix.extractors, scale), _names(matrix.heads, scale)
    letter = scale.names / 72 * LETTER
    if not scale.slanted:  # few columns: widen them to fit their names
        scale = attrs.evolve(scale, width=max(scale.width, letter * _longest(column_names) + 0.12))
    left = 0.3 + letter * _longest(row_names) + 0.12
    above = letter * _longest(column_names) * 0.75 + 0.2 if scale.slanted else 0.48
    grid = (columns + BOUND_AT + BOUND_WIDTH) * scale.width
    body = max(grid, 6.2 - left)  # room for title and legend even with a single cell
    legend = _legend_lines(matrix, (left + body) / 1.5)
    width = left + body + (0.55 if scale.slanted else 0.3)
    settings = _settings_lines(matrix, max(40, int((width - 0.6) * LETTERS_AN_INCH)))
    settings = [*filter(None, [scale_of(matrix)]), *settings]
    top, bottom = 0.77 + LINE * len(settings) + above, 0.4 + 0.24 * len(legend)
    height = top + rows * scale.height + bottom
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes((left / width, bottom / height, grid / width, rows * scale.height / height))
    axes.set(xlim=(0, columns + BOUND_AT + BOUND_WIDTH), ylim=(rows, 0))
    axes.axis("off")
    _draw_cells(axes, matrix, scale)
    _draw_names(axes, row_names, column_names, scale)
    _draw_title(figure, settings, width, height)
    for place, line in enumerate(legend):
        text_at(figure, 0.3 / width, (0.24 * (len(legend) - place)) / height, line, 8, QUIET)
    return figure


def _names(parts: Sequence[Part], scale: Scale) -> list[str]:
    """Return name and version of each part, on two lines if there is room; no two are alike."""
    shown = [printable(visible(part.reference)) for part in parts]
    if scale.slanted:
        return _apart(shortened(shown, LETTERS))
    names, versions = zip(*(text.rpartition("@")[::2] for text in shown), strict=True) if shown else ((), ())
    # without a version, the name is what is behind the missing sign
    firsts = shortened([name or version for name, version in zip(names, versions, strict=True)], LETTERS)
    lines = [
        f"{first}\n{clip('@' + version, LETTERS)}" if name else first
        for first, name, version in zip(firsts, names, versions, strict=True)
    ]
    return _apart(lines)


def _apart(labels: list[str]) -> list[str]:
    """Number labels that are alike because their characters are not in the font."""
    counts = Counter(labels)
    return [f"{label} #{number}" if counts[label] > 1 else label for number, label in enumerate(labels, 1)]


def _longest(names: list[str]) -> int:
    return max((len(line) for name in names for line in name.split("\n")), default=0)


def _draw_cells(axes: Axes, matrix: CellGrid, scale: Scale) -> None:
    letters = _rung_letters(matrix)
    for row, part in enumerate(matrix.extractors):
        bounds: list[float] = []
        for column, head in enumerate(matrix.heads):
            cell = matrix.find(part.reference, head.reference)
            _draw_cell(axes, cell, row, column, scale, letters)
            if cell is not None and cell.bound is not None and cell.state != "stale":
                bounds.append(cell.bound.accuracy)
        _draw_bound(axes, bounds, row, len(matrix.heads), scale)


def _draw_cell(
    axes: Axes, cell: Cell | None, row: int, column: int, scale: Scale, letters: Mapping[str, str]
) -> None:
    word = verdict(cell)
    if word.key == "left-out":
        return
    if cell is None or cell.restricted is None:
        _box(axes, row, column, EMPTY, hatch="////" if word.key != "missing" else None)
        _lines(
            axes,
            row,
            column,
            [(word.mark, scale.number)],
            word.word if scale.lines == 3 else "",
            QUIET,
            scale,
        )
        return
    is_stale = (
        cell.state == "stale"
    )  # stale figures are printed without shading, so that they do not look current
    fill, ink = (EMPTY, QUIET) if is_stale else shade(cell.restricted.accuracy)
    edge = OWN_EDGE if cell.own else STALE_EDGE if is_stale else None
    _box(axes, row, column, fill, edge=edge, hatch=".." if is_stale else None)
    rung = rung_of(cell)
    if scale.lines == 3:
        last = f"{word.mark} {word.word}"
        x, y = column + 0.5, row + (0.42 if rung else 0.5)  # a bridged cell has a line more
        text_at(axes, x, y - 0.22, share(cell.restricted.accuracy), scale.number, ink, weight="bold")
        text_at(axes, x, y + 0.06, interval(cell.restricted), scale.small, ink)
        text_at(axes, x, y + 0.28, last, scale.small + 0.5, ink, weight="bold")
        if rung:
            text_at(axes, x, y + 0.46, printable(through(cell).strip()), scale.small, ink)
    else:
        mark = f"{word.mark} {letters[rung]}" if rung else word.mark
        _lines(axes, row, column, [(brief(cell.restricted.accuracy), scale.number)], mark, ink, scale)


def _lines(
    axes: Axes, row: int, column: int, first: list[tuple[str, float]], second: str, ink: str, scale: Scale
) -> None:
    middle = row + 0.5
    for text, size in first:
        text_at(axes, column + 0.5, middle - (0.16 if second else 0), text, size, ink, weight="bold")
    if second:
        size = scale.small + (0.5 if scale.lines == 3 else 1.5)
        text_at(
            axes, column + 0.5, middle + 0.24, second, size, ink, weight="bold" if scale.slanted else "normal"
        )


def _draw_bound(axes: Axes, bounds: list[float], row: int, columns: int, scale: Scale) -> None:
    text = DASH
    if bounds:
        low, high = map(brief if scale.slanted else share, (min(bounds), max(bounds)))
        text = low if low == high else f"{low}{DASH}{high}"
    size = min(scale.number, 11.0) if len(text) < 6 else scale.small + 1
    text_at(axes, columns + BOUND_AT + BOUND_WIDTH / 2, row + 0.5, text, size, INK if bounds else QUIET)


def _draw_names(axes: Axes, rows: list[str], columns: list[str], scale: Scale) -> None:
    gap = 0.08 / scale.width
    for row, name in enumerate(rows):
        text_at(axes, -gap, row + 0.5, name, scale.names, INK, ha="right", va="center", linespacing=1.35)
    place = (
        {"ha": "left", "rotation": 48, "rotation_mode": "anchor"} if scale.slanted else {"linespacing": 1.35}
    )
    for column, name in enumerate([*columns, "bound"]):
        at = column + 0.5 if column < len(columns) else len(columns) + BOUND_AT + BOUND_WIDTH / 2
        text_at(axes, at, -0.09 / scale.height, name, scale.names, INK, va="bottom", **place)
    # A thin rule separates the bounds from the recombinations.
    axes.plot([len(columns) + BOUND_AT / 2] * 2, [0, max(1, len(rows))], color="#c9d0d9", linewidth=1)


def _settings_lines(matrix: CellGrid, letters: int) -> list[str]:
    """Return lines with the conditions of the measurement, broken between settings."""
    joined = settings_line(matrix.settings).replace(" ", KEPT).replace(f",{KEPT}", ", ")
    return [line.replace(KEPT, " ") for line in wrap(joined, letters)]


def _draw_title(figure: Figure, settings: list[str], width: float, height: float) -> None:
    text_at(figure, 0.3 / width, 1 - 0.32 / height, "Compatibility matrix", 14, INK, ha="left", weight="bold")
    what = "accuracy on the common classes; rows are extractors, columns are heads"
    for number, line in enumerate(filter(None, [what, *settings])):
        text_at(
            figure, 0.3 / width, 1 - (0.56 + LINE * number) / height, printable(line), 8.5, QUIET, ha="left"
        )


def _legend_lines(matrix: CellGrid, per_line: float) -> list[str]:
    cells = (
        matrix.find(part.reference, head.reference) for part in matrix.extractors for head in matrix.heads
    )
    words = [f"{word.mark} {meaning_in_brief(word)}" for word in explained(cells)]
    if Scale.of(len(matrix.extractors), len(matrix.heads)).lines < 3:
        words += [
            printable(f"{letter} through {visible(rung)}") for rung, letter in _rung_letters(matrix).items()
        ]
        words.append("in a cell: accuracy; intervals are in the page and the table")
    else:
        words.append("in a cell: accuracy, below it its 95 % interval")
    each = max(1, int(per_line))
    return ["     ".join(words[start : start + each]) for start in range(0, len(words), each)]


def _rung_letters(matrix: CellGrid) -> dict[str, str]:
    """Return a letter for each rung that a shown cell is bridged by, for cells without room for its name."""
    cells = (
        matrix.find(part.reference, head.reference) for part in matrix.extractors for head in matrix.heads
    )
    rungs = dict.fromkeys(filter(None, map(rung_of, cells)))
    return {rung: ascii_lowercase[place % 26] * (1 + place // 26) for place, rung in enumerate(rungs)}


def _box(
    axes: Axes, row: int, column: int, fill: str, *, edge: str | None = None, hatch: str | None = None
) -> None:
    from matplotlib.patches import Rectangle

    inset = 0.025
    place, side = (column + inset, row + inset), 1 - 2 * inset
    axes.add_patch(
        Rectangle(
            place,
            side,
            side,
            facecolor=fill,
            edgecolor="#d5d9df" if hatch else fill,
            hatch=hatch,
            linewidth=0,
        )
    )
    if edge:
        style = "--" if edge == STALE_EDGE else "-"
        axes.add_patch(
            Rectangle(place, side, side, fill=False, edgecolor=edge, linewidth=1.8, linestyle=style)
        )
