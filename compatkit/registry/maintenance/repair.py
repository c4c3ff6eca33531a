"""Repairs by fault code; nothing is ever deleted.

Damaged files are moved to ``quarantine/``. Missing blobs are restored from ``trash/``, from an intact copy in
``quarantine/``, or from another copy of the registry, and only with the right digest. Small files that other files do
not determine are restored from a copy of the registry. What cannot be repaired is left, with a remedy.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, IntegrityError, UsageError
from compatkit.foundation.codec import MAX_BYTES, dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.aliases import AliasEntry, read_move, read_pointer
from compatkit.registry.layout import LAYOUT, MARKER, Layout, fresh
from compatkit.registry.maintenance.blobs import blob
from compatkit.registry.maintenance.check import Soundness
from compatkit.registry.maintenance.contents import read_content
from compatkit.registry.maintenance.faults import CODES, Fault
from compatkit.registry.maintenance.files import age, fault_of, read_json
from compatkit.registry.maintenance.plan import ASIDE, REFER, Doubt, Planned, RepairPlan
from compatkit.registry.maintenance.references import policy_file
from compatkit.registry.maintenance.uses import RESULTS
from compatkit.registry.names import Version
from compatkit.registry.reach import edges, walk
from compatkit.registry.refs import LIMIT, pointed, version_line, withdrawal_path
from compatkit.registry.scan import (
    HEXADECIMAL,
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    PolicyFile,
    RegistryEntry,
    ResultPointer,
    TombstoneFile,
    VersionFile,
    WithdrawalFile,
)

if TYPE_CHECKING:
    from compatkit.registry.store import Store

SETTLED = 60
"""Seconds; without hard links, a younger version file may still be in the process of being written."""
MOST_GONE = 1_000
"""Most files restored for one gap in a log."""
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = re.compile(rb'"(?:layout|min_reader|min_writer)"\s*:\s*([0-9]{1,9})')


def plan(soundness: Soundness, *, source: Store | None = None) -> RepairPlan:
    """Plan the repair of what a verification found. Changes nothing.

    Args:
        soundness: Result of ``examine``.
        source: A copy of the registry, or another one that may hold the same bytes.

    Raises:
        UsageError: ``source`` is the registry itself.
    """
    if source is not None and source.root.resolve() == soundness.root.resolve():
        raise UsageError(
            f"{source.root} is the registry itself; name another copy of it.", subject=source.root
        )
    repair = _Repair(
        Planned(soundness, source), {fault.path for fault in soundness.faults if fault.severity == "error"}
    )
    for fault in soundness.faults:
        if fault.severity != "info" and not repair.mend(fault):
            repair.planned.leave(fault)
    return repair.planned.finished()


@attrs.define(slots=False)
class _Repair:
    """Plans repairs; each method returns False if it cannot repair the fault.

    Attributes:
        planned: The plan so far.
        faulty: Paths of errors.
        restored: Whether a missing blob will be restored, by digest.
    """

    planned: Planned
    faulty: set[str]
    restored: dict[str, bool] = attrs.field(factory=dict, init=False)

    def mend(self, fault: Fault) -> bool:
        """Plan the repair of a fault."""
        code = type(fault.place).__name__ if fault.code in _IN_PLACE else fault.code
        mending = _REPAIRS.get(code)
        return mending is not None and mending(self, fault, fault.place)

    def folder(self, fault: Fault, place: None) -> bool:
        return self.planned.make_folder(fault)

    def rights(self, fault: Fault, place: RegistryEntry | None) -> bool:
        mode = stat.S_IMODE(os.lstat(self.planned.root / fault.path).st_mode)
        if isinstance(place, Blob):
            return self.planned.give_rights(fault, mode & ~0o222)
        return self.planned.give_rights(fault, mode | os.stat(self.planned.root).st_mode & 0o2777)

    def marker(self, fault: Fault, place: None) -> bool:
        old = self.planned.content(MARKER) or b""
        value = read_json(old)
        other = isinstance(value, dict) and value.get("hash", "sha256") != "sha256"
        if other or any(int(number) > LAYOUT for number in _NUMBERS.findall(old)):
            return self.planned.leave(
                fault, "it seems to be of a newer layout: upgrade compatkit, and verify again"
            )
        layout, words = fresh(), "with a new identity, for the old one is lost"
        if (known := _ID.search(old)) is not None:
            layout = Layout(LAYOUT, 1, 1, "sha256", known[0].decode())
            words = "with the identity that can still be read in it"
        words = f"write {MARKER} anew, {words}; what is there goes to quarantine/"
        return self.planned.rewrite(fault, MARKER, words, dumps(attrs.asdict(layout)), self._same(MARKER))

    # --- small files

    def version(self, fault: Fault, place: VersionFile) -> bool:
        content = self.planned.content(place.path)
        if fault.code == "version-torn" and age(self.planned.root / place.path) < SETTLED:
            wait = "another process may be writing it at this moment: verify again in a minute"
            return self.planned.leave(fault, wait)
        if self._take_back(fault, place) or self._bring_version(fault, place, content):
            return True
        if fault.code == "version-target":
            return False
        label = f"{place.name}@{place.version}"
        if shown := self._mention(place.name, place.version):
            return self.planned.leave(
                fault,
                f"{shown} shows that {label} was published, so its number stays taken; name another copy of the "
                "registry that has it (--from ROOT)",
            )
        lost = "is no version, and its number is free again"
        if fault.code in ("version-content", "version-exchanged"):
            lost = "is lost, what it pointed at is not known"
        return self.planned.set_aside(fault, REFER, f": {label} {lost}", self._damaged(place))

    def _take_back(self, fault: Fault, place: VersionFile) -> bool:
        """Plan to restore a version from a file that states it but has the name of another; False without one."""
        for other in self.planned.soundness.faults:
            line = (self.planned.content(other.path) or b"") if other.code == "version-exchanged" else b""
            if pointed(line, f"{place.name}@{place.version}") is not None:
                words = f"write {place.path} as {other.path} states it"
                return self.planned.rewrite(fault, place.path, words, line, self._same(place.path))
        return False

    def _bring_version(self, fault: Fault, place: VersionFile, content: bytes | None = None) -> bool:
        """Plan to restore a version from the other registry, with all it needs; False if it is not there."""
        source = self.planned.source
        if source is None:
            return False
        try:
            digest = source.references.digest(place.name, place.version)
        except CompatkitError:
            return False
        if digest is None:
            return False
        line = version_line(f"{place.name}@{place.version}", digest)
        if fault.code == "version-torn" and not line.startswith(content or b""):
            return False  # the remaining part of the file is the beginning of another digest
        if fault.code == "version-target" and not self.planned.is_copy():
            return False
        if not self._complete(fault, digest):
            return False
        words = f"write {place.path} as it is in {source.root}"
        return self.planned.rewrite(fault, place.path, words, line, self._same(place.path))

    def _mention(self, name: str, version: Version) -> str | None:
        """Return the path of a tombstone, alias or move which proves that a version was published."""
        for mention in self.planned.scan(f"refs/{name}", names=name.__eq__):
            content, shown = self.planned.content(mention.path) or b"", False
            if isinstance(mention, TombstoneFile):
                shown = mention.version == version
            elif isinstance(mention, AliasPointer):
                shown = (read_pointer(content) or ("",))[0] == str(version)
            elif isinstance(mention, AliasMove) and (move := read_move(content, mention.number)) is not None:
                shown = str(version) in (move.before, move.after)
            if shown:
                return mention.path
        return None

    def tombstone(self, fault: Fault, place: TombstoneFile | WithdrawalFile) -> bool:
        """Restore a tombstone from its second file, or the reverse; without either, from a copy of the registry."""
        if fault.code == "folder-for-file":
            return False
        label = f"{place.name}@{place.version}"
        both = {f"refs/{place.name}/@tombstones/{place.version}", withdrawal_path(label)}
        (twin,) = both - {place.path}
        data = self.planned.content(twin)
        if data is None or fault_of(place, data):
            return self._copied(fault, place)
        words = f"write {place.path} ({label} stays withdrawn)"
        return self.planned.rewrite(fault, place.path, words, data, self._damaged(place))

    def orphan(self, fault: Fault, place: TombstoneFile) -> bool:
        version = VersionFile(f"refs/{place.name}/@versions/{place.version}", place.name, place.version)
        return self._bring_version(fault, version)

    def dangling(self, fault: Fault, place: AliasPointer) -> bool:
        pointer = read_pointer(self.planned.content(place.path) or b"")
        if pointer is None:
            return False
        version = VersionFile(
            f"refs/{place.name}/@versions/{pointer[0]}", place.name, Version.parse(pointer[0])
        )
        return self._bring_version(fault, version)

    def alias(self, fault: Fault, place: AliasPointer) -> bool:
        """Rewrite the pointer from the last move of its log, unless it names the one after, which was lost."""
        moves = self._moves(place)
        last = max((entry.number for entry in moves), default=0)
        pointer = read_pointer(self.planned.content(place.path) or b"")
        if pointer is not None and pointer[1] == last + 1 and (not moves or pointer[0] != moves[-1].after):
            move = AliasMove(
                f"refs/{place.name}/@log/{place.alias}/{pointer[1]}", place.name, place.alias, pointer[1]
            )
            return self._copied(fault, move) or self.planned.leave(fault, CODES["alias-dangling"].remedy)
        if moves and (move := moves[-1]).after is not None:
            words = f"write {place.path}: {move.after}, as move {move.number} of its log says"
            data = f"{move.after} {move.number}\n".encode()
            return self.planned.rewrite(fault, place.path, words, data, self._same(place.path))
        if not moves and self._copied(fault, place):
            return True
        lost = "the alias was removed" if moves else "no log shows where it pointed; set the alias again"
        return self.planned.set_aside(fault, REFER, f": {lost}", self._same(place.path))

    def _moves(self, place: AliasPointer | AliasMove) -> list[AliasEntry]:
        """Return the readable moves of an alias, ascending."""
        places = self.planned.scan(f"refs/{place.name}", names=place.name.__eq__)
        files = [entry for entry in places if isinstance(entry, AliasMove) and entry.alias == place.alias]
        read = (read_move(self.planned.content(entry.path) or b"", entry.number) for entry in files)
        return sorted((entry for entry in read if entry is not None), key=lambda entry: entry.number)

    def move(self, fault: Fault, place: AliasMove) -> bool:
        """Restore a move from a copy of the registry; otherwise it remains a gap in the log."""
        if self._copied(fault, place):
            return True
        if fault.code != "alias-log-gap":
            self.planned.set_aside(fault, REFER, f": move {place.number} is lost", self._damaged(place))
        return self.planned.leave(fault, CODES["alias-log-gap"].remedy)

    def gap(self, fault: Fault, place: AliasMove | PolicyFile) -> bool:
        """Restore the missing files of a log up to the next existing one."""
        done = False
        for number in range(place.number, place.number + MOST_GONE):
            if isinstance(place, PolicyFile):
                missing: AliasMove | PolicyFile = policy_file(place.scope, number)
            else:
                missing = place._replace(path=f"{os.path.dirname(place.path)}/{number}", number=number)
            if os.path.lexists(self.planned.root / missing.path) or not self._copied(fault, missing):
                break
            done = True
        return done

    def policy(self, fault: Fault, place: PolicyFile) -> bool:
        return self._copied(fault, place) or self.planned.leave(fault, CODES["policy-damaged"].remedy)

    def result(self, fault: Fault, place: ResultPointer) -> bool:
        if not self._is_there(f"sha256:{place.result}"):
            return self.planned.set_aside(fault, REFER, "; measure again", self._damaged(place))
        words = f"write {place.path} anew from its name; a copy goes to quarantine/"
        line = f"sha256:{place.result}\n".encode()
        return self.planned.rewrite(fault, place.path, words, line, self._damaged(place))

    def signature(self, fault: Fault, place: RegistryEntry) -> bool:
        words = "; whoever signed it can do so again"
        return self._copied(fault, place) or self.planned.set_aside(fault, ASIDE, words, self._damaged(place))

    def _copied(self, fault: Fault, place: RegistryEntry) -> bool:
        """Plan to restore a small file from a copy of the registry, if that is sound."""
        source = self.planned.source
        if source is None or not self.planned.is_copy():
            return False
        try:
            opened = durable.read(source.root / place.path, source.root, limit=LIMIT + 1)
        except CompatkitError:
            return False
        if opened is None or fault_of(place, opened[0]):
            return False
        words = f"write {place.path} as it is in {source.root}"
        return self.planned.rewrite(fault, place.path, words, opened[0], self._damaged(place))

    def _damaged(self, place: RegistryEntry) -> Doubt:
        """Return a predicate for whether a file is still damaged; an unreadable one is."""

        def doubt(path: Path) -> bool:
            content = self.planned.content(path)
            return content is None or fault_of(place, content) is not None

        return doubt

    def _same(self, path: str) -> Doubt:
        """Return a predicate for whether a file still has its present content."""
        content = self.planned.content(path)
        return lambda path: self.planned.content(path) == content

    # --- blobs

    def missing(self, fault: Fault, place: Blob) -> bool:
        """Plan to restore a blob; if it is a result, else to move its pointers away."""
        return self._bring(fault, place.digest) or self.forget_result(fault, place)

    def damaged(self, fault: Fault, place: Blob) -> bool:
        """Plan to move away what is in a blob's place, and to restore the blob."""
        if fault.code == "blob-size" and self._holds(place.path, place.digest):
            return False
        self.planned.set_aside(fault, ASIDE, "", partial(self._differs, place.digest))
        if not self.missing(fault, place) and fault.affected:
            self.planned.leave(fault, CODES["blob-missing"].remedy)
        return True

    def _bring(self, fault: Fault, digest: str) -> bool:
        """Plan to restore a blob and what it refers to; False if no intact copy is known."""
        for _ in walk([digest], partial(self._bring_one, fault)):
            pass
        return self.restored[digest]

    def _bring_one(self, fault: Fault, digest: str) -> list[str]:
        """Plan to restore a blob; return the missing digests that it refers to."""
        if digest in self.restored:
            return []
        path, source = blob(digest).path, self.planned.source
        copy = next((path for path in self._copies[digest] if self._holds(path, digest)), None)
        if copy is not None:
            self.restored[digest] = self.planned.put_back(fault, path, digest, copy)
            return self._lacking(self.planned.root, copy)
        if source is not None and _is_file(source.root / path):
            self.restored[digest] = self.planned.copy_in(fault, path, digest, source.root)
            return self._lacking(source.root, path)
        self.restored[digest] = False
        return []

    def _is_there(self, digest: str) -> bool:
        """Return whether a blob is intact in its place, or will be."""
        path = blob(digest).path
        present = path not in self.faulty and _is_file(self.planned.root / path)
        return present or self.restored.get(digest, False)

    def _complete(self, fault: Fault, digest: str) -> bool:
        """Plan to restore what a manifest refers to; False if the manifest cannot be restored."""
        if not self._is_there(digest):
            return self._bring(fault, digest)
        for edge in self._lacking(self.planned.root, blob(digest).path):
            self._bring(fault, edge)
        return True

    def _lacking(self, root: Path, path: str) -> list[str]:
        """Return the missing digests that a document refers to, which the verification did not know of."""
        try:
            state = os.lstat(root / path)
            opened = durable.read(root / path, root) if state.st_size <= MAX_BYTES else None
            value = loads(opened[0], what=path) if opened is not None and opened[0][:1] == b"{" else None
        except (CompatkitError, OSError):
            return []  # not a document; or unreadable, which its own action reports
        return [edge.digest for edge in edges(value) if not self._is_there(edge.digest)]

    def forget_result(self, fault: Fault, place: Blob) -> bool:
        """Plan to move the pointers to a lost result away, so that it can be measured again."""
        pointers = self._pointers[place.digest]
        for path in pointers:
            words = ": its result is lost; measure again"
            self.planned.set_aside(fault, REFER, words, lambda path: True, path)
        return bool(pointers) and all(user.startswith(RESULTS) for user in fault.affected)

    @cached_property
    def _pointers(self) -> dict[str, list[str]]:
        """Return the paths of the pointers to each result."""
        paths: dict[str, list[str]] = defaultdict(list)
        for pointer in self.planned.scan("evidence"):
            if isinstance(pointer, ResultPointer):
                paths[f"sha256:{pointer.result}"].append(pointer.path)
        return paths

    @cached_property
    def _copies(self) -> dict[str, list[str]]:
        """Return the paths of former blobs in ``trash`` and ``quarantine``."""
        paths: dict[str, list[str]] = defaultdict(list)
        for copy in self.planned.scan("trash", "quarantine"):
            if isinstance(copy, Aside) and HEXADECIMAL.fullmatch(copy.file[:64]):
                paths[f"sha256:{copy.file[:64]}"].append(copy.path)
        return paths

    def _holds(self, path: str, digest: str) -> bool:
        try:
            return not self._differs(digest, self.planned.root / path)
        except (CompatkitError, OSError):
            return False

    def _differs(self, digest: str, path: Path) -> bool:
        """Return whether the file at a path is not the blob; raise if it cannot be read."""
        try:
            return read_content(path, self.planned.root).digest != digest
        except IntegrityError:
            return True


