"""What must be kept: every digest that can be reached from a reference, found in the files alone.

Versions and results are references. A draft in ``tmp`` with the content of one is what somebody is about to refer to.
Any other file that names digests, in its name or content, keeps what it names: policies, keys, and whatever other
programs put there. Signatures keep nothing: they point at what is kept, or not. Nothing is decided by what kind of
bytes a digest is said to be: a digest is kept or it is not.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.errors import FormatError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.names import Version
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import Found, How, names, walk
from compatkit.registry.refs import LINE_LIMIT, References, pointed, read_line
from compatkit.registry.scan import (
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    EmptyFolder,
    Misplaced,
    Obstacle,
    Place,
    PolicyFile,
    Reserved,
    ResultPointer,
    SignatureFile,
    TombstoneFile,
    Unknown,
    VersionFile,
    WithdrawalFile,
    listed,
    scan,
)

Progress = Callable[[int, int, str], None]
LOOKS = 4
"""How often everything is looked at where something is missing."""
PAUSE = 0.05
"""Seconds between two looks: without hard links a version can be seen before its publisher has looked back, who then
puts what was collected meanwhile again, or takes the version away."""
SMALL = 2**16
"""Bytes; larger files in ``quarantine`` are damaged weights, which name nothing."""
_LOOSE = re.compile(rb"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])")
"""What may be the digits of a digest, wherever they stand."""
_PEEK = 2**16
_CHUNK = 2**20
_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
_STRENGTH = {"payload": 0, "named": 1, "blob": 2, "component": 3}


@attrs.frozen
class Marks:
    """What a look at the files found.

    Attributes:
        alive: Digests that must be kept.
        spared: Weights that nothing but long withdrawn versions uses; in ``alive`` too, unless they may go.
        empty: Folders that hold nothing, relative to the root.
        blobs: What has a blob's name in a blob's place, by path.
    """

    alive: frozenset[str]
    spared: frozenset[str]
    empty: tuple[str, ...]
    blobs: tuple[Blob, ...]


class _Missing(IntegrityError):
    """What something refers to is not there."""


class _Step(NamedTuple):
    """A way to a digest that must be kept.

    Attributes:
        how: ``component`` and ``blob`` are looked into; ``named`` only where it is a document.
        whose: What names it: a digest, or words for messages.
        firm: Whether it must be there.
        living: False where it is reached from versions whose weights may go.
        spare: Whether it is weights that may go.
    """

    digest: str
    how: How
    whose: str
    firm: bool
    living: bool = True
    spare: bool = False

    @property
    def strength(self) -> tuple[bool, bool, int, bool]:
        """What is reached more strongly is looked at again."""
        return self.living, not self.spare, _STRENGTH[self.how], self.firm


@attrs.define
class _Roots:
    """Where keeping begins, as one scan finds it.

    Attributes:
        root: Of the registry.
        intent: Whether a draft in ``tmp`` still counts, by its name and state.
        opening: Whether the files of versions are opened; if not, no version is a root, all else is as ever.
    """

    root: Path
    intent: Callable[[str, os.stat_result], bool]
    opening: bool
    versions: list[tuple[VersionFile, str]] = attrs.field(factory=list)
    others: list[_Step] = attrs.field(factory=list)
    tombstones: dict[tuple[str, Version], os.stat_result] = attrs.field(factory=dict)
    empty: list[str] = attrs.field(factory=list)
    blobs: list[Blob] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        for one in scan(self.root):
            self._take(one)

    def _take(self, one: Place) -> None:
        match one:
            case VersionFile():
                if self.opening and (digest := self._pointed(one)) is not None:
                    self.versions.append((one, digest))
            case TombstoneFile():
                self.tombstones[one.name, one.version] = os.lstat(self.root / one.path)
            case ResultPointer():
                self._result(one)
            case Blob():
                self.blobs.append(one)
            case EmptyFolder():
                self.empty.append(one.path)
            case Aside(folder="tmp"):
                self._draft(one)
            case Aside(folder="quarantine"):
                if _is_small(self.root / one.path):
                    self._mentions(one.path, name=False)
            case Obstacle():
                durable.check_folders(
                    self.root / one.path, self.root
                )  # refuses it, for it may hide references
            case Unknown() | Misplaced() | Reserved() | PolicyFile():
                self._mentions(one.path)
            case AliasPointer() | AliasMove() | SignatureFile() | WithdrawalFile() | Aside():
                pass

    def _pointed(self, one: VersionFile) -> str | None:
        data = _head(f"{self.root}/{one.path}")
        if not data:
            return None  # cut off without hard links: it says nothing, and never did
        if digest := pointed(data, f"{one.name}@{one.version}"):
            return digest
        return References(self.root).digest(one.name, one.version)  # waits, and says what is wrong

    def _result(self, one: ResultPointer) -> None:
        path = self.root / one.path
        data = _head(str(path))
        if data and data != f"sha256:{one.result}\n".encode():
            raise IntegrityError(
                f"{path} should hold the digest that it is named by, got {data[:80]!r}: what it refers to is "
                "not known, so nothing is collected. `compatkit verify --repair` moves it to quarantine; or restore it "
                "from another copy of the registry.",
                subject=path,
            )
        if data is not None:
            self.others.append(_Step(f"sha256:{one.result}", "blob", f"the result {path}", bool(data)))

    def _draft(self, one: Aside) -> None:
        path = self.root / one.path
        try:
            state = os.lstat(path)
        except FileNotFoundError:
            return
        if stat.S_ISREG(state.st_mode) and state.st_size <= LINE_LIMIT and self.intent(one.file, state):
            line = read_line(_head(str(path)) or b"")
            if line is not None:
                self.others.append(_Step(line[0], "component", f"the draft {path}", False))

    def _mentions(self, path: str, *, name: bool = True) -> None:
        """Keep what a file or folder of unknown meaning names."""
        full = os.fsencode(self.root / path)
        found: set[bytes] = set(_LOOSE.findall(os.path.basename(full))) if name else set()
        try:
            mode = os.lstat(full).st_mode
        except FileNotFoundError:
            return  # removed at this moment
        if stat.S_ISDIR(mode):
            for entry in listed(self.root, path):
                self._mentions(f"{path}/{entry.name}")
        elif stat.S_ISLNK(mode):
            found.update(_LOOSE.findall(os.readlink(full)))
        elif stat.S_ISREG(mode):
            found.update(_digits(f"{self.root}/{path}"))
        for one in sorted(found):
            digest = f"sha256:{one.decode().lower()}"
            self.others.append(_Step(digest, "named", f"{self.root}/{path}", False))


@attrs.define(eq=False)
class Marker:
    """Finds what must be kept; documents are read once, however often it looks.

    Attributes:
        root: Of the registry.
        lost: Digests whose loss the caller accepts: that they cannot be read is no reason to stop.
    """

    root: Path
    lost: frozenset[str] = frozenset()
    _documents: dict[str, tuple[Found, ...]] = attrs.field(factory=dict, init=False)
    _trash: dict[str, list[str]] = attrs.field(factory=dict, init=False)

    def mark(
        self,
        intent: Callable[[str, os.stat_result], bool],
        withdrawn: Callable[[os.stat_result], bool] | None = None,
        progress: Progress | None = None,
        known: Collection[str] | None = None,
    ) -> Marks:
        """Look at everything that refers to something.

        Args:
            intent: Whether a draft in ``tmp`` still counts, by its name and state.
            withdrawn: Whether a tombstone is old enough that the weights of its version may go; None keeps them all.
            progress: Told how many references were followed.
            known: What versions refer to, if somebody knows it; None opens their files, which alone is sure.

        Raises:
            IntegrityError: A reference or document is missing, and stays so, or damaged, so that what it refers to is
                not known.
            EnvironmentFailure: No right to read, device failed.
        """
        for _ in range(LOOKS - 1):
            try:
                return self._marks(intent, withdrawn, progress, known)
            except _Missing:
                time.sleep(PAUSE)
        return self._marks(intent, withdrawn, progress, known)

    def _marks(
        self,
        intent: Callable[[str, os.stat_result], bool],
        withdrawn: Callable[[os.stat_result], bool] | None,
        progress: Progress | None,
        known: Collection[str] | None,
    ) -> Marks:
        """Do what ``mark`` says, once."""
        self._trash = _trashed(self.root)
        alive, spared = set(known or ()), set[str]()
        try:
            roots = _Roots(self.root, intent, known is None)
            buried = {
                version
                for version, state in roots.tombstones.items()
                if withdrawn is not None and withdrawn(state)
            }
            gone = {digest for one, digest in roots.versions if (one.name, one.version) in buried}
            gone -= {digest for one, digest in roots.versions if (one.name, one.version) not in buried}
            starts = [
                *roots.others,
                *(
                    _Step(digest, "component", f"{one.name}@{one.version}", True, digest not in gone)
                    for one, digest in roots.versions
                ),
            ]
            starts.sort(key=lambda one: not one.living)  # so that little is looked at twice
            steps = walk(
                _told(starts, progress),
                lambda step: self._further(step, gone),
                key=lambda step: step.digest,
                rank=lambda step: step.strength,
            )
            for step in steps:
                (spared if step.spare else alive).add(step.digest)
        except OSError as error:
            with environment("read", Path(error.filename or self.root)):
                raise
        return Marks(frozenset(alive), frozenset(spared - alive), tuple(roots.empty), tuple(roots.blobs))

    def _further(self, step: _Step, gone: set[str]) -> Iterator[_Step]:
        if step.how == "payload":
            return
        # publishing looks for what manifests refer to, and no further
        firm = step.firm and step.how == "component"
        for digest, how in self._document(step) or ():
            spare = not step.living and how == "payload" and step.digest in gone
            yield _Step(digest, how, step.digest, firm and how != "named", step.living, spare)

    def _document(self, step: _Step) -> tuple[Found, ...] | None:
        """Return what a blob names, nothing if it is no document; None if it was not read."""
        digest, how, whose, firm = step[:4]
        known = self._documents.get(digest)
        if known is not None:
            return known
        found = self._content(digest, peek=how == "named", patient=firm)
        if found is None and firm and digest not in self.lost:
            raise self._refusal(digest, whose, "is missing, from trash/ too", _Missing)
        if found is None or (how == "named" and not found[0].startswith(b"{")):
            return None
        if digest in self.lost:
            return ()
        data, size = found
        if size > MAX_BYTES:
            if how == "component":
                raise self._refusal(digest, whose, f"has {size} bytes, more than any document")
            return ()
        if (actual := digest_of(data)) != digest:
            raise self._refusal(digest, whose, f"holds other bytes than its name promises, {actual}")
        try:
            self._documents[digest] = names(data, digest, component=firm and how == "component")
        except FormatError as error:
            raise self._refusal(digest, whose, f"cannot be read ({error})") from error
        return self._documents[digest]

    def _content(self, digest: str, *, peek: bool, patient: bool) -> tuple[bytes, int] | None:
        """Return a blob's bytes, and how many there are, from its place or from ``trash/``; None if it is nowhere.

        They are neither verified nor moved, and cut off after what a document may have.

        Args:
            digest: Of the blob.
            peek: Return only the beginning, unless that is the beginning of a document.
            patient: Look again: another process may move it at this moment, out or back.
        """
        name = digest[7:]
        path = f"{self.root}/blobs/sha256/{name[:2]}/{name}"
        found = _read(path, peek)
        for _ in range(3 if patient else 1):
            for place in () if found is not None else (*self._trash.get(name, ()), path):
                found = _read(place, peek) if found is None else found
            if found is None:
                self._trash = _trashed(self.root)
        return found

    def _refusal(
        self, digest: str, whose: str, what: str, kind: type[IntegrityError] = IntegrityError
    ) -> IntegrityError:
        name = digest.removeprefix("sha256:")
        return kind(
            f"{self.root}/blobs/sha256/{name[:2]}/{name} {what}, and {whose} refers to it: what it refers to in turn "
            "is not known, so nothing is collected. `compatkit verify` tells what is damaged and how to mend it. If it "
            f"is lost for good, `compatkit gc --lost {digest}` goes on without it.",
            subject=digest,
        )


def _told(starts: list[_Step], progress: Progress | None) -> Iterator[_Step]:
    for done, start in enumerate(starts):
        if progress is not None and done % 256 == 0:
            progress(done, len(starts), "following references")
        yield start


def _read(path: str, peek: bool) -> tuple[bytes, int] | None:
    file = _opened(path)
    if file is None:
        return None
    with file:
        size, data = os.fstat(file.fileno()).st_size, file.read(_PEEK)
        if 0 < len(data) < size <= MAX_BYTES and (data.startswith(b"{") or not peek):
            data += file.read(MAX_BYTES)
        return data, size


def _trashed(root: Path) -> dict[str, list[str]]:
    """Return the paths of the blobs in ``trash``, by the hexadecimal digits of their names."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in scan(root, "trash"):
        if isinstance(one, Aside):
            found[one.file[:64]].append(f"{root}/{one.path}")
        else:
            durable.check_folders(root / one.path, root)
    return found


