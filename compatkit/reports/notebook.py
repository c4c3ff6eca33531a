"""A matrix as a heat map in a notebook: an HTML table without scripts, classes or identifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from compatkit.reports.conclusion import conclusion, scale_of
from compatkit.reports.ink import EMPTY, OWN_EDGE, QUIET, STALE_EDGE, shade
from compatkit.reports.wording import (
    brief,
    explained,
    interval,
    meaning_in_brief,
    settings_line,
    share,
    through,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.reports.grid import CellGrid

MOST = 900
"""Most pairs that are drawn; more are counted by their verdict."""
MANY = 6
"""Heads above which a cell has a figure and a mark alone; its tooltip has the rest."""
BOX = "padding:4px 8px;text-align:center;border:2px {edge};background:{fill};color:{ink}"
NAME = "padding:4px 8px;text-align:{side};font-weight:600;overflow-wrap:anywhere"


def render(matrix: CellGrid) -> str:
    """Return the heat map as HTML in which all text is escaped."""
    wide = len(matrix.heads) <= MANY
    head = Markup("").join(_name(part.reference, "center") for part in matrix.heads)
    lines = [Markup("<tr><td></td>{}</tr>").format(head)]
    for part in matrix.extractors:
        cells = (_cell(matrix.find(part.reference, head.reference), wide) for head in matrix.heads)
        lines.append(Markup("<tr>{}{}</tr>").format(_name(part.reference, "right"), Markup("").join(cells)))
    settings = "; ".join(filter(None, [scale_of(matrix), settings_line(matrix.settings)]))
    legend = ", ".join(f"{word.mark} {meaning_in_brief(word)}" for word in explained(matrix.cells))
    return Markup(
        '<div style="overflow-x:auto"><p><b>Compatibility matrix</b>, rows are extractors, columns are heads. {}</p>'
        '<table style="border-collapse:separate;border-spacing:3px;font-variant-numeric:tabular-nums">{}</table>'
        "<p><small>{}</small></p><p><small>{}</small></p></div>"
    ).format(conclusion(matrix), Markup("").join(lines), legend, settings)


def _name(reference: str, side: str) -> Markup:
    return Markup('<td style="{}">{}</td>').format(NAME.format(side=side), visible(reference))


def _cell(cell: Cell | None, wide: bool) -> Markup:
    word = verdict(cell)
    if word.key == "left-out":
        return Markup("<td></td>")
    text, current = f"{word.mark} {word.word}{through(cell)}", word.key != "stale"
    if cell is None or cell.restricted is None:
        style = BOX.format(edge=f"solid {EMPTY}", fill=EMPTY, ink=QUIET)
        return Markup('<td style="{}" title="{}">{}</td>').format(style, text, text if wide else word.mark)
    fill, ink = shade(cell.restricted.accuracy) if current else (EMPTY, QUIET)
    edge = f"solid {OWN_EDGE}" if cell.own else f"solid {fill}" if current else f"dashed {STALE_EDGE}"
    style = BOX.format(edge=edge, fill=fill, ink=ink)
    figure = f"{share(cell.restricted.accuracy)} ({interval(cell.restricted)})"
    if not wide:
        mark = f"{brief(cell.restricted.accuracy)} {word.mark}"
        return Markup('<td style="{}" title="{}">{}</td>').format(style, f"{figure} {text}", mark)
    parts = share(cell.restricted.accuracy), interval(cell.restricted), text
    return Markup('<td style="{}"><b>{}</b><br><small>{}</small><br>{}</td>').format(style, *parts)
