"""The pages of the project, and the fenced blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("examples/**/*.md")]
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text without common indentation, and the line of the page it begins at."""

    language: str
    text: str
    line: int

    def placed(self) -> str:
        """Return the text below as many empty lines as stand before it, so that errors name lines of the page."""
        return "\n" * (self.line - 1) + self.text


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return a page's blocks in these languages, in order."""
    text = page.read_text()
    return [
        Block(match[2], dedent(match[3]), text.count("\n", 0, match.start(3)) + 1)
        for match in FENCE.finditer(text)
        if match[2] in languages
    ]


def repository_path(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(REPOSITORY).as_posix()
