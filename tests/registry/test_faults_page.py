"""docs/reference/faults.md has every code that an examination can give, made from the library's own list."""

from __future__ import annotations

from pathlib import Path

from generated import filled
from markdown_text import code, escaped

from compatkit.registry.maintenance.faults import CODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"


def test_the_page_lists_every_code_with_its_meaning() -> None:
    rows = [
        line for line in filled(PAGE.read_text(encoding="utf-8")).splitlines() if line.startswith("| <code>")
    ]
    assert len(rows) == len(CODES) > 50
    for row, (name, kind) in zip(rows, CODES.items(), strict=True):
        assert row.startswith(f"| {code(name)} | {kind.severity} | ")
        assert escaped(kind.meaning) in row and escaped(kind.remedy) in row
