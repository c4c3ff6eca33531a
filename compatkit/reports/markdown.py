"""A matrix as GitHub-flavoured Markdown: the grid, then one line of evidence per pair."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compatkit.contracts.evidence import Cell
from compatkit.reports.wording import (
    figure_text,
    interval,
    listed,
    settings_line,
    share,
    signed,
    through,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from compatkit.reports.grid import CellGrid

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!$])")
_EVIDENCE = (
    "extractor",
    "head",
    "verdict",
    "accuracy",
    "all outputs",
    "chance",
    "bound",
    "recovered",
    "difference to the bound",
)


def escape(text: str) -> str:
    """Return ``text`` escaped for a single-line Markdown table cell."""
    safe = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Prevent autolinks: an HTML entity looks the same but breaks the address.
    safe = re.sub(r"(?i)(https?|ftp|mailto|xmpp):", r"\1&#58;", safe).replace("www.", "www&#46;")
    return _SPECIAL.sub(r"\\\1", safe)


def render(matrix: CellGrid) -> str:
    """Return the document; its headings start at level 2, so that it can be embedded."""
    lines = ["## Compatibility matrix", ""]
    if matrix.settings:
        lines += [escape(settings_line(matrix.settings)), ""]
    lines.append(row("extractor \\\\ head", *(escape(head.reference) for head in matrix.heads)))
    lines.append(row(*["---"] * (len(matrix.heads) + 1)))
    for part in matrix.extractors:
        cells = (matrix.find(part.reference, head.reference) for head in matrix.heads)
        lines.append(row(f"**{escape(part.reference)}**", *map(_cell, cells)))
    lines.append("")
    lines += _evidence(matrix)
    lines += _reasons(matrix)
    seen = {verdict(cell).key for cell in matrix.cells}
    lines += [f"- {word.mark} **{word.word}**: {word.meaning}" for word in listed(seen)]
    return "\n".join(lines).rstrip() + "\n"


def row(*cells: str) -> str:
    """Return a table row; cells must be escaped already."""
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell | None) -> str:
    known = verdict(cell)
    if cell is None or cell.restricted is None:
        return f"{known.mark} {known.word}" if known.mark.strip() else ""
    word = (
        f"{known.mark} {known.word}{', own pair' if cell.own and known.key != 'own' else ''}{through(cell)}"
    )
    return f"**{share(cell.restricted.accuracy)}** ({interval(cell.restricted)}) {word}"


def _evidence(matrix: CellGrid) -> list[str]:
    measured = [cell for cell in matrix.cells if cell.restricted is not None]
    if not measured:
        return ["No pair was measured.", ""]
    lines = ["### Evidence", "", row(*_EVIDENCE), row(*["---"] * len(_EVIDENCE))]
    for cell in measured:
        restricted, unrestricted, bound = cell.restricted, cell.unrestricted, cell.bound
        between = cell.difference
        lines.append(
            row(
                escape(cell.extractor),
                escape(cell.head),
                verdict(cell).word,
                figure_text(restricted) if restricted else "",
                f"{share(unrestricted.accuracy)} ({interval(unrestricted)})" if unrestricted else "",
                share(cell.chance) if cell.chance is not None else "",
                f"{share(bound.accuracy)} ({interval(bound)})" if bound else "",
                share(cell.recovered) if cell.recovered is not None else "",
                f"{signed(between[0])} to {signed(between[1])}" if between else "",
            )
        )
    return [*lines, ""]


def _reasons(matrix: CellGrid) -> list[str]:
    lines: list[str] = []
    for title, states in (("Stale", ("stale",)), ("Not measured", ("missing", "barred"))):
        reasons = [
            f"- {escape(cell.extractor)} with {escape(cell.head)}, {verdict(cell).word}: {escape(cell.reason)}"
            for cell in matrix.cells
            if cell.state in states and cell.reason
        ]
        lines += [f"### {title}", "", *reasons, ""] if reasons else []
    return lines
