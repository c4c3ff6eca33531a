"""The table of faults that an examination of a registry can find, for a page of the reference."""

from __future__ import annotations

from markdown_text import code, escaped, table

from compatkit.registry.maintenance.faults import CODES


def faults() -> str:
    """Return a table of all faults: code, severity, meaning and remedy."""
    rows = [
        (code(name), kind.severity, escaped(kind.meaning), escaped(kind.remedy))
        for name, kind in CODES.items()
    ]
    return table(("code", "severity", "meaning", "what to do"), rows)
