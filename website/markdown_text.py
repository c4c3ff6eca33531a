"""Plain texts of the sources, such as help texts and docstrings, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\*_`\[\]<>|~])")
CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)


def escaped(text: str) -> str:
    """Return a text whose special characters mean themselves; what is between backticks becomes code."""
    parts = CODE.split(text)
    return "".join(code(part.strip("`")) if at % 2 else _entities(part) for at, part in enumerate(parts))


def code(text: str) -> str:
    """Return a text as code that may stand in a table."""
    text = _entities(" ".join(text.split()).replace("&", "&amp;")).replace("&#124;", "&#124;<wbr>")
    return f"<code>{text}</code>" if text else ""


def _entities(text: str) -> str:
    return SPECIAL.sub(lambda found: f"&#{ord(found[1])};", text)


def row(cells: Iterable[str]) -> str:
    """Return a row of a table, each cell on one line."""
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or nothing without rows."""
    lines = [row(cells) for cells in rows]
    return "\n".join([row(heads), "|---" * len(heads) + "|", *lines]) if lines else ""
