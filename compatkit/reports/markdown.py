"""Write a matrix as GitHub-flavored Markdown: the grid, then one line of evidence per pair."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compatkit.reports import wording
from compatkit.reports.tabular import columns_of

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.reports.grid import CellGrid

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!$])")


def escape(text: str) -> str:
    """Return ``text`` escaped for a single-line Markdown table cell."""
    safe = wording.visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Prevent autolinks: an HTML entity looks the same but breaks the address.
    safe = re.sub(r"(?i)(https?|ftp|mailto|xmpp):", r"\1&#58;", safe).replace("www.", "www&#46;")
    return _SPECIAL.sub(r"\\\1", safe)


def render(matrix: CellGrid) -> str:
    """Return the matrix as Markdown; headings start at level 2, so that it can be embedded.

    Args:
        matrix: Matrix to write.
    """
    lines = ["## Compatibility matrix", ""]
    if matrix.settings:
        lines += [escape(wording.settings_line(matrix.settings)), ""]
    lines.append(row("extractor \\\\ head", *(escape(head.reference) for head in matrix.heads)))
    lines.append(row(*["---"] * (len(matrix.heads) + 1)))
    for part in matrix.extractors:
        cells = (matrix.find(part.reference, head.reference) for head in matrix.heads)
        lines.append(row(f"**{escape(part.reference)}**", *map(_cell, cells)))
    lines.append("")
    lines += _evidence(matrix)
    lines += _reasons(matrix)
    lines += [
        f"- {word.mark} **{word.word}**: {word.meaning}" for word in wording.legend_of_cells(matrix.cells)
    ]
    return "\n".join(lines).rstrip() + "\n"


def row(*cells: str) -> str:
    """Return a table row.

    Args:
        cells: Escaped texts.
    """
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell | None) -> str:
    verdict = wording.verdict(cell)
    if cell is None or cell.restricted is None:
        return f"{verdict.mark} {verdict.word}" if verdict.mark.strip() else ""
    word = f"{verdict.mark} {verdict.word}{wording.own_pair_suffix(cell)}{wording.bridge_suffix(cell)}"
    return f"**{wording.share(cell.restricted.accuracy)}** ({wording.interval(cell.restricted)}) {word}"


def _evidence(matrix: CellGrid) -> list[str]:
    measured = [cell for cell in matrix.cells if cell.restricted is not None]
    if not measured:
        return ["No pair was measured.", ""]
    rows = [
        {
            "extractor": cell.extractor,
            "head": cell.head,
            "verdict": wording.verdict(cell).word + wording.own_pair_suffix(cell),
        }
        | {name: text for name, text in wording.evidence_rows(cell) if not name.startswith("Common classes")}
        for cell in measured
    ]
    names = columns_of(rows)
    lines = ["### Evidence", "", row(*names), row(*["---"] * len(names))]
    return [*lines, *(row(*(escape(texts.get(name, "")) for name in names)) for texts in rows), ""]


def _reasons(matrix: CellGrid) -> list[str]:
    lines: list[str] = []
    for title, states in (("Stale", ("stale",)), ("Not measured", ("missing", "barred"))):
        reasons = [
            f"- {escape(cell.extractor)} with {escape(cell.head)}, {wording.verdict(cell).word}: {escape(cell.reason)}"
            for cell in matrix.cells
            if cell.state in states and cell.reason
        ]
        lines += [f"### {title}", "", *reasons, ""] if reasons else []
    return lines