def _is_file(path: Path) -> bool:
    with suppress(OSError):
        return durable.file_state(path) is not None
    return False


_IN_PLACE = {"symlink", "special-file", "folder-for-file"}
"""Codes whose repair depends on what belongs in the place."""
_REPAIRS: Mapping[str, Callable[[_Repair, Fault, Any], bool]] = {
    "folder-missing": _Repair.folder,
    **dict.fromkeys(("narrow-rights", "blob-writable"), _Repair.rights),
    **dict.fromkeys(("marker-missing", "marker-damaged"), _Repair.marker),
    **dict.fromkeys(
        ("version-torn", "version-content", "version-exchanged", "version-target", "VersionFile"),
        _Repair.version,
    ),
    **dict.fromkeys(
        ("tombstone-damaged", "tombstone-missing", "TombstoneFile", "WithdrawalFile"), _Repair.tombstone
    ),
    "tombstone-orphan": _Repair.orphan,
    **dict.fromkeys(("alias-damaged", "AliasPointer"), _Repair.alias),
    **dict.fromkeys(("alias-log-damaged", "AliasMove"), _Repair.move),
    "alias-dangling": _Repair.dangling,
    **dict.fromkeys(("alias-log-gap", "policy-gap"), _Repair.gap),
    **dict.fromkeys(("policy-damaged", "PolicyFile"), _Repair.policy),
    **dict.fromkeys(("evidence-damaged", "ResultPointer"), _Repair.result),
    **dict.fromkeys(("signature-damaged", "SignatureFile"), _Repair.signature),
    **dict.fromkeys(
        (
            "blob-missing",
            "manifest-missing",
            "parent-missing",
            "kin-missing",
            "result-missing",
            "blob-in-trash",
        ),
        _Repair.missing,
    ),
    **dict.fromkeys(("blob-digest", "blob-size", "Blob"), _Repair.damaged),
    "result-format": _Repair.forget_result,
}
"""Repairs by fault code, or by the type of the place for the codes in ``_IN_PLACE``."""
