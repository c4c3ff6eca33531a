"""List the files of a registry, without following links; unexpected entries become faults."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.layout import FOLDERS
from compatkit.registry.layout_scan import (
    ASIDE,
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    DropFile,
    Obstacle,
    PolicyFile,
    PublicationFile,
    RegistryEntry,
    ResultPointer,
    SettingsFile,
    SignatureFile,
    TombstoneFile,
    Unknown,
    VersionFile,
    WithdrawalFile,
    listed,
    scan,
)
from compatkit.registry.log import LIMIT
from compatkit.registry.maintenance.faults import Findings, kind_fault, os_message
from compatkit.registry.maintenance.small_files import fault_of
from compatkit.registry.names import Version
from compatkit.registry.refs import digest_in

_FOREIGN = re.compile(
    r"[.#].*|.*~|.*\.(bak|orig|part|sw[op]|tmp)|Thumbs\.db|desktop\.ini|__MACOSX|@eaDir|lost\+found",
    re.IGNORECASE,
)
"""Files of file managers, editors and copy programs."""


@attrs.define
class NameFiles:
    """Files of one name.

    Attributes:
        versions: Version files.
        tombstones: Withdrawals and restorations by version and number.
        aliases: Pointers of aliases.
        moves: Log entries by alias and number.
        drops: Records of dropped numbers, by version and number.
    """

    versions: dict[Version, VersionFile] = attrs.field(factory=dict)
    tombstones: dict[Version, dict[int, TombstoneFile]] = attrs.field(factory=lambda: defaultdict(dict))
    aliases: dict[str, AliasPointer] = attrs.field(factory=dict)
    moves: dict[str, dict[int, AliasMove]] = attrs.field(factory=lambda: defaultdict(dict))
    drops: dict[Version, dict[int, DropFile]] = attrs.field(factory=lambda: defaultdict(dict))

    @property
    def withdrawn(self) -> set[Version]:
        """Versions whose last entry withdraws them."""
        return {version for version, entries in self.tombstones.items() if max(entries) % 2}


@attrs.define
class Survey:
    """Files of a registry; paths are relative to its root.

    Attributes:
        root: Folder of the registry.
        findings: Faults.
        names: Files of each name.
        blobs: State of each existing blob, by digest.
        irregular: Fault code and description of entries with a blob's name that are not files, by digest.
        policies: Policy changes by scope and number.
        publications: Records of publications.
        settings: Changes of the settings.
        results: Pointers to measured results.
        signatures: Signatures, sorted by name.
        withdrawals: Second files of withdrawals and restorations.
        aside: States of files in ``tmp``, ``trash`` and ``quarantine``, by name.
        blocked: Fault code and description of folders that could not be listed, by path.
    """

    root: Path
    findings: Findings = attrs.field(factory=Findings)
    names: dict[str, NameFiles] = attrs.field(factory=lambda: defaultdict(NameFiles))
    blobs: dict[str, os.stat_result] = attrs.field(factory=dict)
    irregular: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    policies: dict[str, dict[int, PolicyFile]] = attrs.field(factory=lambda: defaultdict(dict))
    publications: list[PublicationFile] = attrs.field(factory=list)
    settings: list[SettingsFile] = attrs.field(factory=list)
    results: list[ResultPointer] = attrs.field(factory=list)
    signatures: list[SignatureFile] = attrs.field(factory=list)
    withdrawals: list[WithdrawalFile] = attrs.field(factory=list)
    aside: dict[str, dict[str, os.stat_result]] = attrs.field(
        factory=lambda: {folder: {} for folder in ASIDE}
    )
    blocked: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    _plain: set[str] = attrs.field(factory=set)
    _prefix: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._prefix = f"{self.root}{os.sep}"

    def scan(self, *folders: str, wanted: Callable[[str], bool] = lambda folder: True) -> None:
        """Add the files of some folders, or of all; see ``layout_scan.scan``."""
        for entry in scan(self.root, *folders, entries=self._entries, wanted=wanted):
            self._add(entry)

    def _add(self, entry: RegistryEntry) -> None:
        match entry:
            case VersionFile():
                self.names[entry.name].versions[entry.version] = entry
            case Blob() | Aside() | Obstacle() | Unknown():
                try:
                    self._add_state(entry, os.lstat(self._prefix + entry.path))
                except FileNotFoundError:  # removed concurrently
                    return
                except OSError as error:
                    self.blocked[entry.path] = "unreadable", os_message(error)
            case TombstoneFile():
                self.names[entry.name].tombstones[entry.version][entry.number] = entry
            case AliasPointer():
                self.names[entry.name].aliases[entry.alias] = entry
            case AliasMove():
                self.names[entry.name].moves[entry.alias][entry.number] = entry
            case DropFile():
                self.names[entry.name].drops[entry.version][entry.number] = entry
            case WithdrawalFile():
                self.withdrawals.append(entry)
            case PolicyFile():
                self.policies[entry.scope][entry.number] = entry
            case PublicationFile():
                self.publications.append(entry)
            case SettingsFile():
                self.settings.append(entry)
            case ResultPointer():
                self.results.append(entry)
            case SignatureFile():
                self.signatures.append(entry)

    def _add_state(self, entry: RegistryEntry, state: os.stat_result) -> None:
        if isinstance(entry, Blob) and stat.S_ISREG(state.st_mode):
            self.blobs[entry.digest] = state
            return
        expected = {Blob: "file", Obstacle: "folder"}.get(type(entry), "file or folder")
        fault = (
            None
            if isinstance(entry, Aside)
            else kind_fault(self._prefix + entry.path, state.st_mode, expected)
        )
        match entry:
            case Aside():
                self.aside[entry.folder][entry.file] = state
            case Blob() if fault is not None:
                self.irregular[entry.digest] = fault
            case Obstacle() if fault is not None:
                self.blocked[entry.path] = fault
            case Unknown() if fault is not None:
                self.findings.add(fault[0], entry, fault[1])
            case Unknown() if _FOREIGN.fullmatch(os.path.basename(entry.path)) or not entry.what:
                self.findings.add("stray", entry, "not part of the layout; ignored")
            case Unknown():
                self.findings.add("misnamed", entry, f"{os.path.basename(entry.path)!r:.100} is {entry.what}")

    def read(self, entry: RegistryEntry, affected: tuple[str, ...] = ()) -> bytes | None:
        """Return the content of a small file if it is sound; otherwise report a fault and return None.

        Args:
            entry: Entry of the file.
            affected: References that a fault would affect.
        """
        content = self._content(entry, affected)
        fault = None if content is None else fault_of(entry, content)
        if fault is not None:
            self.findings.add(fault[0], entry, fault[1], affected)
            return None
        return content

    def manifest_of(self, entry: VersionFile, label: str) -> str | None:
        """Return the manifest digest in a version file; report a damaged file and return None.

        Args:
            entry: Entry of the file.
            label: ``name@version``.
        """
        content = self._content(entry, (label,))
        if content is None:
            return None
        digest = digest_in(content, label)
        if digest is None and (fault := fault_of(entry, content)):
            self.findings.add(fault[0], entry, fault[1], (label,))
        return digest

    def _content(self, entry: RegistryEntry, affected: tuple[str, ...]) -> bytes | None:
        try:
            self._check_folder(entry.path)
            return durable.read_finished(f"{self._prefix}{entry.path}", None, limit=LIMIT + 1)
        except IntegrityError as error:  # not a file, or a folder became a link
            fault = kind_fault(self.root / entry.path, os.lstat(self.root / entry.path).st_mode, "file")
            self.findings.add(
                *(fault[0], entry, fault[1]) if fault else ("symlink", entry, str(error)), affected
            )
        except EnvironmentFailure as error:
            self.findings.add("unreadable", entry, os_message(error), affected)
        return None

    def content(self, path: str, limit: int | None = None) -> bytes | None:
        """Return the content of a file, up to ``limit`` bytes; None if it is missing.

        Raises:
            IntegrityError: The path is not a plain file, or a folder is a link; each folder is checked only once.
            EnvironmentFailure: The file cannot be read.
        """
        self._check_folder(path)
        opened = durable.read(f"{self._prefix}{path}", None, limit=limit)
        return None if opened is None else opened[0]

    def _check_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._plain:
            durable.check_folders(self.root / folder, self.root)
            self._plain.add(folder)

    def exists(self, path: str) -> bool:
        """Return whether a path exists now, even if it was missing when its folder was listed."""
        return os.path.lexists(self.root / path)

    def is_hidden(self, folder: str) -> bool:
        """Return whether a folder or one of its parents could not be listed."""
        return any(folder == blocked or folder.startswith(f"{blocked}/") for blocked in self.blocked)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            return listed(self.root, folder)
        except OSError as error:
            self.blocked[folder] = "unreadable", os_message(error)
            return []

    def report_folders(self) -> None:
        """Report missing folders of the layout."""
        for name in FOLDERS:
            if name.split("/")[0] not in self.blocked and not self.exists(name):
                self.findings.add("folder-missing", name, f"expected the folder {name}/")
