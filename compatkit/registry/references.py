"""Names and versions on disk: small files that point at manifests, each created once and never rewritten."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import attrs

from compatkit.errors import FormatError, IntegrityError, InvalidName
from compatkit.registry import durable
from compatkit.registry.canonical import dumps, loads
from compatkit.registry.names import Version, check_name, check_segment
from compatkit.registry.surroundings import environment

LIMIT = 2**16
"""Bytes; no reference file is longer."""
PATIENCE = 20
"""How often a version file that is shorter than a digest is read again, 10 ms apart."""
_LINE = re.compile(rb"sha256:[0-9a-f]{64}\n")
_LINE_BYTES = 72


@attrs.frozen
class Tombstone:
    """Why and when (UTC, ISO 8601) a version was withdrawn."""

    reason: str
    time: str


@attrs.frozen(eq=False)
class References:
    """The files below ``<root>/refs``."""

    root: Path

    def folder(self, name: str) -> Path:
        """Return the folder of a name.

        Raises:
            InvalidName: Not a component name.
        """
        return self.root.joinpath("refs", *check_name(name).split("/"))

    def names(self) -> list[str]:
        """Return all names that have a version, sorted; foreign files and folders are ignored."""
        refs = self.root / "refs"
        with environment("read", refs):
            return sorted(_names(refs, "", 3))

    def versions(self, name: str) -> list[Version]:
        """Return the finished versions of a name, rising, withdrawn ones included; empty if unknown."""
        return sorted(version for version, finished in self._listed(name) if finished)

    def taken(self, name: str) -> set[Version]:
        """Return the version numbers that can no longer be used."""
        return {version for version, _ in self._listed(name)}

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at; None if there is no such version.

        Raises:
            IntegrityError: The file does not hold a digest.
        """
        path = self.folder(name) / "@versions" / str(version)
        for _ in range(PATIENCE):
            found = durable.read(path, limit=LIMIT)
            if found is None:
                return None
            if len(found[0]) >= _LINE_BYTES:
                break
            time.sleep(0.01)  # without hard links, another process may be writing it at this moment
        else:
            found = durable.read(path, limit=LIMIT) or (b"", None)
        if not _LINE.fullmatch(found[0]):
            raise IntegrityError(
                f"{path} should hold one line 'sha256:' and 64 hex digits, got {found[0][:80]!r}: a publish "
                "was cut off on a file system without hard links, or the file was edited. Remove it if "
                f"nothing else uses {name}@{version}, or restore it from another copy of the registry.",
                subject=path,
            )
        return found[0].decode().strip()

    def create(self, name: str, version: Version, digest: str) -> bool:
        """Create a version durably; False if the number is taken. The last step of a publish.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; the version does not exist.
        """
        return self._create(self.folder(name) / "@versions" / str(version), f"{digest}\n".encode())

    def tombstone(self, name: str, version: Version) -> Tombstone | None:
        """Return why a version was withdrawn, None if it was not."""
        path = self.folder(name) / "@tombstones" / str(version)
        found = durable.read(path, limit=LIMIT)
        if found is None:
            return None
        value = loads(found[0], what=str(path))
        if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
            raise FormatError(
                f"{path}: expected an object with reason and time, got {value!r:.100}.", subject=path
            )
        return Tombstone(value["reason"], str(value.get("time", "")))

    def withdrawn(self, name: str) -> set[Version]:
        """Return the withdrawn versions of a name."""
        return {version for version, _ in _version_files(self.folder(name) / "@tombstones")}

    def withdraw(self, name: str, version: Version, reason: str) -> bool:
        """Write a tombstone; False if there is one, which stays as it is."""
        note = dumps({"reason": reason, "time": now()})
        return self._create(self.folder(name) / "@tombstones" / str(version), note)

    def _create(self, path: Path, data: bytes) -> bool:
        with environment("create", path):
            return durable.create_once(path, data, self.root)

    def _listed(self, name: str) -> list[tuple[Version, bool]]:
        files = _version_files(self.folder(name) / "@versions")
        return [(version, size == _LINE_BYTES) for version, size in files]


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _names(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    for entry in _entries(folder):
        try:
            check_segment(entry.name)
        except InvalidName:
            continue
        if not entry.is_dir(follow_symlinks=False):
            continue
        if any(_entries(Path(entry.path, "@versions"))):
            yield prefix + entry.name
        if depth > 1:
            yield from _names(Path(entry.path), f"{prefix}{entry.name}/", depth - 1)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _version_files(folder: Path) -> list[tuple[Version, int]]:
    with environment("read", folder):
        found: list[tuple[Version, int]] = []
        for entry in _entries(folder):
            try:
                found.append((Version.parse(entry.name), entry.stat(follow_symlinks=False).st_size))
            except InvalidName:
                continue  # stray files of editors and file managers
        return found
