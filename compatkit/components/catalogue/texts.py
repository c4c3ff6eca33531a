"""Texts of a registry as a catalogue shows them: without credentials, on one line, of limited length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from compatkit.foundation.credentials import redacted
from compatkit.foundation.display import visible
from compatkit.registry.store import Store

MAX_LINE, MAX_LINES = 1000, 200
"""Limits of a text: characters of a line, and lines."""
MAX_VALUES = 200
"""Maximum number of tags, and of other values of one component."""
Rows = list[tuple[str, str]]
"""Labels and texts."""


@lru_cache(2**16)
def line(text: str, limit: int = MAX_LINE) -> str:
    """Return a text on one line, without credentials, with control and direction characters as escapes.

    Args:
        text: Text of a registry; may be hostile.
        limit: Maximum number of characters.
    """
    shown = visible(redacted(text[: 2 * limit], known=False))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def lines(text: str) -> list[str]:
    """Return a text of several lines."""
    split = text.replace("\r\n", "\n").split("\n")
    more = [f"… {len(split) - MAX_LINES:,} more lines"] if len(split) > MAX_LINES else []
    return [*map(line, split[:MAX_LINES]), *more]


def tags_of(values: Mapping[str, str]) -> Rows:
    """Return tags, sorted."""
    return [(line(key), line(value)) for key, value in sorted(values.items())[:MAX_VALUES]]


def rows_of(values: Mapping[str, str] | Iterable[tuple[str, str]]) -> Rows:
    """Return labels and texts; empty texts are left out."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return [(line(label), line(text)) for label, text in pairs if text][:MAX_VALUES]


def error_line(store: Store, error: Exception | str) -> str:
    """Return the message of an error without the folder of the registry, which readers of a page need not know."""
    return line(str(error).replace(str(store.root), "REGISTRY"))
