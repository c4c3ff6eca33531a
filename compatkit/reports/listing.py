"""Search results: a list displayed as a table."""

from __future__ import annotations

from compatkit.foundation.display import Shown, aligned, network_and_cut, visible
from compatkit.registry.index.search import SearchResult
from compatkit.reports.wording import clip

TITLE = 32
"""Most characters of a title shown."""
HEADINGS = ("name", "version", "kind", "parameters", "network", "title")


class Listing(Shown, list[SearchResult]):
    """Versions of components, by name and ascending version."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(table(self)) if self else "no components"


def table(components: list[SearchResult]) -> list[str]:
    """Return a heading and one line per version."""
    rows = [
        (
            component.name,
            component.version,
            component.kind.replace("_", " "),
            f"{component.parameters:,}",
            network_and_cut(component.model, component.cut),
            clip(
                f"{component.title} (withdrawn)".strip() if component.withdrawn else component.title,
                TITLE,
                "...",
            ),
        )
        for component in components
    ]
    return aligned([HEADINGS, *([visible(text) for text in row] for row in rows)])
