"""What is in a registry's folders: names and states, no content, no link followed; odd things become faults."""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from collections import defaultdict
from pathlib import Path

import attrs

from compatkit.registry.names import Version
from compatkit.registry.verify.faults import Findings, answer

FOREIGN = re.compile(
    r"[.#].*|.*~|.*\.(bak|orig|part|sw[op]|tmp)|Thumbs\.db|desktop\.ini|__MACOSX|@eaDir|lost\+found",
    re.IGNORECASE,
)
"""What file managers, editors and copying programs leave."""
MOMENT = 0.1
"""Seconds in which another process gives a folder that it has just made the rights that it needs."""


@attrs.define
class Survey:
    """What is in a registry's folders; paths are relative to its root.

    Attributes:
        blobs: State of each blob that is in its place, by ``sha256:...``.
        odd: Code and words of what has a blob's name and is no file, by digest.
        misplaced: Paths of files that have a digest in their name, and are not where that is looked for.
        versions: Versions with a file, by name.
        tombstones: Versions with a tombstone, by name.
        aliases: Aliases with a pointer, by name.
        logs: Numbers of the moves of each alias, by name and alias.
        results: Extractor, head, conditions and result of each pointer below ``evidence``.
        signatures: Manifest (64 hex digits) and file of each signature.
        aside: Names in ``tmp``, ``trash`` and ``quarantine``, with their states.
        narrow: Folders that others cannot write to, though they can to the root.
        blocked: Folders that could not be looked into, and what their fault says.
    """

    root: Path
    findings: Findings
    blobs: dict[str, os.stat_result] = attrs.field(factory=dict)
    odd: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    misplaced: list[str] = attrs.field(factory=list)
    versions: dict[str, list[Version]] = attrs.field(factory=lambda: defaultdict(list))
    tombstones: dict[str, set[Version]] = attrs.field(factory=lambda: defaultdict(set))
    aliases: dict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    logs: dict[str, dict[str, list[int]]] = attrs.field(factory=lambda: defaultdict(dict))
    results: list[tuple[str, str, str, str]] = attrs.field(factory=list)
    signatures: list[tuple[str, str]] = attrs.field(factory=list)
    aside: dict[str, dict[str, os.stat_result]] = attrs.field(factory=dict)
    blocked: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    narrow: list[str] = attrs.field(factory=list)
    _shared: int = 0

    def names(self) -> list[str]:
        """Return every name that something is kept for, sorted."""
        return sorted({*self.versions, *self.tombstones, *self.aliases, *self.logs})

    def take_rights(self) -> None:
        """See what the root gives to others than its owner; folders below must give as much."""
        mode = stat.S_IMODE(os.stat(self.root).st_mode)
        self._shared = mode & 0o2777 if os.name != "nt" and mode & 0o022 else 0

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
            self._look_at_rights(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.block("unreadable", folder, answer(error))
            return []
        alike: dict[str, list[os.DirEntry[str]]] = defaultdict(list)
        for one in every:
            alike[unicodedata.normalize("NFC", one.name).casefold()].append(one)
        if len(alike) == len(every):
            return every
        for key, twins in alike.items():
            if len(twins) > 1:
                odd = [one for one in twins if one.name != key] or twins[1:]
                names = ", ".join(repr(one.name) for one in twins)
                for one in odd:
                    path = f"{folder}/{one.name}".lstrip("/")
                    self.findings.add("case-twins", path, f"{names} differ in case or composition only")
                    every.remove(one)
        return every

    def block(self, code: str, path: str, what: str) -> None:
        """Keep a fault of a folder until it is known what lies behind it."""
        self.blocked[path] = code, what

    def state(self, entry: os.DirEntry[str], path: str) -> os.stat_result | None:
        """Return the state of an entry itself; None if it is gone, or cannot be told, which is reported."""
        try:
            return entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.block("unreadable", path, answer(error))
            return None

    def is_folder(self, entry: os.DirEntry[str], path: str) -> bool:
        """Tell whether an entry is a folder; report it if it is something else."""
        state = self.state(entry, path)
        odd = odd_kind(entry.path, state.st_mode, "folder") if state is not None else None
        if odd is not None:
            self.block(odd[0], path, odd[1])
        return state is not None and odd is None

    def foreign(self, entry: os.DirEntry[str], path: str, what: str) -> None:
        """Report an entry that has no place where it is."""
        state = self.state(entry, path)
        if state is None:
            return
        if odd := odd_kind(entry.path, state.st_mode, "file or folder"):
            self.findings.add(odd[0], path, odd[1])
        elif FOREIGN.fullmatch(entry.name) or not what:
            self.findings.add("stray", path, "no part of the layout; it is kept, and not looked into")
        else:
            self.findings.add("misnamed", path, f"{entry.name!r:.100} is {what}")

    def _look_at_rights(self, folder: str) -> None:
        if self._shared and self._shared & ~stat.S_IMODE(os.stat(self.root / folder).st_mode):
            self.narrow.append(folder)

    def tell_rights(self) -> None:
        """Report folders that are narrower than the root; looked at again, for a new one is so for a moment."""
        time.sleep(MOMENT if self.narrow else 0)
        for folder in self.narrow:
            try:
                state = os.stat(self.root / folder)
            except OSError:
                continue  # it was removed
            if self._shared & ~stat.S_IMODE(state.st_mode):
                self.findings.add(
                    "narrow-rights",
                    folder,
                    f"mode {stat.S_IMODE(state.st_mode):o} of user {state.st_uid}, where the root gives "
                    f"{self._shared:o}: others cannot publish here",
                )


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
