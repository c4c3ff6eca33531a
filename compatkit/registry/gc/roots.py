"""Where keeping begins: every file of a registry that names a digest, read without following a link.

Versions and results are references. A draft in ``tmp`` with the content of one is what somebody is about to refer to.
Any other file that names digests, in its name or content, keeps what it names: policies, keys, and whatever other
programs put there. Signatures keep nothing: they point at what is kept, or not.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import attrs

from compatkit.errors import IntegrityError, InvalidName
from compatkit.registry import disk as durable
from compatkit.registry.gc.peeking import LINE_BYTES, LOOSE, digits, entries, head, is_small
from compatkit.registry.layout import MARKER
from compatkit.registry.names import Version, check_segment
from compatkit.registry.refs import References
from compatkit.registry.signing.signatures import FILE, FOLDER

INSIDE = ("@versions", "@tombstones", "@aliases", "@log")
"""Folders that a name's folder holds."""
_LINE = re.compile(rb"(sha256:[0-9a-f]{64})\n")
HEXADECIMAL = re.compile("[0-9a-f]{64}")
_SHARD = re.compile("[0-9a-f]{2}")
_PLAIN = re.compile(r"[a-z0-9._-]+")


@attrs.frozen
class Root:
    """A digest that must be kept, and why.

    Attributes:
        how: ``component`` and ``blob`` are looked into; ``named`` only where it is a document.
        whose: What names it, for messages.
        firm: Whether it must be there.
        version: Name and version, if it is a version's manifest.
    """

    digest: str
    how: Literal["blob", "component", "named"]
    whose: str
    firm: bool = True
    version: tuple[str, str] | None = None


