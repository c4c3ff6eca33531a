"""Where in a document a value stands; put into words only for a message, and short whatever the keys are."""

from __future__ import annotations

from typing import TypeAlias

Place: TypeAlias = "str | tuple[Place, str | int]"
"""The name of a document, or a place with the key or index of what stands in it.

Text that grew with every step would cost its whole length again for each of millions of values.
"""
LONGEST_KEY = 80
"""Characters that are told of a key."""


def told(place: Place) -> str:
    """Return a place in words: ``"manifest.contract.data.labels[3]"``."""
    steps: list[str] = []
    while not isinstance(place, str):
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step:.{LONGEST_KEY}}")
    return place + "".join(reversed(steps))
