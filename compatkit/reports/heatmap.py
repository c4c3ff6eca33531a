"""Draw a matrix as a PNG heat map, without changing matplotlib's global state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from compatkit.reports import drawing, wording
from compatkit.reports.conclusion import scale_of
from compatkit.reports.labels import shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from compatkit.contracts.evidence import Cell, Part
    from compatkit.reports.grid import CellGrid

DPI = 160
MAX_LARGE, MAX_MEDIUM = 6, 14
"""Maximal number of rows or columns with large cells (all lines), and with medium cells (two lines)."""
SIZES = {
    MAX_LARGE: (1.55, 0.95, 15.0, 8.0, 9.5),
    MAX_MEDIUM: (0.82, 0.58, 10.5, 7.0, 8.5),
    0: (0.46, 0.40, 8.0, 5.5, 7.5),
}
"""Width and height of a cell in inches, and font sizes in points of accuracies, small text and names."""
MAX_NAME_LENGTH = 30
LETTER_WIDTH = 0.6  # mean width of a letter, relative to the font size
BOUND_GAP, BOUND_WIDTH = 0.3, 0.8  # in cells: gap before the column of bounds, and its width
NO_BREAK = "\u00a0"  # non-breaking space: keeps a setting on one line


def render(matrix: CellGrid) -> bytes:
    """Return the heat map as PNG: extractors are rows, heads are columns, and a column at the right has the bounds.

    Args:
        matrix: Matrix to draw.
    """
    return drawing.png(_figure(matrix), "Compatibility matrix", tight=True)


def _figure(matrix: CellGrid) -> Figure:
    from matplotlib.figure import Figure

    rows, columns = max(1, len(matrix.extractors)), max(1, len(matrix.heads))
    largest = max(rows, columns)
    few = largest <= MAX_LARGE
    width, height, *fonts, font = SIZES[MAX_LARGE if few else MAX_MEDIUM if largest <= MAX_MEDIUM else 0]
    row_names, column_names = _names(matrix.extractors, few), _names(matrix.heads, few)
    if few:  # widen columns to fit their names
        longest = max((len(line) for name in column_names for line in name.split("\n")), default=0)
        width = max(width, font / 72 * LETTER_WIDTH * longest + 0.12)
    across = columns + BOUND_GAP + BOUND_WIDTH
    bound_at = columns + BOUND_GAP + BOUND_WIDTH / 2
    figure = Figure(figsize=(across * width, rows * height), dpi=DPI, facecolor=drawing.BACKGROUND)
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.set(xlim=(0, across), ylim=(rows, 0))
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    text: dict[str, Any] = {
        "fontsize": font,
        "family": drawing.FONT,
        "color": drawing.TEXT_COLOR,
        "parse_math": False,
        "linespacing": 1.35,
    }
    slant = {} if few else {"rotation": 48, "rotation_mode": "anchor", "ha": "left"}
    axes.set_yticks([row + 0.5 for row in range(len(row_names))], row_names, **text)
    positions = [*(column + 0.5 for column in range(len(column_names))), bound_at]
    axes.set_xticks(positions, [*column_names, "its own head" if few else "own head"], **text, **slant)
    axes.plot([columns + BOUND_GAP / 2] * 2, [0, rows], color="#c9d0d9", linewidth=1)
    for row, part in enumerate(matrix.extractors):
        cells = [matrix.find(part.reference, head.reference) for head in matrix.heads]
        for column, cell in enumerate(cells):
            _draw_cell(axes, cell, row, column, fonts, few)
        bounds = [cell.bound.accuracy for cell in cells if cell and cell.bound and cell.state != "stale"]
        texts = [(wording.share if few else wording.short_share)(bound) for bound in sorted(bounds)]
        ends = list(dict.fromkeys(texts[:1] + texts[-1:]))
        bound = wording.DASH.join(ends) or wording.DASH
        color = drawing.TEXT_COLOR if bounds else drawing.MUTED_COLOR
        size = min(fonts[0], 11.0) if len(ends) < 2 else fonts[1] + 1
        drawing.draw_text(axes, bound_at, row + 0.5, bound, size, color)
    axes.set_title(
        "Compatibility matrix",
        loc="left",
        pad=12,
        fontsize=14,
        family=drawing.FONT,
        color=drawing.TEXT_COLOR,
        weight="bold",
    )
    axes.set_xlabel(
        "\n".join(_notes(matrix, max(60, int(across * width * 14)))),
        **{**text, "color": drawing.MUTED_COLOR, "fontsize": 8.5},
        loc="left",
        labelpad=10,
    )
    return figure


def _names(parts: Sequence[Part], few: bool) -> list[str]:
    """Return distinct labels with name and version of each part, on two lines if there is room."""
    references = [drawing.printable(wording.visible(part.reference)) for part in parts]
    if few:
        pairs = [text.rpartition("@")[::2] for text in references]
        # without "@", rpartition returns the name as the second value
        firsts = shorten_names([name or version for name, version in pairs], MAX_NAME_LENGTH)
        labels = [
            f"{first}\n{wording.clip('@' + version, MAX_NAME_LENGTH)}" if name else first
            for first, (name, version) in zip(firsts, pairs, strict=True)
        ]
    else:
        labels = shorten_names(references, MAX_NAME_LENGTH)
    counts = Counter(labels)  # names of characters that the font lacks have equal labels
    return [f"{label} #{number}" if counts[label] > 1 else label for number, label in enumerate(labels, 1)]


def _draw_cell(
    axes: Axes, cell: Cell | None, row: int, column: int, fonts: Sequence[float], few: bool
) -> None:
    from matplotlib.patches import Rectangle

    word, (number, small) = wording.verdict(cell), fonts
    if word.key == "left-out":
        return
    figure = None if cell is None else cell.restricted
    stale, own = cell is not None and cell.state == "stale", cell is not None and cell.own
    # stale accuracies are printed without shading, so that they do not look current
    fill, color = (
        drawing.shade(figure.accuracy) if figure and not stale else (drawing.EMPTY_COLOR, drawing.MUTED_COLOR)
    )
    hatch = (".." if stale else None) if figure else "////" if word.key != "missing" else None
    box = (column + 0.025, row + 0.025), 0.95, 0.95
    axes.add_patch(Rectangle(*box, facecolor=fill, edgecolor="#d5d9df", hatch=hatch, linewidth=0))
    if figure and (own or stale):
        edge, style = (drawing.OWN_OUTLINE, "-") if own else (drawing.STALE_OUTLINE, "--")
        axes.add_patch(Rectangle(*box, fill=False, edgecolor=edge, linewidth=1.8, linestyle=style))
    if figure is None:
        lines = [(word.mark, number), *([(word.word, small + 0.5)] if few else [])]
    elif few:
        lines = [
            (wording.share(figure.accuracy), number),
            (wording.interval(figure), small),
            (f"{word.mark} {word.word}", small + 0.5),
        ]
        lines += (
            [(drawing.printable(wording.bridge_suffix(cell).strip()), small)]
            if wording.chosen_rung(cell)
            else []
        )
    else:
        mark = f"{word.mark} b" if wording.chosen_rung(cell) else word.mark
        lines = [(wording.short_share(figure.accuracy), number), (mark, small + 1.5)]
    step = 0.23 if few else 0.38
    for index, (line, size) in enumerate(lines):
        y = row + (0.52 if index else 0.49) + (index - (len(lines) - 1) / 2) * step
        drawing.draw_text(
            axes, column + 0.5, y, line, size, color, weight="normal" if few and index in (1, 3) else "bold"
        )


def _notes(matrix: CellGrid, letters: int) -> list[str]:
    """Return the lines below the picture: content of the cells, conditions of the measurement, and marks."""
    cells = [
        matrix.find(part.reference, head.reference) for part in matrix.extractors for head in matrix.heads
    ]
    few = max(len(matrix.extractors), len(matrix.heads)) <= MAX_LARGE
    intervals = "below it its 95 % interval" if few else "intervals are in the page and the table"
    marks = [f"{word.mark} {wording.short_meaning(word)}" for word in wording.legend_of_cells(cells)]
    if not few and any(map(wording.chosen_rung, cells)):
        marks.append("b through a bridge")
    lines = (
        f"rows are extractors, columns are heads; in a cell: accuracy on the common classes, {intervals}",
        scale_of(matrix),
        wording.settings_line(matrix.settings).replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", "),
        "   ".join(mark.replace(" ", NO_BREAK) for mark in marks),
    )
    return [drawing.printable(part).replace(NO_BREAK, " ") for line in lines for part in wrap(line, letters)]
