"""Search results as a list with a table for display."""

from __future__ import annotations

from compatkit.foundation.display import Shown, aligned, network_and_cut, visible
from compatkit.registry.index.search import SearchResult
from compatkit.reports.wording import clip

MAX_TITLE = 32
"""Maximal length of a displayed title."""
HEADINGS = ("name", "version", "kind", "parameters", "network", "title")


class Listing(Shown, list[SearchResult]):
    """List of component versions, ordered by name and ascending version."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(table(self)) if self else "no components"


def table(components: list[SearchResult]) -> list[str]:
    """Return the lines of the table: a heading and one line per version.

    Args:
        components: Search results.
    """
    rows = [
        (
            component.name,
            component.version,
            component.kind.replace("_", " "),
            f"{component.parameters:,}",
            network_and_cut(component.model, component.cut),
            clip(
                f"{component.title} (withdrawn)".strip() if component.withdrawn else component.title,
                MAX_TITLE,
                "...",
            ),
        )
        for component in components
    ]
    return aligned([HEADINGS, *([visible(text) for text in row] for row in rows)])