@attrs.define(eq=False)
class Roots:
    """One look through a registry.

    Attributes:
        opening: Whether the files of versions are opened; if not, no version is a root, all else is as ever.
        empty: Folders for references and results that hold nothing, filled while reading.
    """

    root: Path
    opening: bool = True
    empty: list[Path] = attrs.field(factory=list)
    _tombstones: dict[tuple[str, str], os.stat_result] = attrs.field(factory=dict)

    def read(self, intent: Callable[[str, os.stat_result], bool]) -> Iterator[Root]:
        """Yield every root; drafts first, because a draft becomes a reference and not the other way round.

        Args:
            intent: Whether a draft in ``tmp`` still counts, by its name and state.

        Raises:
            IntegrityError: A reference is damaged, or a link stands where a folder of references belongs.
            OSError: A folder or file cannot be read.
        """
        yield from self._drafts(intent)
        known = {MARKER, "blobs", "refs", "evidence", FOLDER, "tmp", "trash", "quarantine"}
        for name in ("refs", "evidence", "blobs", "quarantine"):
            durable.check_folders(self.root / name, self.root)
        yield from self._names(str(self.root / "refs"), ())
        yield from self._results(str(self.root / "evidence"), 0)
        yield from self._strays()
        yield from self._beside_signatures()
        for entry in entries(str(self.root / "quarantine")):
            if is_small(entry):
                yield from self._named(entry, names=False)
        for entry in entries(str(self.root)):
            if entry.name not in known:
                yield from self._named(entry)

    def graves(self, withdrawn: Callable[[os.stat_result], bool]) -> frozenset[tuple[str, str]]:
        """Return the versions whose tombstones, as they were read, are old enough."""
        return frozenset(version for version, state in self._tombstones.items() if withdrawn(state))

    def _drafts(self, intent: Callable[[str, os.stat_result], bool]) -> Iterator[Root]:
        durable.check_folders(self.root / "tmp", self.root)
        for entry in entries(str(self.root / "tmp")):
            try:
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if (
                not stat.S_ISREG(state.st_mode)
                or state.st_size != LINE_BYTES
                or not intent(entry.name, state)
            ):
                continue
            match = _LINE.fullmatch(head(entry.path) or b"")
            if match is not None:
                yield Root(match[1].decode(), "component", f"the draft {entry.path}", firm=False)

    def _names(self, folder: str, segments: tuple[str, ...]) -> Iterator[Root]:
        every = entries(folder)
        if not every and segments:
            self.empty.append(Path(folder))
        for entry in every:
            inside = bool(segments) and entry.name in INSIDE
            if not inside and (len(segments) == 3 or not _is_segment(entry.name) or _is_file(entry)):
                yield from self._named(entry)
                continue
            if not entry.is_dir(follow_symlinks=False):
                durable.check_folders(Path(entry.path), self.root)  # refuses a link, for it hides references
            if inside:
                yield from self._inside(entry, "/".join(segments))
            else:
                yield from self._names(entry.path, (*segments, entry.name))

    def _inside(self, folder: os.DirEntry[str], name: str) -> Iterator[Root]:
        every = entries(folder.path)
        if not every:
            self.empty.append(Path(folder.path))
        for entry in every:
            if folder.name in ("@aliases", "@log"):
                if not _PLAIN.fullmatch(entry.name):
                    yield from self._named(entry)
                elif entry.is_dir(follow_symlinks=False) and not entries(entry.path):
                    self.empty.append(Path(entry.path))
            elif not _is_version(entry.name):
                yield from self._named(entry)
            elif folder.name == "@tombstones":
                self._tombstones[name, entry.name] = entry.stat(follow_symlinks=False)
            elif self.opening:
                yield from self._version(entry, name)

    def _version(self, entry: os.DirEntry[str], name: str) -> Iterator[Root]:
        data = head(entry.path)
        if not data:
            return  # cut off without hard links: it says nothing, and never did
        match = _LINE.fullmatch(data)
        if match is not None:
            digest = match[1].decode()
        else:
            found = References(self.root).digest(
                name, Version.parse(entry.name)
            )  # waits, and says what is wrong
            if found is None:
                return
            digest = found
        yield Root(digest, "component", f"{name}@{entry.name}", version=(name, entry.name))

    def _results(self, folder: str, depth: int) -> Iterator[Root]:
        every = entries(folder)
        if not every and depth:
            self.empty.append(Path(folder))
        for entry in every:
            if not HEXADECIMAL.fullmatch(entry.name):
                yield from self._named(entry)
            elif depth < 3 and _is_file(entry):
                yield from self._named(entry)
            elif depth < 3:
                if not entry.is_dir(follow_symlinks=False):
                    durable.check_folders(Path(entry.path), self.root)
                yield from self._results(entry.path, depth + 1)
            else:
                yield from self._result(entry)

    def _result(self, entry: os.DirEntry[str]) -> Iterator[Root]:
        data = head(entry.path)
        if data is None:
            return
        if data and data != f"sha256:{entry.name}\n".encode():
            raise IntegrityError(
                f"{entry.path} should hold the digest that it is named by, got {data[:80]!r}: what it refers to is "
                "not known, so nothing is collected. `compatkit verify --repair` moves it to quarantine; or restore it "
                "from another copy of the registry.",
                subject=Path(entry.path),
            )
        yield Root(f"sha256:{entry.name}", "blob", f"the result {entry.path}", firm=bool(data))

    def _strays(self) -> Iterator[Root]:
        """Yield what files that are no blobs name, below ``blobs``."""
        for above in entries(str(self.root / "blobs")):
            if above.name != "sha256":
                yield from self._named(above)
                continue
            durable.check_folders(Path(above.path), self.root)
            for shard in entries(above.path):
                if not _SHARD.fullmatch(shard.name) or not shard.is_dir(follow_symlinks=False):
                    yield from self._named(shard)
                    continue
                for blob in entries(shard.path):
                    if not HEXADECIMAL.fullmatch(blob.name):
                        yield from self._named(blob)

    def _beside_signatures(self) -> Iterator[Root]:
        """Yield what files name that are no signatures, below ``signatures``."""
        for above in entries(str(self.root / FOLDER)):
            if not HEXADECIMAL.fullmatch(above.name) or not above.is_dir(follow_symlinks=False):
                yield from self._named(above)
                continue
            for entry in entries(above.path):
                if not FILE.fullmatch(entry.name):
                    yield from self._named(entry)

    def _named(self, entry: os.DirEntry[str], *, names: bool = True) -> Iterator[Root]:
        """Yield what a file or folder of unknown meaning names."""
        if entry.is_dir(follow_symlinks=False):
            for inside in entries(entry.path):
                yield from self._named(inside, names=names)
        found: set[bytes] = set(LOOSE.findall(os.fsencode(entry.name))) if names else set()
        if entry.is_symlink():
            found.update(LOOSE.findall(os.fsencode(os.readlink(entry.path))))
        elif entry.is_file(follow_symlinks=False):
            found.update(digits(entry.path))
        for one in sorted(found):
            yield Root(f"sha256:{one.decode().lower()}", "named", entry.path, firm=False)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _is_segment(name: str) -> bool:
    try:
        return bool(check_segment(name))
    except InvalidName:
        return False


def _is_version(name: str) -> bool:
    try:
        return bool(Version.parse(name))
    except InvalidName:
        return False