def _opened(path: str) -> FileIO | None:
    """Open a plain file in a folder that the scan has seen to be no link; None if it is not there.

    Raises:
        IntegrityError: A link, folder, pipe or device stands in its place.
        OSError: It cannot be opened.
    """
    with suppress(
        OSError
    ):  # what is no plain file, or cannot be opened, is opened again below, to be told why
        descriptor = os.open(path, _FLAGS)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return FileIO(descriptor)
        os.close(descriptor)
    found = durable.open_plain(Path(path), Path(path).parent)
    return None if found is None else FileIO(found)


def _is_small(path: Path) -> bool:
    """Tell whether there is a plain file of at most ``SMALL`` bytes."""
    try:
        state = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size <= SMALL


def _head(path: str) -> bytes | None:
    """Return the beginning of a plain file, longer than any reference; None if it is not there."""
    file = _opened(path)
    if file is None:
        return None
    with file:
        return file.read(LINE_LIMIT)


def _digits(path: str) -> Iterator[bytes]:
    """Yield every run of 64 hexadecimal digits in a file."""
    file = _opened(path)
    if file is None:
        return
    with file:
        kept = b""
        while piece := file.read(_CHUNK):
            yield from _LOOSE.findall(kept + piece)
            kept = (kept + piece)[-LINE_LIMIT:]
