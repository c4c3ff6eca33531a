"""What lies where in a registry's folder: every file by what it is, found by names alone.

``Place`` is any of the kinds below. Each has ``path``, relative to the root with slashes, and ``entry``, as it was
listed; None where nothing was listed, such as for a file that should be there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import attrs

from compatkit.errors import InvalidName
from compatkit.registry.layout import MARKER
from compatkit.registry.names import VERSION, Version, check_alias, check_name, check_segment
from compatkit.registry.policylog import parse_file as parse_policy_file
from compatkit.registry.refs import WITHDRAWALS
from compatkit.registry.signing.signatures import FILE as SIGNATURE

ASIDE = ("tmp", "trash", "quarantine")
"""Folders of what is unfinished, was taken out, or was moved away."""
TOP = (
    "tmp",
    "refs",
    "evidence",
    "policies",
    WITHDRAWALS,
    "signatures",
    "blobs",
    "trash",
    "quarantine",
    "keys",
    "locks",
    "",
)
"""Folders in the order in which they are listed; ``""`` is what else lies at the top."""
INSIDE = ("@versions", "@tombstones", "@aliases", "@log")
"""Folders that a name's folder holds."""
HEXADECIMAL = re.compile("[0-9a-f]{64}")
SHARD = re.compile("[0-9a-f]{2}")
ANY_DIGEST = re.compile("(?:sha256[:-])?([0-9a-fA-F]{64})(?![0-9a-fA-F])")
"""The digest in the name of a file that somebody renamed."""
_NUMBER = re.compile("[1-9][0-9]{0,17}")
Entry: TypeAlias = "os.DirEntry[str] | None"
List = Callable[[str], list[os.DirEntry[str]]]
"""Returns what is in a folder, given relative to the root; nothing where there is none."""


class VersionFile(NamedTuple):
    """The file that points at the manifest of a version."""

    path: str
    name: str
    version: Version
    entry: Entry = None


class TombstoneFile(NamedTuple):
    """The file that says that a version was withdrawn."""

    path: str
    name: str
    version: Version
    entry: Entry = None


class WithdrawalFile(NamedTuple):
    """The file that remembers that a version was withdrawn, should its tombstone be lost."""

    path: str
    name: str
    version: Version
    entry: Entry = None


class AliasPointer(NamedTuple):
    """The file that says where an alias points."""

    path: str
    name: str
    alias: str
    entry: Entry = None


class AliasMove(NamedTuple):
    """One move in the log of an alias."""

    path: str
    name: str
    alias: str
    number: int
    entry: Entry = None


class PolicyFile(NamedTuple):
    """One change of the policy of a scope."""

    path: str
    scope: str
    number: int
    entry: Entry = None


class ResultPointer(NamedTuple):
    """The file that points at a measured result; all four are 64 hex digits."""

    path: str
    extractor: str
    head: str
    conditions: str
    result: str
    entry: Entry = None


class SignatureFile(NamedTuple):
    """One signature.

    Attributes:
        signed: 64 hex digits of the manifest's digest.
        file: Its name.
    """

    path: str
    signed: str
    file: str
    entry: Entry = None


class Blob(NamedTuple):
    """What has a blob's name in a blob's place; whether it is a plain file, its entry tells."""

    path: str
    digest: str
    entry: Entry = None


class Aside(NamedTuple):
    """What lies in ``tmp``, ``trash`` or ``quarantine``."""

    path: str
    folder: str
    file: str
    entry: Entry = None


class Reserved(NamedTuple):
    """What lies in ``keys`` or ``locks``, for which this version has no rules."""

    path: str
    entry: Entry = None


class Unknown(NamedTuple):
    """A file or folder that has no place where it is; what it holds is not looked into.

    Attributes:
        what: What it is, in words that follow its name: ``"no part of a name"``; empty where anything may lie there.
    """

    path: str
    what: str
    entry: Entry = None


class Misplaced(NamedTuple):
    """A file below ``blobs`` that has a digest in its name, and is not where that blob is looked for."""

    path: str
    digest: str
    entry: Entry = None


class Obstacle(NamedTuple):
    """Something else where a folder of the layout belongs."""

    path: str
    entry: Entry = None


class EmptyFolder(NamedTuple):
    """A folder for references, results or blobs that holds nothing, and is none of the layout's own."""

    path: str
    entry: Entry = None


Place: TypeAlias = (
    VersionFile
    | TombstoneFile
    | WithdrawalFile
    | AliasPointer
    | AliasMove
    | PolicyFile
    | ResultPointer
    | SignatureFile
    | Blob
    | Aside
    | Reserved
    | Unknown
    | Misplaced
    | Obstacle
    | EmptyFolder
)


