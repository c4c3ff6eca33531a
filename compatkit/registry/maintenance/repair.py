"""Repairs: what can be restored comes back, what is damaged goes to ``quarantine/``, and nothing is made up or deleted.

Missing blobs are restored from ``trash/``, from an intact copy in ``quarantine/``, or from another copy of the
registry, and only with the right digest. Small files are restored from what determines them, such as the second file
of a withdrawal, or from another copy. What cannot be restored is left, with a remedy.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, IntegrityError, UsageError
from compatkit.foundation.codec import MAX_BYTES, dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.aliases import read_pointer
from compatkit.registry.layout import LAYOUT, MARKER, Layout, inspect
from compatkit.registry.maintenance.blobs import blob
from compatkit.registry.maintenance.check import Soundness
from compatkit.registry.maintenance.contents import read_content
from compatkit.registry.maintenance.faults import CODES, Fault
from compatkit.registry.maintenance.files import fault_of, read_json
from compatkit.registry.maintenance.plan import ASIDE, REFER, RESTORE, Action, Changes, Doubt, RepairPlan
from compatkit.registry.maintenance.references import policy_file
from compatkit.registry.maintenance.uses import RESULTS
from compatkit.registry.names import Version
from compatkit.registry.reach import edges, walk
from compatkit.registry.refs import LIMIT, version_line, withdrawal_path
from compatkit.registry.scan import (
    HEXADECIMAL,
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    PolicyFile,
    RegistryEntry,
    ResultPointer,
    SignatureFile,
    TombstoneFile,
    VersionFile,
    WithdrawalFile,
    listed,
    scan,
)

if TYPE_CHECKING:
    from compatkit.registry.store import Store

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
    repair = _Repair(soundness, source)
    for fault in soundness.faults:
        if fault.severity != "info" and not repair.mend(fault):
            repair.left.append(fault)
    actions = sorted(repair.actions.values(), key=lambda action: action.stage)
    return RepairPlan(soundness, tuple(actions), tuple(repair.left))


@attrs.define(slots=False)
class _Repair:
    """Plans repairs; each method returns False if it cannot repair the fault.

    Attributes:
        soundness: Result of the verification.
        source: Another registry that may hold what is missing.
        actions: The plan so far, by path and description.
        left: Faults left to people.
        restored: Whether a missing blob will be restored, by digest.
    """

    soundness: Soundness
    source: Store | None
    actions: dict[tuple[str, str], Action] = attrs.field(factory=dict, init=False)
    left: list[Fault] = attrs.field(factory=list, init=False)
    restored: dict[str, bool] = attrs.field(factory=dict, init=False)

    @property
    def root(self) -> Path:
        """The registry's folder."""
        return self.soundness.root

    @property
    def changes(self) -> Changes:
        """What carries the actions out."""
        return Changes(self.root)

    def mend(self, fault: Fault) -> bool:
        """Plan the repair of a fault."""
        code = type(fault.place).__name__ if fault.code in _IN_PLACE else fault.code
        mending = _REPAIRS.get(code)
        return mending is not None and mending(self, fault, fault.place)

    def _act(
        self, fault: Fault, stage: int, words: str, work: Callable[[], bool], path: str | None = None
    ) -> bool:
        """Plan an action, once; return True."""
        place = fault.path if path is None else path
        self.actions.setdefault((place, words), Action(fault.code, place, words, fault.affected, stage, work))
        return True

    def _set_aside(
        self, fault: Fault, stage: int, words: str, damaged: Doubt, path: str | None = None
    ) -> bool:
        place = fault.path if path is None else path
        work = partial(self.changes.set_aside, place, damaged)
        return self._act(fault, stage, f"move {place} to quarantine/{words}", work, place)

    def folder(self, fault: Fault, place: None) -> bool:
        """Plan to make a folder of the layout."""
        work = partial(self.changes.make_folder, fault.path)
        return self._act(fault, ASIDE, f"make the folder {fault.path}/", work)

    def writable(self, fault: Fault, place: Blob) -> bool:
        """Plan to make a blob read-only; False if another user owns it."""
        state = durable.file_state(self.root / place.path)
        if state is None or not hasattr(os, "geteuid") or os.geteuid() not in (0, state.st_uid):
            return False
        words = f"give {place.path} the mode {stat.S_IMODE(state.st_mode) & ~0o222:o}"
        return self._act(fault, ASIDE, words, partial(self.changes.protect, place.path))

    def marker(self, fault: Fault, place: None) -> bool:
        """Plan to rewrite ``compatkit.json`` if its identity can be read, and nothing shows a newer layout."""
        old = self._content(self.root, MARKER) or b""
        known, value = _ID.search(old), read_json(old)
        other = isinstance(value, dict) and value.get("hash", "sha256") != "sha256"
        if other or any(int(number) > LAYOUT for number in _NUMBERS.findall(old)):
            remedy = "it seems to be of a newer layout: upgrade compatkit, and verify again"
            self.left.append(attrs.evolve(fault, remedy=remedy))
            return True
        if known is None:
            return False
        data = dumps(attrs.asdict(Layout(LAYOUT, 1, 1, "sha256", known[0].decode())))
        words = f"write {MARKER} anew, with the identity that can still be read in it"
        return self._act(fault, REFER, words, partial(self.changes.rewrite, MARKER, data, self._same(MARKER)))

    # --- small files

    def small_file(self, fault: Fault, place: RegistryEntry) -> bool:
        """Plan to restore a small file; without a sound copy, to move it away if reading goes on without it."""
        if fault.code == "folder-for-file" and isinstance(place, TombstoneFile | WithdrawalFile):
            return (
                False  # a folder is moved away before a file takes its place, and the version would come back
            )
        if self._restored(fault, place):
            return True
        if type(place) not in _AFTER:
            return False
        self._set_aside(fault, REFER, _AFTER[type(place)], self._damaged(place))
        if isinstance(place, AliasMove):
            self.left.append(attrs.evolve(fault, remedy=CODES["alias-log-gap"].remedy))
        return True

    def _restored(self, fault: Fault, place: RegistryEntry) -> bool:
        for origin, data in self._copies_of(place):
            if data is not None and fault_of(place, data) is None:
                words = f"write {place.path} as {origin}"
                work = partial(self.changes.rewrite, place.path, data, self._damaged(place))
                return self._act(fault, REFER, words, work, place.path)
        return False

    def _copies_of(self, place: RegistryEntry) -> Iterator[tuple[str, bytes | None]]:
        """Yield what states the content of a small file, and that content: this registry first, then its copy."""
        if isinstance(place, TombstoneFile | WithdrawalFile):
            label = f"{place.name}@{place.version}"
            twins = {f"refs/{place.name}/@tombstones/{place.version}", withdrawal_path(label)}
            (twin,) = twins - {place.path}
            yield f"{twin} says ({label} stays withdrawn)", self._content(self.root, twin)
        if isinstance(place, ResultPointer) and self._is_there(f"sha256:{place.result}"):
            yield "its name says", f"sha256:{place.result}\n".encode()
        if self.source is not None and self._is_copy:
            yield f"it is in {self.source.root}", self._content(self.source.root, place.path)

    @cached_property
    def _is_copy(self) -> bool:
        """Whether the other registry has the identity of this one."""
        try:
            return self.source is not None and self.source.id == inspect(self.root).id
        except CompatkitError:
            return False

    def gap(self, fault: Fault, place: AliasMove | PolicyFile) -> bool:
        """Restore the missing files of a log up to the next existing one."""
        done = False
        for number in range(place.number, place.number + MOST_GONE):
            if isinstance(place, PolicyFile):
                missing: AliasMove | PolicyFile = policy_file(place.scope, number)
            else:
                missing = place._replace(path=f"{os.path.dirname(place.path)}/{number}", number=number)
            if os.path.lexists(self.root / missing.path) or not self._restored(fault, missing):
                break
            done = True
        return done

    def alias(self, fault: Fault, place: AliasPointer) -> bool:
        """Restore the move after the last one if the pointer shows that it was lost; else the pointer itself."""
        pointer = read_pointer(self._content(self.root, place.path) or b"")
        if pointer is None:
            return self.small_file(fault, place)
        log, number = f"refs/{place.name}/@log/{place.alias}", pointer[1]
        move = AliasMove(f"{log}/{number}", place.name, place.alias, number)
        if os.path.lexists(self.root / f"{log}/{number - 1}") and not os.path.lexists(self.root / move.path):
            return self._restored(fault, move)
        return self._set_aside(fault, REFER, _AFTER[AliasPointer], self._same(place.path))

    def orphan(self, fault: Fault, place: TombstoneFile) -> bool:
        """Restore the version of a tombstone."""
        path = f"refs/{place.name}/@versions/{place.version}"
        return self.version(fault, VersionFile(path, place.name, place.version))

    def dangling(self, fault: Fault, place: AliasPointer) -> bool:
        """Restore the version that an alias points at."""
        pointer = read_pointer(self._content(self.root, place.path) or b"")
        if pointer is None:
            return False
        path = f"refs/{place.name}/@versions/{pointer[0]}"
        return self.version(fault, VersionFile(path, place.name, Version.parse(pointer[0])))

    def version(self, fault: Fault, place: VersionFile) -> bool:
        """Plan to restore a version from the other registry, with all it needs; False if it is not there."""
        if self.source is None:
            return False
        try:
            digest = self.source.references.digest(place.name, place.version)
        except CompatkitError:
            return False
        if digest is None:
            return False
        line, content = (
            version_line(f"{place.name}@{place.version}", digest),
            self._content(self.root, place.path),
        )
        if fault.code == "version-torn" and not line.startswith(content or b""):
            return False  # the remaining part of the file is the beginning of another digest
        if fault.code == "version-target" and not self._is_copy:
            return False
        if not self._complete(fault, digest):
            return False
        words = f"write {place.path} as it is in {self.source.root}"
        work = partial(self.changes.rewrite, place.path, line, self._same(place.path))
        return self._act(fault, REFER, words, work, place.path)

    def _content(self, root: Path, path: str | Path) -> bytes | None:
        """Return the beginning of a regular file; None if it is missing or unreadable."""
        try:
            opened = durable.read(root / path, root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return None if opened is None else opened[0]

    def _damaged(self, place: RegistryEntry) -> Doubt:
        """Return a predicate for whether a file is still damaged; an unreadable one is."""

        def doubt(path: Path) -> bool:
            content = self._content(self.root, path)
            return content is None or fault_of(place, content) is not None

        return doubt

    def _same(self, path: str) -> Doubt:
        """Return a predicate for whether a file still has its present content."""
        content = self._content(self.root, path)
        return lambda path: self._content(self.root, path) == content

    # --- blobs

    def missing(self, fault: Fault, place: Blob) -> bool:
        """Plan to restore a blob; if it is a result, else to move its pointers away."""
        return self._bring(fault, place.digest) or self.forget_result(fault, place)

    def damaged(self, fault: Fault, place: Blob) -> bool:
        """Plan to move away what is in a blob's place, and to restore the blob."""
        if fault.code == "blob-size" and self._holds(place.path, place.digest):
            return False
        self._set_aside(fault, ASIDE, "", partial(self._differs, place.digest))
        if not self.missing(fault, place) and fault.affected:
            self.left.append(attrs.evolve(fault, remedy=CODES["blob-missing"].remedy))
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
        path, root = blob(digest).path, self.root
        copy = next((copy for copy in self._copies[digest] if self._holds(copy, digest)), None)
        if copy is None and self.source is not None and _is_file(self.source.root / path):
            copy, root = path, self.source.root
        self.restored[digest] = copy is not None
        if copy is None:
            return []
        words = f"copy {path} from {root if root != self.root else copy}"
        self._act(fault, RESTORE, words, partial(self.changes.restore, path, digest, root / copy, root), path)
        return self._lacking(root, copy)

    def _is_there(self, digest: str) -> bool:
        """Return whether a blob is intact in its place, or will be."""
        path = blob(digest).path
        present = path not in self._faulty and _is_file(self.root / path)
        return present or self.restored.get(digest, False)

    @cached_property
    def _faulty(self) -> set[str]:
        """Paths of errors."""
        return {fault.path for fault in self.soundness.faults if fault.severity == "error"}

    def _complete(self, fault: Fault, digest: str) -> bool:
        """Plan to restore what a manifest refers to; False if the manifest cannot be restored."""
        if not self._is_there(digest):
            return self._bring(fault, digest)
        for edge in self._lacking(self.root, blob(digest).path):
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
            self._set_aside(fault, REFER, words, lambda path: True, path)
        return bool(pointers) and all(user.startswith(RESULTS) for user in fault.affected)

    @cached_property
    def _pointers(self) -> dict[str, list[str]]:
        """Return the paths of the pointers to each result."""
        paths: dict[str, list[str]] = defaultdict(list)
        for pointer in self._scan("evidence"):
            if isinstance(pointer, ResultPointer):
                paths[f"sha256:{pointer.result}"].append(pointer.path)
        return paths

    @cached_property
    def _copies(self) -> dict[str, list[str]]:
        """Return the paths of former blobs in ``trash`` and ``quarantine``."""
        paths: dict[str, list[str]] = defaultdict(list)
        for copy in self._scan("trash", "quarantine"):
            if isinstance(copy, Aside) and HEXADECIMAL.fullmatch(copy.file[:64]):
                paths[f"sha256:{copy.file[:64]}"].append(copy.path)
        return paths

    def _scan(self, *folders: str) -> Iterator[RegistryEntry]:
        """Yield the places in folders; those that cannot be listed are faults of their own."""

        def entries(folder: str) -> list[os.DirEntry[str]]:
            with suppress(OSError):
                return listed(self.root, folder)
            return []

        return scan(self.root, *folders, entries=entries)

    def _holds(self, path: str, digest: str) -> bool:
        try:
            return not self._differs(digest, self.root / path)
        except (CompatkitError, OSError):
            return False

    def _differs(self, digest: str, path: Path) -> bool:
        """Return whether the file at a path is not the blob; raise if it cannot be read."""
        try:
            return read_content(path, self.root).digest != digest
        except IntegrityError:
            return True


def _is_file(path: Path) -> bool:
    with suppress(OSError):
        return durable.file_state(path) is not None
    return False


_AFTER: Mapping[type[RegistryEntry], str] = {
    AliasPointer: ": its log says where the alias points; without a log, set the alias again",
    AliasMove: ": this move is lost",
    ResultPointer: "; measure again",
    SignatureFile: "; whoever signed it can do so again",
}
"""What holds after a damaged file was moved away, of the files without which reading goes on."""
_IN_PLACE = {"symlink", "special-file", "folder-for-file"}
"""Codes whose repair depends on what belongs in the place."""
_LOST = (
    "blob-missing",
    "manifest-missing",
    "parent-missing",
    "kin-missing",
    "result-missing",
    "blob-in-trash",
)
_VERSION = ("version-torn", "version-content", "version-exchanged", "version-target", "VersionFile")
_SMALL = (
    *("tombstone-damaged", "tombstone-missing", "TombstoneFile", "WithdrawalFile"),
    *("alias-log-damaged", "AliasMove", "AliasPointer"),
    *("policy-damaged", "PolicyFile"),
    *("evidence-damaged", "ResultPointer"),
    *("signature-damaged", "SignatureFile"),
)
_REPAIRS: Mapping[str, Callable[[_Repair, Fault, Any], bool]] = {
    "folder-missing": _Repair.folder,
    "blob-writable": _Repair.writable,
    "marker-damaged": _Repair.marker,
    **dict.fromkeys(_SMALL, _Repair.small_file),
    **dict.fromkeys(_VERSION, _Repair.version),
    **dict.fromkeys(_LOST, _Repair.missing),
    **dict.fromkeys(("blob-digest", "blob-size", "Blob"), _Repair.damaged),
    **dict.fromkeys(("alias-log-gap", "policy-gap"), _Repair.gap),
    "tombstone-orphan": _Repair.orphan,
    "alias-damaged": _Repair.alias,
    "alias-dangling": _Repair.dangling,
    "result-format": _Repair.forget_result,
}
"""Repairs by fault code, or by the type of the place for the codes in ``_IN_PLACE``."""
