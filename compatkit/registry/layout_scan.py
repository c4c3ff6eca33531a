"""The walk through a registry's folders: every file as a typed entry, classified by its path alone.

``RegistryEntry`` is any of the kinds below. Each has ``path``, relative to the root, with slashes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
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
"""Folders of drafts, of blobs that gc moved out, and of damaged files."""
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
_NUMBER = re.compile("[1-9][0-9]{0,17}")
List = Callable[[str], list[os.DirEntry[str]]]
"""Returns what is in a folder, given relative to the root; nothing where there is none."""
Read = Callable[[str, "os.DirEntry[str]"], "Iterator[RegistryEntry]"]
"""Yields what an entry of a folder is, given its path, or what is in it."""


class VersionFile(NamedTuple):
    """The file that points at the manifest of a version."""

    path: str
    name: str
    version: Version


class TombstoneFile(NamedTuple):
    """The file that marks a version as withdrawn."""

    path: str
    name: str
    version: Version


class WithdrawalFile(NamedTuple):
    """The second file of a withdrawal, which shows that a tombstone was lost."""

    path: str
    name: str
    version: Version


class AliasPointer(NamedTuple):
    """The file that holds the version that an alias points at."""

    path: str
    name: str
    alias: str


class AliasMove(NamedTuple):
    """One move in the log of an alias."""

    path: str
    name: str
    alias: str
    number: int


class PolicyFile(NamedTuple):
    """One change of the policy of a scope."""

    path: str
    scope: str
    number: int


class ResultPointer(NamedTuple):
    """The file that points at a measured result; all four are 64 hex digits."""

    path: str
    extractor: str
    head: str
    conditions: str
    result: str


class SignatureFile(NamedTuple):
    """One signature.

    Attributes:
        signed: 64 hex digits of the manifest's digest.
        file: Its name.
    """

    path: str
    signed: str
    file: str


class Blob(NamedTuple):
    """An entry with a blob's name in a blob's place; it may be no plain file."""

    path: str
    digest: str


class Aside(NamedTuple):
    """An entry of ``tmp``, ``trash`` or ``quarantine``."""

    path: str
    folder: str
    file: str


class Unknown(NamedTuple):
    """A file or folder that is no part of the layout; it is not looked into.

    Attributes:
        what: What it is, to follow its name in a message: ``"no part of a name"``; empty where any name is allowed.
    """

    path: str
    what: str


class Obstacle(NamedTuple):
    """A link or file in place of a folder of the layout."""

    path: str


RegistryEntry: TypeAlias = (
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
    | Unknown
    | Obstacle
)


def scan(
    root: Path,
    *folders: str,
    entries: List | None = None,
    wanted: Callable[[str], bool] = lambda folder: True,
) -> Iterator[RegistryEntry]:
    """Yield everything in a registry as typed entries; opens no file and follows no link.

    Each folder is listed when its turn comes: drafts first, because a draft becomes a reference and not the other way
    round, and references before blobs, because a publish makes them in the other order.

    Args:
        root: Of the registry.
        folders: At the top, such as ``"refs"``, or that of a name, such as ``"refs/digits/mnist"``; ``""`` is what
            else lies at the top. None given takes all.
        entries: Lists a folder in place of ``listed``, such as one that notes errors and goes on.
        wanted: Whether to look into a folder, given its path.

    Raises:
        OSError: A folder cannot be listed; only if ``entries`` raises it.
    """
    walk = _Scan(root, entries or partial(listed, root), wanted)
    for folder in folders or TOP:
        if folder:
            yield from walk.top(folder)
            continue
        for entry in walk.list(""):
            if entry.name != MARKER and entry.name not in TOP:
                yield Unknown(entry.name, "")


def listed(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder, sorted by name; nothing where there is none.

    Args:
        root: Of the registry.
        folder: Relative to the root.
    """
    try:
        with os.scandir(root / folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except FileNotFoundError:
        return []


@attrs.frozen
class _Scan:
    """The grammar of the folders. Each method takes an entry of a kind of folder, and yields what it is or holds."""

    root: Path
    list: List
    wanted: Callable[[str], bool]

    def top(self, folder: str) -> Iterator[RegistryEntry]:
        """Yield what is in a folder, or what stands in the way to it."""
        for at in (*reversed(PurePosixPath(folder).parents), PurePosixPath(folder)):
            try:
                mode = os.lstat(self.root / at).st_mode
            except FileNotFoundError:
                return
            if not stat.S_ISDIR(mode) and at.name:
                yield Obstacle(str(at))
                return
        kind, *segments = folder.split("/")
        read: dict[str, Read] = {
            "refs": partial(self._name, segments),
            "evidence": partial(self._result, ()),
            "policies": self._policy,
            WITHDRAWALS: self._withdrawal,
            "signatures": self._signed,
            "blobs": self._blobs,
            **dict.fromkeys(ASIDE, self._aside),
        }
        if kind in read:  # keys and locks are reserved, and not looked into
            yield from self._each(folder, read[kind])

    def _each(self, folder: str, read: Read) -> Iterator[RegistryEntry]:
        for entry in self.list(folder):
            yield from read(f"{folder}/{entry.name}", entry)

    def _into(self, path: str, entry: os.DirEntry[str], read: Read) -> Iterator[RegistryEntry]:
        if not self.wanted(path):
            return
        if entry.is_dir(follow_symlinks=False):
            yield from self._each(path, read)
        else:
            yield Obstacle(path)

    def _aside(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        yield Aside(path, path.partition("/")[0], entry.name)

    def _name(self, segments: Sequence[str], path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        name, short = "/".join(segments), len(segments) < 3
        if segments and entry.name in INSIDE:
            yield from self._into(path, entry, partial(self._inside, name, entry.name))
        elif short and _is(check_segment, entry.name) and not entry.is_file(follow_symlinks=False):
            yield from self._into(path, entry, partial(self._name, (*segments, entry.name)))
        elif self.wanted(f"refs/{name}/@"):
            what = "no part of a name" if short else "a fourth part of a name; three are allowed"
            yield Unknown(path, what)

    def _inside(self, name: str, kind: str, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if kind in ("@versions", "@tombstones"):
            if (match := VERSION.fullmatch(entry.name)) is None:
                yield Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)")
            else:
                version = Version(*map(int, match.groups()))
                yield (VersionFile if kind == "@versions" else TombstoneFile)(path, name, version)
        elif not _is(check_alias, entry.name):
            yield Unknown(path, f"no alias of {name}")
        elif kind == "@aliases":
            yield AliasPointer(path, name, entry.name)
        else:
            yield from self._into(path, entry, partial(self._move, name, entry.name))

    def _move(self, name: str, alias: str, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if _NUMBER.fullmatch(entry.name):
            yield AliasMove(path, name, alias, int(entry.name))
        else:
            yield Unknown(path, f"no number of a move of {name}:{alias}")

    def _policy(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        parsed = parse_policy_file(entry.name)
        if parsed is None:
            yield Unknown(path, "no change of a policy (SCOPE@NUMBER)")
        else:
            yield PolicyFile(path, *parsed)

    def _withdrawal(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        name, _, number = entry.name.replace("%2f", "/").partition("@")
        if not _is(check_name, name) or not _is(Version.parse, number):
            yield Unknown(path, "no withdrawn version (NAME@VERSION)")
        else:
            yield WithdrawalFile(path, name, Version.parse(number))

    def _result(self, keys: tuple[str, ...], path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if not HEXADECIMAL.fullmatch(entry.name):
            what = "no result (64 hex digits)" if len(keys) == 3 else "no digest (64 hex digits)"
            yield Unknown(path, what)
        elif len(keys) == 3:
            yield ResultPointer(path, *keys, entry.name)
        else:
            yield from self._into(path, entry, partial(self._result, (*keys, entry.name)))

    def _signed(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if not HEXADECIMAL.fullmatch(entry.name):
            yield Unknown(path, "")
        else:
            yield from self._into(path, entry, partial(self._signature, entry.name))

    def _signature(self, signed: str, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if SIGNATURE.fullmatch(entry.name):
            yield SignatureFile(path, signed, entry.name)
        else:
            yield Unknown(path, "")

    def _blobs(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if entry.name == "sha256":
            yield from self._into(path, entry, self._shard)
        else:
            yield Unknown(path, "no folder of the layout")

    def _shard(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if SHARD.fullmatch(entry.name):
            yield from self._into(path, entry, partial(self._blob, entry.name))
        else:
            yield Unknown(path, "no digest (64 hex digits)")

    def _blob(self, shard: str, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if HEXADECIMAL.fullmatch(entry.name) and entry.name.startswith(shard):
            yield Blob(path, f"sha256:{entry.name}")
        else:
            yield Unknown(path, "no digest (64 hex digits)")


def _is(check: Callable[[str], object], name: str) -> bool:
    try:
        return bool(check(name))
    except InvalidName:
        return False