def scan(
    root: Path,
    *folders: str,
    entries: List | None = None,
    names: Callable[[str], bool] | None = None,
    pairs: Callable[[str, str], bool] | None = None,
    signed: Callable[[str], bool] | None = None,
) -> Iterator[Place]:
    """Yield everything in a registry by what it is; no file is opened and no link followed.

    Each folder is listed when its turn comes. Drafts come first, because a draft becomes a reference and not the other
    way round, and references before blobs, because whoever publishes makes them in the other order.

    Args:
        root: Of the registry.
        folders: At the top, such as ``"refs"``, or that of a name, such as ``"refs/digits/mnist"``; ``""`` is what
            else lies at the top. None given takes all.
        entries: Lists a folder in place of ``listed``, such as one that notes errors and goes on.
        names: Whether the files of a name are wanted.
        pairs: Whether the results of two function digests (64 hex digits each) are wanted.
        signed: Whether the signatures of a manifest (64 hex digits) are wanted.

    Raises:
        OSError: A folder cannot be listed; only if ``entries`` raises it.
    """
    walk = _Scan(
        root,
        entries or partial(listed, root),
        names or (lambda name: True),
        pairs or (lambda extractor, head: True),
        signed or (lambda manifest: True),
    )
    for folder in folders or TOP:
        yield from walk.within(folder) if folder else walk.top()


