"""``refs.json`` at the root of a remote: the contents of the small files below ``refs``, read by one request.

It is never believed. A content counts only if its fingerprint is the one that the store lists for the file itself, so
an old, damaged or malicious one costs requests and changes no answer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.foundation.codec import MAX_BYTES, dumps, loads
from compatkit.registry.layout import REFS_FILE

PATH = REFS_FILE
LIMIT = MAX_BYTES
"""Maximum size in bytes."""
SCHEMA = 1


@attrs.frozen
class RefsFile:
    """Content of ``refs.json``.

    Attributes:
        files: Contents of small files by path.
        counts: Numbers of files in top-level folders of the remote, from which the cost of listing them is estimated.
        size: Size in bytes.
    """

    files: Mapping[str, str] = attrs.field(factory=dict)
    counts: Mapping[str, int] = attrs.field(factory=dict)
    size: int = 0

    def to_bytes(self) -> bytes | None:
        """Return the file's bytes; None if they would be too many."""
        data = dumps({"schema": SCHEMA, "files": dict(self.files), "counts": dict(self.counts)})
        try:
            read(data, PATH)
        except FormatError:
            return None
        return data


def read(data: bytes, what: str) -> RefsFile:
    """Read ``refs.json``.

    Args:
        data: Content of the file.
        what: Address for messages.

    Raises:
        FormatError: The file is damaged or too long, or its schema is unknown.
    """
    value: Any = loads(data, what=what, max_bytes=LIMIT, any_key=True)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise FormatError(f"{what}: expected an object with schema {SCHEMA}, got {value!r:.100}.")
    files, counts = value.get("files"), value.get("counts")
    if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
        raise FormatError(f"{what}: expected texts by path in files, got {files!r:.100}.")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise FormatError(f"{what}: expected numbers in counts, got {counts!r:.100}.")
    return RefsFile(files, {top: max(count, 0) for top, count in counts.items()}, len(data))


def as_text(data: bytes) -> str | None:
    """Return the content of a small file as it stands in ``refs.json``; None for what JSON would change."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if unicodedata.is_normalized("NFC", text) else None
