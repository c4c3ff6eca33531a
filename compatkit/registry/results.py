"""A result as a document: what was measured, under which conditions, how, and what came out.

The registry knows the envelope and not what is inside: ``conditions`` are the key, ``settings`` say how it was
measured, ``figures`` what came out. A document names the two functions and its conditions itself, so that one that
lies under another key is no result of that key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.codec import decode, digest, dumps
from compatkit.errors import FormatError

MAX_BYTES = 2**20
"""Of one result; a thousand class names take 20,000."""
FOLDER = "evidence"
FUNCTION = "value:sha256:"
"""Prefix of a function digest; folders are named by what follows it."""
Values = Mapping[str, Any]


@attrs.frozen(eq=False)
class StoredResult:
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


@attrs.frozen(kw_only=True)
class _Document:
    extractor: str
    head: str
    conditions: Values
    settings: Values
    figures: Values
    measured_as: Any
    kind: Literal["result"]
    schema: Literal[1] = 1


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
        _Document(
            extractor=extractor,
            head=head,
            conditions=conditions,
            settings=settings,
            figures=figures,
            measured_as=measured_as or {},
            kind="result",
        )
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
    try:
        found: _Document = decode(_Document, data, what=what, max_bytes=MAX_BYTES)
    except FormatError as error:
        raise FormatError(f"{error} So it does not say what it depends on; measure again.") from None
    if (found.extractor, found.head, key_of(found.conditions)) != (extractor, head, key):
        raise FormatError(
            f"{what} lies under the key of another pair, or of other conditions, than it was measured with."
        )
    return found.conditions, found.settings, found.figures


def key_of(conditions: Any) -> str:
    """Return the hexadecimal digest that conditions are filed under."""
    return digest(dumps(conditions)).rpartition(":")[2]
