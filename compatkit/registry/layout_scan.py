"""Scan of a registry's folders: each file is classified by its path and yielded as a typed entry.

Each entry has a ``path``, relative to the root, with slashes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import attrs

from compatkit.errors import InvalidName
from compatkit.registry.layout import MARKER, REFS_FILE
from compatkit.registry.names import Version, check_alias, check_name, check_segment
from compatkit.registry.policy_scopes import parse_file as parse_policy_file
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
Read = Callable[[str, "os.DirEntry[str]"], "Iterable[RegistryEntry]"]
"""Function that classifies a directory entry, given its path, or scans the folder that it names."""
Classify = Callable[[str, str], "RegistryEntry"]
"""Function that classifies a file, given its path and name."""


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

    def top(self, folder: str) -> Iterable[RegistryEntry]:
        """Return the entries of a folder, or the obstacle on the path to it."""
        for ancestor in (*reversed(PurePosixPath(folder).parents), PurePosixPath(folder)):
            try:
                mode = os.lstat(self.root / ancestor).st_mode
            except FileNotFoundError:
                return ()
            if not stat.S_ISDIR(mode) and ancestor.name:
                return (Obstacle(str(ancestor)),)
        kind, *segments = folder.split("/")
        folders: dict[str, Read] = {
            "refs": partial(self._name, segments),
            "evidence": partial(self._result, ()),
            "signatures": self._signed,
            "blobs": self._blobs,
        }
        if kind in folders:
            return self._each(folders[kind], folder)
        return self._files(_FILES[kind], folder) if kind in _FILES else ()  # keys and locks are reserved

    def _each(self, read: Read, folder: str) -> Iterator[RegistryEntry]:
        for entry in self.list(folder):
            yield from read(f"{folder}/{entry.name}", entry)

    def _files(self, classify: Classify, folder: str) -> Iterable[RegistryEntry]:
        return [classify(f"{folder}/{entry.name}", entry.name) for entry in self.list(folder)]

    def _into(
        self, path: str, entry: os.DirEntry[str], scan: Callable[[str], Iterable[RegistryEntry]]
    ) -> Iterable[RegistryEntry]:
        if not self.wanted(path):
            return ()
        return scan(path) if entry.is_dir(follow_symlinks=False) else (Obstacle(path),)

    def _name(self, segments: Sequence[str], path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        name, short = "/".join(segments), len(segments) < 3
        if segments and entry.name in NAME_FOLDERS:
            return self._into(path, entry, self._inside(name, entry.name))
        if short and _is(check_segment, entry.name) and not entry.is_file(follow_symlinks=False):
            within = (*segments, entry.name)
            return self._into(path, entry, partial(self._each, partial(self._name, within)))
        if self.wanted(f"refs/{name}/@"):
            what = "no part of a name" if short else "a fourth part of a name; three are allowed"
            return (Unknown(path, what),)
        return ()

    def _inside(self, name: str, kind: str) -> Callable[[str], Iterable[RegistryEntry]]:
        """Return the scan of a subfolder of a name."""
        if kind == "@dropped":
            return partial(self._each, partial(self._dropped, name))
        if kind == "@log":
            return partial(self._each, partial(self._moved, name))
        return partial(self._files, partial(_file_inside, name, kind))

    def _dropped(self, name: str, path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if not _is(Version.parse, entry.name):
            return (Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)"),)
        classify = partial(_drop, name, Version.parse(entry.name))
        return self._into(path, entry, partial(self._files, classify))

    def _moved(self, name: str, path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if not _is(check_alias, entry.name):
            return (Unknown(path, f"no alias of {name}"),)
        return self._into(path, entry, partial(self._files, partial(_move, name, entry.name)))

    def _result(self, keys: tuple[str, ...], path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if not HEXADECIMAL.fullmatch(entry.name):
            what = "no result (64 hex digits)" if len(keys) == 3 else "no digest (64 hex digits)"
            return (Unknown(path, what),)
        if len(keys) == 3:
            return (ResultPointer(path, *keys, entry.name),)
        return self._into(path, entry, partial(self._each, partial(self._result, (*keys, entry.name))))

    def _signed(self, path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if not HEXADECIMAL.fullmatch(entry.name):
            return (Unknown(path, ""),)
        return self._into(path, entry, partial(self._files, partial(_signature, entry.name)))

    def _blobs(self, path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if entry.name != "sha256":
            return (Unknown(path, "not a folder of the layout"),)
        return self._into(path, entry, partial(self._each, self._shard))

    def _shard(self, path: str, entry: os.DirEntry[str]) -> Iterable[RegistryEntry]:
        if not SHARD.fullmatch(entry.name):
            return (Unknown(path, "no digest (64 hex digits)"),)
        return self._into(path, entry, partial(self._files, partial(_blob, entry.name)))


def _aside(path: str, file: str) -> RegistryEntry:
    return Aside(path, path.partition("/")[0], file)


def _file_inside(name: str, kind: str, path: str, file: str) -> RegistryEntry:
    if kind == "@aliases":
        return (
            AliasPointer(path, name, file) if _is(check_alias, file) else Unknown(path, f"no alias of {name}")
        )
    parsed = parse_entry_name(file)
    if parsed is None or (kind != "@tombstones" and "~" in file):
        return Unknown(path, f"no version of {name} (MAJOR.MINOR.PATCH)")
    if kind == "@versions":
        return VersionFile(path, name, parsed[0])
    return PublicationFile(path, name, parsed[0]) if kind == PUBLISHED else TombstoneFile(path, name, *parsed)


def _move(name: str, alias: str, path: str, file: str) -> RegistryEntry:
    if _NUMBER.fullmatch(file):
        return AliasMove(path, name, alias, int(file))
    return Unknown(path, f"no number of a move of {name}:{alias}")


def _drop(name: str, version: Version, path: str, file: str) -> RegistryEntry:
    if _NUMBER.fullmatch(file):
        return DropFile(path, name, version, int(file))
    return Unknown(path, f"no number of a drop of {name}@{version}")


def _policy(path: str, file: str) -> RegistryEntry:
    parsed = parse_policy_file(file)
    return (
        Unknown(path, "no change of a policy (SCOPE@NUMBER)") if parsed is None else PolicyFile(path, *parsed)
    )


def _setting(path: str, file: str) -> RegistryEntry:
    if _NUMBER.fullmatch(file):
        return SettingsFile(path, int(file))
    return Unknown(path, "no number of a change of the settings")


def _withdrawal(path: str, file: str) -> RegistryEntry:
    name, _, label = file.replace("%2f", "/").partition("@")
    parsed = parse_entry_name(label)
    if not _is(check_name, name) or parsed is None:
        return Unknown(path, "no withdrawn version (NAME@VERSION)")
    return WithdrawalFile(path, name, *parsed)


def _signature(signed: str, path: str, file: str) -> RegistryEntry:
    return SignatureFile(path, signed, file) if SIGNATURE.fullmatch(file) else Unknown(path, "")


def _blob(shard: str, path: str, file: str) -> RegistryEntry:
    if HEXADECIMAL.fullmatch(file) and file.startswith(shard):
        return Blob(path, f"sha256:{file}")
    return Unknown(path, "no digest (64 hex digits)")


_FILES: dict[str, Classify] = {
    "policies": _policy,
    SETTINGS: _setting,
    WITHDRAWALS: _withdrawal,
    **dict.fromkeys(ASIDE, _aside),
}
"""Function that classifies the files of a top-level folder without subfolders."""


def _is(check: Callable[[str], object], name: str) -> bool:
    try:
        return bool(check(name))
    except InvalidName:
        return False