def listed(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder, sorted by name; nothing where there is none."""
    try:
        with os.scandir(root / folder) as found:
            return sorted(found, key=attrgetter("name"))
    except FileNotFoundError:
        return []


@attrs.frozen
class _Scan:
    """The grammar of the folders."""

    root: Path
    list: List
    names: Callable[[str], bool]
    pairs: Callable[[str, str], bool]
    signed: Callable[[str], bool]

    def within(self, folder: str) -> Iterator[Place]:
        """Yield what is in a folder, or what stands in the way to it."""
        for at in (*reversed(PurePosixPath(folder).parents), PurePosixPath(folder)):
            try:
                mode = os.lstat(self.root / at).st_mode
            except FileNotFoundError:
                return
            if not stat.S_ISDIR(mode) and at.name:
                yield Obstacle(str(at))
                return
        yield from self.folder(folder)

    def top(self) -> Iterator[Place]:
        for entry in self.list(""):
            if entry.name != MARKER and entry.name not in TOP:
                yield Unknown(entry.name, "", entry)

    def folder(self, folder: str) -> Iterator[Place]:
        kind, *segments = folder.split("/")
        if folder in ASIDE:
            return (Aside(f"{folder}/{entry.name}", folder, entry.name, entry) for entry in self.list(folder))
        if folder in ("keys", "locks"):
            return self._reserved(folder)
        read = {
            "refs": partial(self._names, folder, tuple(segments)),
            "evidence": self._evidence,
            "policies": self._policies,
            WITHDRAWALS: self._withdrawals,
            "signatures": self._signatures,
            "blobs": self._blobs,
        }
        return read[kind]()

    def _names(self, folder: str, segments: tuple[str, ...]) -> Iterator[Place]:
        found, name = self.list(folder), "/".join(segments)
        if segments and not found:
            yield EmptyFolder(folder)
        for entry in found:
            path = f"{folder}/{entry.name}"
            inside = bool(segments) and entry.name in INSIDE
            if inside and not self.names(name):
                continue
            if inside or (len(segments) < 3 and _is(check_segment, entry.name) and not _is_file(entry)):
                if not entry.is_dir(follow_symlinks=False):
                    yield Obstacle(path, entry)
                elif inside:
                    yield from self._inside(entry.name, path, name)
                else:
                    yield from self._names(path, (*segments, entry.name))
            elif self.names(name):
                what = (
                    "no part of a name" if len(segments) < 3 else "a fourth part of a name; three are allowed"
                )
                yield Unknown(path, what, entry)

    def _inside(self, kind: str, folder: str, name: str) -> Iterator[Place]:
        found = self.list(folder)
        if not found:
            yield EmptyFolder(folder)
        for entry in found:
            path = f"{folder}/{entry.name}"
            if kind in ("@versions", "@tombstones"):
                if (match := VERSION.fullmatch(entry.name)) is None:
                    yield Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)", entry)
                else:
                    major, minor, patch = match.groups()
                    version = Version(int(major), int(minor), int(patch))
                    yield (VersionFile if kind == "@versions" else TombstoneFile)(path, name, version, entry)
            elif not _is(check_alias, entry.name):
                yield Unknown(path, f"no alias of {name}", entry)
            elif kind == "@aliases":
                yield AliasPointer(path, name, entry.name, entry)
            elif entry.is_dir(follow_symlinks=False):
                yield from self._moves(path, name, entry.name)
            else:
                yield Obstacle(path, entry)

    def _moves(self, folder: str, name: str, alias: str) -> Iterator[Place]:
        found = self.list(folder)
        if not found:
            yield EmptyFolder(folder)
        for entry in found:
            path = f"{folder}/{entry.name}"
            if _NUMBER.fullmatch(entry.name):
                yield AliasMove(path, name, alias, int(entry.name), entry)
            else:
                yield Unknown(path, f"no number of a move of {name}:{alias}", entry)

    def _policies(self) -> Iterator[Place]:
        for entry in self.list("policies"):
            path, parsed = f"policies/{entry.name}", parse_policy_file(entry.name)
            if parsed is None:
                yield Unknown(path, "no change of a policy (SCOPE@NUMBER)", entry)
            else:
                yield PolicyFile(path, *parsed, entry)

    def _withdrawals(self) -> Iterator[Place]:
        for entry in self.list(WITHDRAWALS):
            path = f"{WITHDRAWALS}/{entry.name}"
            name, _, number = entry.name.replace("%2f", "/").partition("@")
            if _is(check_name, name) and _is(Version.parse, number):
                if self.names(name):
                    yield WithdrawalFile(path, name, Version.parse(number), entry)
            else:
                yield Unknown(path, "no withdrawn version (NAME@VERSION)", entry)

    def _evidence(self) -> Iterator[Place]:
        return self._results("evidence", ())

    def _results(self, folder: str, keys: tuple[str, ...]) -> Iterator[Place]:
        found = self.list(folder)
        if keys and not found:
            yield EmptyFolder(folder)
        for entry in found:
            path = f"{folder}/{entry.name}"
            if not HEXADECIMAL.fullmatch(entry.name):
                what = "no result (64 hex digits)" if len(keys) == 3 else "no digest (64 hex digits)"
                yield Unknown(path, what, entry)
            elif len(keys) == 3:
                yield ResultPointer(path, *keys, entry.name, entry)
            elif not entry.is_dir(follow_symlinks=False):
                yield Obstacle(path, entry)
            elif len(keys) != 1 or self.pairs(keys[0], entry.name):
                yield from self._results(path, (*keys, entry.name))

    def _signatures(self) -> Iterator[Place]:
        for entry in self.list("signatures"):
            path = f"signatures/{entry.name}"
            if not HEXADECIMAL.fullmatch(entry.name):
                yield Unknown(path, "", entry)
            elif not entry.is_dir(follow_symlinks=False):
                yield Obstacle(path, entry)
            elif self.signed(entry.name):
                yield from self._signed(entry.name)

    def _signed(self, signed: str) -> Iterator[Place]:
        for entry in self.list(f"signatures/{signed}"):
            path = f"signatures/{signed}/{entry.name}"
            if SIGNATURE.fullmatch(entry.name):
                yield SignatureFile(path, signed, entry.name, entry)
            else:
                yield Unknown(path, "", entry)

    def _blobs(self) -> Iterator[Place]:
        for above in self.list("blobs"):
            if above.name != "sha256":
                yield Unknown(f"blobs/{above.name}", "no folder of the layout", above)
            elif not above.is_dir(follow_symlinks=False):
                yield Obstacle("blobs/sha256", above)
            else:
                for shard in self.list("blobs/sha256"):
                    yield from self._shard(shard)

    def _shard(self, shard: os.DirEntry[str]) -> Iterator[Place]:
        folder = f"blobs/sha256/{shard.name}"
        if not SHARD.fullmatch(shard.name):
            yield _misplaced(folder, shard)
        elif not shard.is_dir(follow_symlinks=False):
            yield Obstacle(folder, shard)
        else:
            found = self.list(folder)
            if not found:
                yield EmptyFolder(folder)
            for entry in found:
                path = f"{folder}/{entry.name}"
                if HEXADECIMAL.fullmatch(entry.name) and entry.name.startswith(shard.name):
                    yield Blob(path, f"sha256:{entry.name}", entry)
                else:
                    yield _misplaced(path, entry)

    def _reserved(self, folder: str) -> Iterator[Place]:
        for entry in self.list(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._reserved(path)
            else:
                yield Reserved(path, entry)


def _misplaced(path: str, entry: os.DirEntry[str]) -> Place:
    match = ANY_DIGEST.search(entry.name)
    if match is None or not _is_file(entry):
        return Unknown(path, "no digest (64 hex digits)", entry)
    return Misplaced(path, f"sha256:{match[1].lower()}", entry)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _is(check: Callable[[str], object], name: str) -> bool:
    try:
        return bool(check(name))
    except InvalidName:
        return False
