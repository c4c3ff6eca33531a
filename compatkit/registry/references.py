"""Names and versions on disk: small files that point at manifests, each created once and never rewritten."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
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
SETTLED = 2
"""Seconds after which a folder's modification time tells its states apart."""
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
    _listings: dict[Path, tuple[tuple[int, int], tuple[tuple[Version, int], ...]]] = attrs.field(
        factory=dict, init=False, repr=False
    )

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
            durable.check_folders(refs, self.root)
            return sorted(_names(refs, "", 3))

    def each(self) -> Iterator[tuple[str, Version]]:
        """Yield all versions of all names, withdrawn and damaged ones included."""
        for name in self.names():
            for version in self.versions(name):
                yield name, version

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name, rising, withdrawn ones included; empty if unknown.

        An empty file is no version: without hard links, a publish that was cut off leaves one. Any other content is
        one, also if it is damaged, so that no older version takes its place in silence.
        """
        return sorted(version for version, size in self._listed(name) if size > 0)

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
            found = durable.read(path, self.root, limit=LIMIT)
            if found is None:
                return None
            if len(found[0]) >= _LINE_BYTES or _age(found[1]) > 1:
                break
            time.sleep(0.01)  # without hard links, another process may be writing it at this moment
        else:
            found = durable.read(path, self.root, limit=LIMIT) or (b"", None)
        if not _LINE.fullmatch(found[0]):
            raise IntegrityError(
                f"{name}@{version} is damaged: {path} should hold one line 'sha256:' and 64 hex digits, got "
                f"{found[0][:80]!r}: a publish was cut off where there are no hard links, or the file was edited. "
                "`compatkit verify --repair` moves it to quarantine; or restore it from another copy of the registry.",
                subject=path,
            )
        return found[0].decode().strip()

    def create(
        self, name: str, version: Version, digest: str, ready: Callable[[], object] | None = None
    ) -> bool:
        """Create a version durably; False if the number is taken. The last step of a publish.

        Args:
            name: Of the component.
            version: Its number.
            digest: Of its manifest.
            ready: See ``durable.create_once``.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; the version does not exist.
        """
        return self._create(self.folder(name) / "@versions" / str(version), f"{digest}\n".encode(), ready)

    def tombstone(self, name: str, version: Version) -> Tombstone | None:
        """Return why a version was withdrawn, None if it was not."""
        path = self.folder(name) / "@tombstones" / str(version)
        found = durable.read(path, self.root, limit=LIMIT)
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
        return {version for version, _ in self._files(self.folder(name) / "@tombstones")}

    def withdraw(self, name: str, version: Version, reason: str) -> bool:
        """Write a tombstone; False if there is one, which stays as it is."""
        note = dumps({"reason": reason, "time": now()})
        return self._create(self.folder(name) / "@tombstones" / str(version), note)

    def _create(self, path: Path, data: bytes, ready: Callable[[], object] | None = None) -> bool:
        with environment("create", path):
            return durable.create_once(path, data, self.root, ready)

    def _listed(self, name: str) -> tuple[tuple[Version, int], ...]:
        return self._files(self.folder(name) / "@versions")

    def _files(self, folder: Path) -> tuple[tuple[Version, int], ...]:
        """Return the version files of a folder with their sizes; read anew where the folder changed since."""
        with environment("read", folder):
            durable.check_folders(folder, self.root)
            try:
                state = os.stat(folder)
            except FileNotFoundError:
                return ()
            stamp = state.st_ino, state.st_mtime_ns
            kept = self._listings.get(folder)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            found = tuple(_version_files(folder))
            # files grow in place, and a folder may change twice within a tick of its clock
            if all(size for _, size in found) and _age(state) > SETTLED:
                self._listings[folder] = stamp, found
            return found


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


def _version_files(folder: Path) -> Iterator[tuple[Version, int]]:
    for entry in _entries(folder):
        try:
            version = Version.parse(entry.name)
        except InvalidName:
            continue  # stray files of editors and file managers
        yield version, entry.stat(follow_symlinks=False).st_size


def _age(state: os.stat_result) -> float:
    return time.time() - state.st_mtime
