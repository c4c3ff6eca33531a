"""A result as a document: what was measured, under which conditions, how, and what came out.

The registry knows the envelope and not what is inside: ``conditions`` are the key, ``settings`` say how it was
measured, ``figures`` what came out. A document names the two functions and its conditions itself, so that one that
lies under another key is no result of that key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from compatkit.contracts.codec import digest, dumps, loads
from compatkit.errors import FormatError

SCHEMA = 1
KIND = "result"
MAX_BYTES = 2**20
"""Of one result; a thousand class names take 20,000."""
FUNCTION = "value:sha256:"
"""Prefix of a function digest; folders are named by what follows it."""
_FIELDS = frozenset(
    ("schema", "kind", "extractor", "head", "conditions", "settings", "figures", "measured_as")
)
Values = Mapping[str, Any]


@attrs.frozen(eq=False)
class Result:
    """One result of a pair, as it is kept.

    Attributes:
        extractor: Function digest, ``value:sha256:...``.
        head: The same.
        digest: Of the document, ``sha256:...``.
        written: When the pointer was made, in ns since 1970: tells newer from older, as far as copies keep it.
        conditions: The key.
        settings: How it was measured; equal ones are one object. Do not change it.
        figures: What came out.
        error: Why nothing of it is known; ``""`` for a sound one.
    """

    extractor: str
    head: str
    digest: str
    written: int
    conditions: Values
    settings: Values
    figures: Values
    error: str = ""


def to_bytes(
    extractor: str,
    head: str,
    conditions: Values,
    settings: Values,
    figures: Values,
    *,
    measured_as: Values | None = None,
) -> bytes:
    """Return the document as canonical JSON.

    Args:
        extractor: Function digest.
        head: The same.
        conditions: JSON values.
        settings: JSON values.
        figures: JSON values.
        measured_as: References under which the parts were known; for people, decides nothing.
    """
    return dumps(
        {
            "schema": SCHEMA,
            "kind": KIND,
            "extractor": extractor,
            "head": head,
            "conditions": conditions,
            "settings": settings,
            "figures": figures,
            "measured_as": measured_as or {},
        }
    )


def from_bytes(data: bytes, extractor: str, head: str, key: str, what: str) -> tuple[Values, Values, Values]:
    """Return conditions, settings and figures of a result that lies under a key.

    Args:
        data: The document.
        extractor: Function digest that it lies under.
        head: The same.
        key: Hexadecimal digest of the conditions that it lies under.
        what: Which result, for messages.

    Raises:
        FormatError: It is no result, or one of another key.
    """
    value = loads(data, what=what, max_bytes=MAX_BYTES)
    if not isinstance(value, dict) or value.get("kind") != KIND or value.get("schema") != SCHEMA:
        raise FormatError(
            f"{what} is not written as this version keeps results (kind {KIND!r}, schema {SCHEMA}), so nobody can "
            "say what it depends on; measure again."
        )
    inside: list[Any] = [value.get(name) for name in ("conditions", "settings", "figures")]
    if set(value) != _FIELDS or not all(isinstance(one, dict) for one in inside):
        raise FormatError(f"{what}: expected the fields {', '.join(sorted(_FIELDS))} of a result.")
    if (value["extractor"], value["head"], key_of(inside[0])) != (extractor, head, key):
        raise FormatError(
            f"{what} lies under the key of another pair, or of other conditions, than it was measured with."
        )
    return inside[0], inside[1], inside[2]


def key_of(conditions: Any) -> str:
    """Return the hexadecimal digest that conditions are filed under."""
    return digest(dumps(conditions)).rpartition(":")[2]
