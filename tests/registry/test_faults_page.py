"""docs/reference/faults.md lists every code that an examination can give, as the library has it."""

from __future__ import annotations

from pathlib import Path

from compatkit.registry.maintenance.faults import CODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"


def test_the_page_lists_every_code_with_its_meaning():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{code}` | {kind.severity} | {kind.meaning} | {kind.remedy} |" for code, kind in CODES.items()
    ]
