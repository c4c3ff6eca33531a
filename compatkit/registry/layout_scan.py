"""Scan of a registry's folders: each file is classified by its path and yielded as a typed entry.

Each entry has a ``path``, relative to the root, with slashes.
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
from compatkit.registry.layout import MARKER, REFS_FILE
from compatkit.registry.names import Version, check_alias, check_name, check_segment
from compatkit.registry.policylog import parse_file as parse_policy_file
from compatkit.registry.publications import FOLDER as PUBLISHED
from compatkit.registry.settings import FOLDER as SETTINGS
from compatkit.registry.signing.signatures import FILE as SIGNATURE
from compatkit.registry.withdrawals import WITHDRAWALS, parse_entry_name

ASIDE = ("tmp", "trash", "quarantine")
"""Folders for drafts, for blobs removed by gc, and for damaged files."""
TOP = (
    "tmp",
    "refs",
    "evidence",
    "policies",
    SETTINGS,
    WITHDRAWALS,
    "signatures",
    "blobs",
    "trash",
    "quarantine",
    "keys",
    "locks",
    "",
)
"""Top-level folders in the order of the scan; ``""`` stands for all other entries of the root."""
NAME_FOLDERS = ("@versions", "@tombstones", "@aliases", "@log", "@dropped", PUBLISHED)
"""Subfolders in the folder of a name."""
HEXADECIMAL = re.compile("[0-9a-f]{64}")
SHARD = re.compile("[0-9a-f]{2}")
_NUMBER = re.compile("[1-9][0-9]{0,17}")
List = Callable[[str], list[os.DirEntry[str]]]
"""Function that returns the entries of a folder, given relative to the root; none if the folder is missing."""
Read = Callable[[str, "os.DirEntry[str]"], "Iterator[RegistryEntry]"]
"""Function that classifies a directory entry, given its path, or scans the folder that it names."""


class VersionFile(NamedTuple):
    """File that points at the manifest of a version."""

    path: str
    name: str
    version: Version


class TombstoneFile(NamedTuple):
    """Entry in the log of a version's withdrawals."""

    path: str
    name: str
    version: Version
    number: int


class WithdrawalFile(NamedTuple):
    """Second file of an entry, from which a lost entry is noticed."""

    path: str
    name: str
    version: Version
    number: int


class AliasPointer(NamedTuple):
    """File with the version that an alias points at."""

    path: str
    name: str
    alias: str


class AliasMove(NamedTuple):
    """Entry in the log of an alias."""

    path: str
    name: str
    alias: str
    number: int


class DropFile(NamedTuple):
    """Record of a version number that was dropped."""

    path: str
    name: str
    version: Version
    number: int


class PolicyFile(NamedTuple):
    """Entry in the log of the policy of a scope."""

    path: str
    scope: str
    number: int


class ResultPointer(NamedTuple):
    """File that points at a measured result; all four fields are 64 hex digits."""

    path: str
    extractor: str
    head: str
    conditions: str
    result: str


class SignatureFile(NamedTuple):
    """File with a signature of a manifest.

    Attributes:
        signed: 64 hex digits of the manifest's digest.
        file: Name of the file.
    """

    path: str
    signed: str
    file: str


class PublicationFile(NamedTuple):
    """Record of who published a version."""

    path: str
    name: str
    version: Version


class SettingsFile(NamedTuple):
    """Entry in the log of the settings."""

    path: str
    number: int


class Blob(NamedTuple):
    """Entry with the path of a blob; not necessarily a regular file."""

    path: str
    digest: str


class Aside(NamedTuple):
    """Entry of ``tmp``, ``trash`` or ``quarantine``."""

    path: str
    folder: str
    file: str


class Unknown(NamedTuple):
    """File or folder that does not belong to the layout; folders are not scanned.

    Attributes:
        what: Text that follows the path in a message, such as ``"no part of a name"``; may be empty.
    """

    path: str
    what: str


class Obstacle(NamedTuple):
    """Link or file at the path of a folder of the layout."""

    path: str


