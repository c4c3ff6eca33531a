"""Who published a version, when and from which git commit: ``refs/<name>/@published/<version>``, created once.

The record is created before the version, so that a crash between the two leaves no version without a record; one that
states another digest than the version does not count. It is for people: nothing depends on it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import FormatError
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author, author_in
from compatkit.registry.log import LIMIT, now
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.names import Version

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


def record_publication(
    root: Path, name: str, version: Version, digest: str, author: Author, *, published: bool
) -> None:
    """Create the record of a publication. Before the version is published, its name is not made durable yet.

    Args:
        root: Root folder of the registry.
        name: Name of the component.
        version: Version number.
        digest: Digest of the manifest.
        author: Author of the publication.
        published: Whether the version is published. Then a record of another component, whose number was dropped or
            which was not published after all, is replaced.

    Raises:
        EnvironmentFailure: Disk full, no write permission.
    """
    path = root / record_path(name, version)
    if published:
        with suppress(FormatError):
            if (existing := publication(root, name, version)) is not None and existing.digest == digest:
                return
    data = dumps({"digest": digest, "time": now(), **author.fields()})
    with environment("create", path):
        if durable.create_once(path, data, root, sync=published) or not published:
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
