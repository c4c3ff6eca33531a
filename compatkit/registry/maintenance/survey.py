"""What is in a registry's folders: names and states, no content, no link followed; odd things become faults."""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.registry.layout import FOLDERS
from compatkit.registry.maintenance.faults import Findings, answer
from compatkit.registry.names import Version
from compatkit.registry.scan import (
    ASIDE,
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
    scan,
)

_FOREIGN = re.compile(
    r"[.#].*|.*~|.*\.(bak|orig|part|sw[op]|tmp)|Thumbs\.db|desktop\.ini|__MACOSX|@eaDir|lost\+found",
    re.IGNORECASE,
)
"""What file managers, editors and copying programs leave."""
MOMENT = 0.1
"""Seconds in which another process gives a folder that it has just made the rights that it needs."""


@attrs.define
class Name:
    """The files that are kept for one name."""

    versions: dict[Version, VersionFile] = attrs.field(factory=dict)
    tombstones: dict[Version, TombstoneFile] = attrs.field(factory=dict)
    aliases: dict[str, AliasPointer] = attrs.field(factory=dict)
    moves: dict[str, dict[int, AliasMove]] = attrs.field(factory=lambda: defaultdict(dict))


@attrs.define
class Survey:
    """What is in a registry's folders; paths are relative to its root.

    Attributes:
        names: The files of each name.
        blobs: State of each blob that is in its place, by ``sha256:...``.
        odd: Code and words of what has a blob's name and is no file, by digest.
        misplaced: Files that have a digest in their name, and are not where that is looked for, by digest.
        policies: Numbered changes of each scope.
        results: Pointers to measured results.
        signatures: In the order of their names.
        withdrawals: What remembers the withdrawal of each version.
        aside: Names in ``tmp``, ``trash`` and ``quarantine``, with their states.
        blocked: Folders that could not be looked into, and what their fault says.
    """

    root: Path
    findings: Findings = attrs.field(factory=Findings)
    names: dict[str, Name] = attrs.field(factory=lambda: defaultdict(Name))
    blobs: dict[str, os.stat_result] = attrs.field(factory=dict)
    odd: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    misplaced: dict[str, list[Misplaced]] = attrs.field(factory=lambda: defaultdict(list))
    policies: dict[str, dict[int, PolicyFile]] = attrs.field(factory=lambda: defaultdict(dict))
    results: list[ResultPointer] = attrs.field(factory=list)
    signatures: list[SignatureFile] = attrs.field(factory=list)
    withdrawals: dict[tuple[str, Version], WithdrawalFile] = attrs.field(factory=dict)
    aside: dict[str, dict[str, os.stat_result]] = attrs.field(factory=lambda: {one: {} for one in ASIDE})
    blocked: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    _narrow: list[str] = attrs.field(factory=list)
    _shared: int = 0

    def __attrs_post_init__(self) -> None:
        mode = stat.S_IMODE(os.stat(self.root).st_mode)
        self._shared = mode & 0o2777 if os.name != "nt" and mode & 0o022 else 0

    def look(self, *folders: str, **only: Any) -> None:
        """Look into folders, or into all; see ``scan``."""
        for one in scan(self.root, *folders, entries=self.entries, **only):
            self._take(one)

    def _take(self, one: Place) -> None:
        match one:
            case VersionFile():
                self.names[one.name].versions[one.version] = one
            case TombstoneFile():
                self.names[one.name].tombstones[one.version] = one
            case AliasPointer():
                self.names[one.name].aliases[one.alias] = one
            case AliasMove():
                self.names[one.name].moves[one.alias][one.number] = one
            case WithdrawalFile():
                self.withdrawals[one.name, one.version] = one
            case PolicyFile():
                self.policies[one.scope][one.number] = one
            case ResultPointer():
                self.results.append(one)
            case SignatureFile():
                self.signatures.append(one)
            case Misplaced():
                self.misplaced[one.digest].append(one)
            case Blob() if (state := self._state(one)) is not None:  # else taken out at this moment
                odd = odd_kind(self.root / one.path, state.st_mode, "file")
                if odd is None:
                    self.blobs[one.digest] = state
                else:
                    self.odd[one.digest] = odd
            case Aside() if (state := self._state(one)) is not None:
                self.aside[one.folder][one.file] = state
            case Obstacle() if (state := self._state(one)) is not None:
                odd = odd_kind(self.root / one.path, state.st_mode, "folder")
                if odd is not None:
                    self.blocked[one.path] = odd
            case Unknown() if (state := self._state(one)) is not None:
                self._tell_foreign(one, state)
            case Reserved() if (state := self._state(one)) is not None:
                if _FOREIGN.fullmatch(os.path.basename(one.path)) or not stat.S_ISREG(state.st_mode):
                    self._tell_foreign(Unknown(one.path, ""), state)
            case Blob() | Aside() | Obstacle() | Unknown() | Reserved() | EmptyFolder():
                pass

    def _state(self, one: Place) -> os.stat_result | None:
        """Return the state of an entry itself; None if it is gone, or cannot be told, which is reported."""
        try:
            return os.lstat(self.root / one.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.blocked[one.path] = "unreadable", answer(error)
            return None

    def is_there(self, path: str) -> bool:
        """Tell whether there is something at a path now, whatever was there when its folder was listed."""
        return os.path.lexists(self.root / path)

    def is_hidden(self, folder: str) -> bool:
        """Tell whether a folder, or one above it, could not be looked into."""
        return any(folder == one or folder.startswith(f"{one}/") for one in self.blocked)

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Return what is in a folder, sorted; odd twins of other names are reported and left out."""
        try:
            with os.scandir(self.root / folder) as found:
                every = sorted(found, key=lambda one: one.name)
            if self._shared and self._shared & ~stat.S_IMODE(os.stat(self.root / folder).st_mode):
                self._narrow.append(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.blocked[folder] = "unreadable", answer(error)
            return []
        alike: dict[str, list[os.DirEntry[str]]] = defaultdict(list)
        for one in every:
            alike[unicodedata.normalize("NFC", one.name).casefold()].append(one)
        if len(alike) == len(every):
            return every
        for key, twins in alike.items():
            if len(twins) > 1:
                names = ", ".join(repr(one.name) for one in twins)
                for one in [one for one in twins if one.name != key] or twins[1:]:
                    path = f"{folder}/{one.name}".lstrip("/")
                    self.findings.add("case-twins", path, f"{names} differ in case or composition only")
                    every.remove(one)
        return every

    def look_aside(self, folder: str) -> dict[str, os.stat_result]:
        """Return the states of what is in ``tmp``, ``trash`` or ``quarantine`` now, by name."""
        found: dict[str, os.stat_result] = {}
        if folder not in self.blocked:
            with (
                suppress(OSError),
                os.scandir(self.root / folder) as entries,
            ):  # told when it was walked through
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def _tell_foreign(self, one: Unknown, state: os.stat_result) -> None:
        """Report an entry that has no place where it is."""
        name = os.path.basename(one.path)
        if odd := odd_kind(self.root / one.path, state.st_mode, "file or folder"):
            self.findings.add(odd[0], one, odd[1])
        elif _FOREIGN.fullmatch(name) or not one.what:
            self.findings.add("stray", one, "no part of the layout; it is kept, and not looked into")
        else:
            self.findings.add("misnamed", one, f"{name!r:.100} is {one.what}")

    def tell_folders(self) -> None:
        """Report folders of the layout that are not there."""
        for name in FOLDERS:
            if name.split("/")[0] not in self.blocked and not self.is_there(name):
                self.findings.add("folder-missing", name, f"the layout has a folder {name}/")

    def tell_rights(self) -> None:
        """Report folders that are narrower than the root; looked at again, for a new one is so for a moment."""
        time.sleep(MOMENT if self._narrow else 0)
        for folder in self._narrow:
            try:
                state = os.stat(self.root / folder)
            except OSError:
                continue  # it was removed
            if self._shared & ~stat.S_IMODE(state.st_mode):
                what = (
                    f"mode {stat.S_IMODE(state.st_mode):o} of user {state.st_uid}, where the root gives "
                    f"{self._shared:o}: others cannot publish here"
                )
                self.findings.add("narrow-rights", folder, what)


def odd_kind(path: str | os.PathLike[str], mode: int, expected: str) -> tuple[str, str] | None:
    """Return code and words if what has a mode is not the file or folder that is expected; None if it is."""
    if stat.S_ISLNK(mode):
        return "symlink", f"a symbolic link to {os.readlink(path)!r:.200}; it was not followed"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        return "special-file", f"a {kind}, where a {expected} is expected"
    if stat.S_ISDIR(mode) and expected == "file":
        return "folder-for-file", "a folder, where a file is expected"
    if stat.S_ISREG(mode) and expected == "folder":
        return "file-for-folder", "a file, where a folder is expected"
    return None
