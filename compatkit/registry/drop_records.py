"""Records of dropped version numbers: ``refs/<name>/@dropped/<version>/<n>``, each created once.

A record does not say that the number is free: only a missing version file does. Where both exist, dropping was
interrupted, or the number was used again.
"""

from __future__ import annotations

from typing import Any

import attrs

from compatkit.errors import FormatError, InvalidName
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry.authorship import author_in
from compatkit.registry.log import Log
from compatkit.registry.names import Reference, Version
from compatkit.registry.refs import LIMIT, References

FOLDER = "@dropped"


@attrs.frozen
class DropRecord:
    """Record of a number that was dropped.

    Attributes:
        number: Number of the record, from 1.
        digest: Manifest digest of the dropped version.
        kept: ``name@version`` that the manifest still had then.
        reason: Text shown to users who request the number.
        time: Time of the record, UTC, ISO 8601.
        by: Author: key or user; empty if not recorded.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    number: int
    digest: str
    kept: str
    reason: str
    time: str
    by: str = ""
    commit: str = ""

    def to_bytes(self) -> bytes:
        """Return the content of the file, as canonical JSON; an unknown author is left out."""
        fields = attrs.asdict(self, filter=lambda field, _: field.name != "number")
        return dumps({key: value for key, value in fields.items() if value or key not in ("by", "commit")})


def drop_log(references: References, name: str, version: Version) -> Log:
    """Return the log of a version number.

    Args:
        references: Names and versions of the registry.
        name: Name of the component.
        version: Version number.
    """
    return Log(references.root, references.folder(name) / FOLDER / str(version))


def last_drop(log: Log) -> DropRecord | None:
    """Return the last record of a version number that can be read, or None; verify reports damaged ones."""
    records = (read_drop(log.read(number) or b"", number) for number in reversed(log.numbers()))
    return next((record for record in records if record is not None), None)


def read_drop(data: bytes, number: int) -> DropRecord | None:
    """Return the record in the content of a file; None if it is damaged.

    Args:
        data: Content of the file.
        number: Number of the record, from 1.
    """
    try:
        value: Any = loads(data, what="record") if len(data) <= LIMIT else None
        kept = Reference.parse(value["kept"])
        texts = [value[name] for name in ("digest", "reason", "time")]
    except (FormatError, InvalidName, LookupError, TypeError):
        return None
    if kept.version is None or not all(isinstance(text, str) for text in texts) or not is_digest(texts[0]):
        return None
    digest, reason, time = texts
    return DropRecord(number, digest, str(kept), reason, time, *author_in(value))
