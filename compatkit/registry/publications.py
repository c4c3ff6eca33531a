"""Who published a version, when and from which git commit: ``refs/<name>/@published/<version>``, created once.

The record is written after the version, so a crash between the two leaves a version without a record. It is for people:
nothing depends on it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author, author_in
from compatkit.registry.log import LIMIT, now
from compatkit.registry.names import Version
from compatkit.registry.os_errors import environment

FOLDER = "@published"


@attrs.frozen
class PublicationRecord:
    """Record of a publication.

    Attributes:
        digest: Digest of the manifest.
        time: Time of the publication, UTC, ISO 8601.
        by: Author: key or user.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    digest: str
    time: str
    by: str
    commit: str


def record_path(name: str, version: Version | None) -> str:
    """Return the path of a record, relative to the root."""
    return f"refs/{name}/{FOLDER}/{version}"


def record_publication(root: Path, name: str, version: Version, digest: str, author: Author) -> None:
    """Create the record of a publication; one of another component, whose number was dropped, is replaced.

    Raises:
        EnvironmentFailure: Disk full, no write permission; the version is published.
    """
    path, data = (
        root / record_path(name, version),
        dumps({"digest": digest, "time": now(), **author.fields()}),
    )
    with environment("create", path):
        if durable.create_once(path, data, root):
            return
    with suppress(FormatError):
        if (existing := publication(root, name, version)) is not None and existing.digest == digest:
            return
    durable.replace_file(path, data, root=root)


def publication(root: Path, name: str, version: Version) -> PublicationRecord | None:
    """Return the record of a publication; None if there is none.

    Raises:
        FormatError: The record is damaged.
    """
    path = root / record_path(name, version)
    opened = durable.read(path, root, limit=LIMIT)
    return None if opened is None else read_record(opened[0], str(path))


def read_record(content: bytes, path: str) -> PublicationRecord:
    """Return the record in a file.

    Args:
        content: Content of the file.
        path: Path for messages.

    Raises:
        FormatError: The record is damaged.
    """
    value: Any = loads(content, what=path)
    if (
        not isinstance(value, dict)
        or not is_digest(value.get("digest"))
        or not isinstance(value.get("time"), str)
    ):
        raise FormatError(
            f"{path}: expected an object with by, digest and time, got {value!r:.100}.", subject=path
        )
    return PublicationRecord(value["digest"], value["time"], *author_in(value))
