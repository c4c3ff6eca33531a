"""What a search found, as a list that shows itself as a table."""

from __future__ import annotations

from compatkit.contracts.display import Shown, aligned, visible
from compatkit.registry.index.search import Found
from compatkit.reports.wording import clip

TITLE = 32
"""Characters of a title that are shown."""
HEADINGS = ("name", "version", "kind", "parameters", "network", "title")


class Listing(Shown, list[Found]):
    """Versions of components, by name and rising version."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(table(self)) if self else "no components"


def table(components: list[Found]) -> list[str]:
    """Return a heading and a line for each version."""
    rows = [
        (
            one.name,
            one.version,
            one.kind.replace("_", " "),
            f"{one.parameters:,}",
            f"{one.model} @ {one.split}",
            clip(f"{one.title} (withdrawn)".strip() if one.withdrawn else one.title, TITLE, "..."),
        )
        for one in components
    ]
    return aligned([HEADINGS, *([visible(text) for text in row] for row in rows)])
