"""Survey of a registry's files by name and state; odd entries become faults, and links are not followed."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.layout import FOLDERS
from compatkit.registry.maintenance.faults import Findings, answer, odd_kind
from compatkit.registry.maintenance.files import fault_of
from compatkit.registry.names import Version
from compatkit.registry.refs import LIMIT
from compatkit.registry.scan import (
    ASIDE,
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    Obstacle,
    PolicyFile,
    RegistryEntry,
    ResultPointer,
    SignatureFile,
    TombstoneFile,
    Unknown,
    VersionFile,
    WithdrawalFile,
    listed,
    scan,
)

_FOREIGN = re.compile(
    r"[.#].*|.*~|.*\.(bak|orig|part|sw[op]|tmp)|Thumbs\.db|desktop\.ini|__MACOSX|@eaDir|lost\+found",
    re.IGNORECASE,
)
"""Files of file managers, editors and copy programs."""


@attrs.define
class NameFiles:
    """The files of one name."""

    versions: dict[Version, VersionFile] = attrs.field(factory=dict)
    tombstones: dict[Version, TombstoneFile] = attrs.field(factory=dict)
    aliases: dict[str, AliasPointer] = attrs.field(factory=dict)
    moves: dict[str, dict[int, AliasMove]] = attrs.field(factory=lambda: defaultdict(dict))


@attrs.define
class Survey:
    """The files of a registry; paths are relative to its root.

    Attributes:
        names: Files of each name.
        blobs: State of each existing blob, by ``sha256:...``.
        odd: Fault code and description of entries with a blob's name that are not files, by digest.
        policies: Numbered changes of each scope.
        results: Pointers to measured results.
        signatures: Sorted by name.
        withdrawals: Second file of the withdrawal of each version.
        aside: Names in ``tmp``, ``trash`` and ``quarantine``, with their states.
        blocked: Folders that could not be listed, with code and description of the fault.
    """

    root: Path
    findings: Findings = attrs.field(factory=Findings)
    names: dict[str, NameFiles] = attrs.field(factory=lambda: defaultdict(NameFiles))
    blobs: dict[str, os.stat_result] = attrs.field(factory=dict)
    odd: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    policies: dict[str, dict[int, PolicyFile]] = attrs.field(factory=lambda: defaultdict(dict))
    results: list[ResultPointer] = attrs.field(factory=list)
    signatures: list[SignatureFile] = attrs.field(factory=list)
    withdrawals: dict[tuple[str, Version], WithdrawalFile] = attrs.field(factory=dict)
    aside: dict[str, dict[str, os.stat_result]] = attrs.field(
        factory=lambda: {folder: {} for folder in ASIDE}
    )
    blocked: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    _plain: set[str] = attrs.field(factory=set)
    _prefix: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._prefix = f"{self.root}{os.sep}"

    def look(self, *folders: str, wanted: Callable[[str], bool] = lambda folder: True) -> None:
        """Walk through folders, or through all; see ``scan``."""
        for place in scan(self.root, *folders, entries=self._entries, wanted=wanted):
            self._take(place)

    def _take(self, place: RegistryEntry) -> None:
        match place:
            case VersionFile():
                self.names[place.name].versions[place.version] = place
            case TombstoneFile():
                self.names[place.name].tombstones[place.version] = place
            case AliasPointer():
                self.names[place.name].aliases[place.alias] = place
            case AliasMove():
                self.names[place.name].moves[place.alias][place.number] = place
            case WithdrawalFile():
                self.withdrawals[place.name, place.version] = place
            case PolicyFile():
                self.policies[place.scope][place.number] = place
            case ResultPointer():
                self.results.append(place)
            case SignatureFile():
                self.signatures.append(place)
            case Blob() | Aside() | Obstacle() | Unknown():
                try:
                    with suppress(FileNotFoundError):  # removed concurrently
                        self._take_state(place, os.lstat(self._prefix + place.path))
                except OSError as error:
                    self.blocked[place.path] = "unreadable", answer(error)

    def _take_state(self, place: RegistryEntry, state: os.stat_result) -> None:
        expected = {Blob: "file", Obstacle: "folder"}.get(type(place), "file or folder")
        odd = (
            None if isinstance(place, Aside) else odd_kind(self._prefix + place.path, state.st_mode, expected)
        )
        match place:
            case Aside():
                self.aside[place.folder][place.file] = state
            case Blob() if odd is not None:
                self.odd[place.digest] = odd
            case Blob():
                self.blobs[place.digest] = state
            case Obstacle() if odd is not None:
                self.blocked[place.path] = odd
            case Unknown() if odd is not None:
                self.findings.add(odd[0], place, odd[1])
            case Unknown() if _FOREIGN.fullmatch(os.path.basename(place.path)) or not place.what:
                self.findings.add("stray", place, "no part of the layout; it is kept, and not looked into")
            case Unknown():
                self.findings.add("misnamed", place, f"{os.path.basename(place.path)!r:.100} is {place.what}")

    def read(self, place: RegistryEntry, affected: tuple[str, ...] = ()) -> bytes | None:
        """Return the content of a small file if it is sound; otherwise report a fault and return None.

        Args:
            place: Of the file.
            affected: References that a fault would concern.
        """
        content = self._content(place, affected)
        fault = None if content is None else fault_of(place, content)
        if fault is not None:
            self.findings.add(fault[0], place, fault[1], affected)
            return None
        return content

    def _content(self, place: RegistryEntry, affected: tuple[str, ...]) -> bytes | None:
        try:
            return durable.read_finished(self.root / place.path, self.root, limit=LIMIT + 1)
        except IntegrityError as error:  # something else than a file, or a folder became a link
            odd = odd_kind(self.root / place.path, os.lstat(self.root / place.path).st_mode, "file")
            self.findings.add(*(odd[0], place, odd[1]) if odd else ("symlink", place, str(error)), affected)
        except EnvironmentFailure as error:
            self.findings.add("unreadable", place, answer(error), affected)
        return None

    def content(self, path: str, limit: int | None = None) -> bytes | None:
        """Read a file; None if there is none. The folders to it are looked at for the first file in each.

        Args:
            path: Relative to the root.
            limit: Bytes to read at most.

        Raises:
            IntegrityError: It is no plain file, or a folder is a link.
            EnvironmentFailure: It cannot be read.
        """
        folder = path.rpartition("/")[0]
        if folder not in self._plain:
            durable.check_folders(self.root / folder, self.root)
            self._plain.add(folder)
        opened = durable.read(f"{self._prefix}{path}", None, limit=limit)
        return None if opened is None else opened[0]

    def is_there(self, path: str) -> bool:
        """Return whether a path exists now, whatever the listing of its folder said."""
        return os.path.lexists(self.root / path)

    def is_hidden(self, folder: str) -> bool:
        """Return whether a folder, or one above it, could not be listed."""
        return any(folder == blocked or folder.startswith(f"{blocked}/") for blocked in self.blocked)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            return listed(self.root, folder)
        except OSError as error:
            self.blocked[folder] = "unreadable", answer(error)
            return []

    def report_folders(self) -> None:
        """Report missing folders of the layout."""
        for name in FOLDERS:
            if name.split("/")[0] not in self.blocked and not self.is_there(name):
                self.findings.add("folder-missing", name, f"the layout has a folder {name}/")
