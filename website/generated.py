"""Parts of pages that are made from the sources: a page has a comment ``<!-- generated: NAME -->`` in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import command_pages
import fault_tables
import hook_tables
import json_tables
import recipe_tables

MARK = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)
PARTS: Mapping[str, Callable[[], str]] = {
    "shared options": command_pages.shared,
    "commands": command_pages.page,
    "failed document": json_tables.failed,
    "documents": json_tables.page,
    "faults": fault_tables.faults,
    "hooks": hook_tables.overview,
    "ready limits": hook_tables.ready_limits,
    **recipe_tables.PARTS,
}
"""What makes each part, by its name in a comment."""


def filled(markdown: str) -> str:
    """Return a page with its generated parts.

    Raises:
        KeyError: There is no part of this name.
    """
    return MARK.sub(lambda found: PARTS[found[1]](), markdown)
