"""Spellings of names and texts that count as equal."""

from __future__ import annotations

import unicodedata


def casefolded(name: str) -> str:
    """Return a name normalized for case and Unicode composition."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def normalize_name(name: str) -> str:
    """Normalize case, spaces, underscores and Unicode composition of a class name."""
    return " ".join(casefolded(name).replace("_", " ").split())


def normalize_text(text: str) -> str:
    """Normalize case and spaces of text for word search."""
    return " ".join(casefolded(text).split())