RegistryEntry: TypeAlias = (
    VersionFile
    | TombstoneFile
    | WithdrawalFile
    | AliasPointer
    | AliasMove
    | DropFile
    | PolicyFile
    | ResultPointer
    | SignatureFile
    | PublicationFile
    | SettingsFile
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
    """Yield all files of a registry as typed entries, without opening files or following links.

    Folders are scanned one after the other: drafts first, because a draft may become a reference, and references before
    blobs, because a publisher writes blobs before references.

    Args:
        root: Folder of the registry.
        folders: Top-level folders such as ``"refs"``, or folders of names such as ``"refs/digits/mnist"``; ``""``
            for all other entries of the root. Without any, the full registry is scanned.
        entries: Function to list a folder instead of ``listed``, for example one that records errors and continues.
        wanted: Whether to scan a folder, given its path.

    Raises:
        OSError: ``entries`` could not list a folder.
    """
    walk = _Scan(root, entries or partial(listed, root), wanted)
    for folder in folders or TOP:
        if folder:
            yield from walk.top(folder)
            continue
        for entry in walk.list(""):
            if entry.name not in (MARKER, REFS_FILE, *TOP):
                yield Unknown(entry.name, "")


def listed(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; none if the folder is missing.

    Args:
        root: Folder of the registry.
        folder: Path relative to the root.
    """
    try:
        with os.scandir(root / folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except FileNotFoundError:
        return []


@attrs.frozen
class _Scan:
    """Layout of the folders; each method classifies the entries of one kind of folder."""

    root: Path
    list: List
    wanted: Callable[[str], bool]

    def top(self, folder: str) -> Iterator[RegistryEntry]:
        """Yield the entries of a folder, or the obstacle on the path to it."""
        for ancestor in (*reversed(PurePosixPath(folder).parents), PurePosixPath(folder)):
            try:
                mode = os.lstat(self.root / ancestor).st_mode
            except FileNotFoundError:
                return
            if not stat.S_ISDIR(mode) and ancestor.name:
                yield Obstacle(str(ancestor))
                return
        kind, *segments = folder.split("/")
        read: dict[str, Read] = {
            "refs": partial(self._name, segments),
            "evidence": partial(self._result, ()),
            "policies": self._policy,
            SETTINGS: self._setting,
            WITHDRAWALS: self._withdrawal,
            "signatures": self._signed,
            "blobs": self._blobs,
            **dict.fromkeys(ASIDE, self._aside),
        }
        if kind in read:  # keys and locks are reserved and not scanned
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
        if segments and entry.name in NAME_FOLDERS:
            yield from self._into(path, entry, partial(self._inside, name, entry.name))
        elif short and _is(check_segment, entry.name) and not entry.is_file(follow_symlinks=False):
            yield from self._into(path, entry, partial(self._name, (*segments, entry.name)))
        elif self.wanted(f"refs/{name}/@"):
            what = "no part of a name" if short else "a fourth part of a name; three are allowed"
            yield Unknown(path, what)

    def _inside(self, name: str, kind: str, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if kind in ("@versions", "@tombstones", PUBLISHED):
            parsed = parse_entry_name(entry.name)
            if parsed is None or (kind != "@tombstones" and entry.name != str(parsed[0])):
                yield Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)")
            elif kind == "@versions":
                yield VersionFile(path, name, parsed[0])
            elif kind == PUBLISHED:
                yield PublicationFile(path, name, parsed[0])
            else:
                yield TombstoneFile(path, name, *parsed)
        elif kind == "@dropped":
            if _is(Version.parse, entry.name):
                read = partial(self._drop, name, Version.parse(entry.name))
                yield from self._into(path, entry, read)
            else:
                yield Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)")
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

    def _drop(
        self, name: str, version: Version, path: str, entry: os.DirEntry[str]
    ) -> Iterator[RegistryEntry]:
        if _NUMBER.fullmatch(entry.name):
            yield DropFile(path, name, version, int(entry.name))
        else:
            yield Unknown(path, f"no number of a drop of {name}@{version}")

    def _policy(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        parsed = parse_policy_file(entry.name)
        if parsed is None:
            yield Unknown(path, "no change of a policy (SCOPE@NUMBER)")
        else:
            yield PolicyFile(path, *parsed)

    def _setting(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        if _NUMBER.fullmatch(entry.name):
            yield SettingsFile(path, int(entry.name))
        else:
            yield Unknown(path, "no number of a change of the settings")

    def _withdrawal(self, path: str, entry: os.DirEntry[str]) -> Iterator[RegistryEntry]:
        name, _, label = entry.name.replace("%2f", "/").partition("@")
        parsed = parse_entry_name(label)
        if not _is(check_name, name) or parsed is None:
            yield Unknown(path, "no withdrawn version (NAME@VERSION)")
        else:
            yield WithdrawalFile(path, name, *parsed)

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
            yield Unknown(path, "not a folder of the layout")

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
