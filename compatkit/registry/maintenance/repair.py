"""Repairs: restore missing files, and move damaged ones to ``quarantine/``. Nothing is invented or deleted.

Missing blobs are restored from ``trash/``, from an intact copy in ``quarantine/``, or from another copy of the
registry, and only with the right digest. Small files are restored from files that determine them, such as the second
file of a withdrawal, or from another copy. Faults that cannot be repaired are listed with a remedy.
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
from compatkit.registry.document_graph import edges, walk
from compatkit.registry.drop_records import drop_log, last_drop, read_drop
from compatkit.registry.layout import LAYOUT, MARKER, Layout, inspect
from compatkit.registry.layout_scan import (
    HEXADECIMAL,
    AliasMove,
    AliasPointer,
    Aside,
    Blob,
    DropFile,
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
from compatkit.registry.log import LIMIT
from compatkit.registry.maintenance.blob_users import RESULTS
from compatkit.registry.maintenance.blobs import blob
from compatkit.registry.maintenance.check import VerificationReport
from compatkit.registry.maintenance.contents import read_content
from compatkit.registry.maintenance.faults import CODES, Fault
from compatkit.registry.maintenance.references import policy_file
from compatkit.registry.maintenance.repair_plan import (
    REFER,
    RESTORE,
    SET_ASIDE,
    Action,
    Changes,
    IsDamaged,
    RepairPlan,
)
from compatkit.registry.maintenance.small_files import fault_of, read_json
from compatkit.registry.names import Version
from compatkit.registry.refs import References, version_line
from compatkit.registry.withdrawals import entry_path, second_path

if TYPE_CHECKING:
    from compatkit.registry.store import Store

GAP_LIMIT = 1_000
"""Number of files restored for one gap in a log at most."""
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = re.compile(rb'"(?:layout|min_reader|min_writer)"\s*:\s*([0-9]{1,9})')


def plan(report: VerificationReport, *, source: Store | None = None) -> RepairPlan:
    """Plan the repair of the faults of a verification; change nothing.

    Args:
        report: Result of ``examine``.
        source: Copy of the registry, or another registry that may contain the same blobs.

    Raises:
        UsageError: ``source`` is the registry itself, or the report is about a remote.
    """
    if report.address:
        raise UsageError(
            f"{report.address} is a remote, which is only read; clone it, and repair the clone.",
            subject=report.address,
        )
    if source is not None and source.root.resolve() == report.root.resolve():
        raise UsageError(f"{source.root} is the registry itself; use a copy of it.", subject=source.root)
    repair = _Repair(report, source)
    for fault in report.faults:
        if fault.severity != "info" and not repair.repair(fault):
            repair.left.append(fault)
    actions = sorted(repair.actions.values(), key=lambda action: action.stage)
    return RepairPlan(report, tuple(actions), tuple(repair.left))


@attrs.define(slots=False)
class _Repair:
    """Plans repairs; the methods in ``_REPAIRS`` return False if they cannot repair the fault.

    Attributes:
        report: Result of the verification.
        source: Another registry that may contain missing files.
        actions: Plan so far, by path and description.
        left: Faults that need a person.
        restored: Whether a missing blob will be restored, by digest.
    """

    report: VerificationReport
    source: Store | None
    actions: dict[tuple[str, str], Action] = attrs.field(factory=dict, init=False)
    left: list[Fault] = attrs.field(factory=list, init=False)
    restored: dict[str, bool] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.root = self.report.root
        self.changes = Changes(self.root)

    def repair(self, fault: Fault) -> bool:
        """Plan the repair of a fault."""
        code = type(fault.entry).__name__ if fault.code in _BY_ENTRY else fault.code
        repair = _REPAIRS.get(code)
        return repair is not None and repair(self, fault, fault.entry)

    def _plan(
        self, fault: Fault, stage: int, words: str, work: Callable[[], bool], path: str | None = None
    ) -> bool:
        """Plan an action, once; return True."""
        path = path or fault.path
        self.actions.setdefault((path, words), Action(fault.code, path, words, fault.affected, stage, work))
        return True

    def _set_aside(
        self, fault: Fault, stage: int, words: str, damaged: IsDamaged, path: str | None = None
    ) -> bool:
        path = path or fault.path
        work = partial(self.changes.set_aside, path, damaged)
        return self._plan(fault, stage, f"move {path} to quarantine/{words}", work, path)

    def folder(self, fault: Fault, entry: None) -> bool:
        """Plan to create a folder of the layout."""
        work = partial(self.changes.make_folder, fault.path)
        return self._plan(fault, SET_ASIDE, f"create the folder {fault.path}/", work)

    def writable(self, fault: Fault, entry: Blob) -> bool:
        """Plan to make a blob read-only; False if another user owns it."""
        state = durable.file_state(self.root / entry.path)
        if state is None or not hasattr(os, "geteuid") or os.geteuid() not in (0, state.st_uid):
            return False
        words = f"set the mode of {entry.path} to {stat.S_IMODE(state.st_mode) & ~0o222:o}"
        return self._plan(fault, SET_ASIDE, words, partial(self.changes.protect, entry.path))

    def marker(self, fault: Fault, entry: None) -> bool:
        """Plan to rewrite ``compatkit.json`` if its identity can be read, unless the layout seems to be newer."""
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
        words = f"rewrite {MARKER} with the identity that can still be read in it"
        return self._plan(
            fault, REFER, words, partial(self.changes.rewrite, MARKER, data, self._same(MARKER))
        )

    # --- small files

    def small_file(self, fault: Fault, entry: RegistryEntry) -> bool:
        """Plan to restore a small file; without a sound copy, to move it away if reading works without it."""
        if fault.code == "folder-for-file" and isinstance(entry, TombstoneFile | WithdrawalFile):
            return False  # between moving the folder and writing the file, the version would not be withdrawn
        if self._restored(fault, entry):
            return True
        if type(entry) not in _CONSEQUENCES:
            return False
        self._set_aside(fault, REFER, _CONSEQUENCES[type(entry)], self._damaged(entry))
        if isinstance(entry, AliasMove):
            self.left.append(attrs.evolve(fault, remedy=CODES["alias-log-gap"].remedy))
        return True

    def _restored(self, fault: Fault, entry: RegistryEntry) -> bool:
        for origin, data in self._copies_of(entry):
            if data is not None and fault_of(entry, data) is None:
                words = f"write {entry.path} as {origin}"
                work = partial(self.changes.rewrite, entry.path, data, self._damaged(entry))
                return self._plan(fault, REFER, words, work, entry.path)
        return False

    def _copies_of(self, entry: RegistryEntry) -> Iterator[tuple[str, bytes | None]]:
        """Yield sources of a small file with its content: files of this registry first, then the other registry."""
        if isinstance(entry, TombstoneFile | WithdrawalFile):
            key = entry.name, entry.version, entry.number
            (other_path,) = {entry_path(*key), second_path(*key)} - {entry.path}
            state = "withdrawn" if entry.number % 2 else "restored"
            label = f"{entry.name}@{entry.version} stays {state}"
            yield f"in {other_path} ({label})", self._content(self.root, other_path)
        if isinstance(entry, ResultPointer) and self._is_available(f"sha256:{entry.result}"):
            yield "in its name", f"sha256:{entry.result}\n".encode()
        if self.source is not None and self._is_copy:
            yield f"in {self.source.root}", self._content(self.source.root, entry.path)

    @cached_property
    def _is_copy(self) -> bool:
        """Whether the other registry has the identity of this one."""
        try:
            return self.source is not None and self.source.id == inspect(self.root).id
        except CompatkitError:
            return False

    def gap(self, fault: Fault, entry: AliasMove | PolicyFile) -> bool:
        """Plan to restore the missing files of a log up to the next existing one."""
        done = False
        for number in range(entry.number, entry.number + GAP_LIMIT):
            if isinstance(entry, PolicyFile):
                missing: AliasMove | PolicyFile = policy_file(entry.scope, number)
            else:
                missing = entry._replace(path=f"{os.path.dirname(entry.path)}/{number}", number=number)
            if os.path.lexists(self.root / missing.path) or not self._restored(fault, missing):
                break
            done = True
        return done

    def alias(self, fault: Fault, entry: AliasPointer) -> bool:
        """Plan to restore the last move if the pointer shows that it was lost; else the pointer."""
        pointer = read_pointer(self._content(self.root, entry.path) or b"")
        if pointer is None:
            return self.small_file(fault, entry)
        log, number = f"refs/{entry.name}/@log/{entry.alias}", pointer[1]
        move = AliasMove(f"{log}/{number}", entry.name, entry.alias, number)
        if os.path.lexists(self.root / f"{log}/{number - 1}") and not os.path.lexists(self.root / move.path):
            return self._restored(fault, move)
        return self._set_aside(fault, REFER, _CONSEQUENCES[AliasPointer], self._same(entry.path))

    def orphan(self, fault: Fault, entry: TombstoneFile) -> bool:
        """Plan to restore the version of a tombstone."""
        path = f"refs/{entry.name}/@versions/{entry.version}"
        return self.version(fault, VersionFile(path, entry.name, entry.version))

    def dangling(self, fault: Fault, entry: AliasPointer) -> bool:
        """Plan to restore the version that an alias points to."""
        pointer = read_pointer(self._content(self.root, entry.path) or b"")
        if pointer is None:
            return False
        path = f"refs/{entry.name}/@versions/{pointer[0]}"
        return self.version(fault, VersionFile(path, entry.name, Version.parse(pointer[0])))

    def version(self, fault: Fault, entry: VersionFile) -> bool:
        """Plan to restore a version and everything it refers to from the other registry; False if missing there."""
        if self.source is None:
            return False
        digest = None
        with suppress(CompatkitError):
            digest = self.source.references.digest(entry.name, entry.version)
        if digest is None or digest == self._dropped(entry):
            return False
        line = version_line(f"{entry.name}@{entry.version}", digest)
        content = self._content(self.root, entry.path) or b""
        if fault.code == "version-torn" and not line.startswith(content):
            return False  # the truncated file has another digest
        if (fault.code == "version-target" and not self._is_copy) or not self._complete(fault, digest):
            return False
        words = f"write {entry.path} as in {self.source.root}"
        work = partial(self.changes.rewrite, entry.path, line, self._same(entry.path))
        return self._plan(fault, REFER, words, work, entry.path)

    def _dropped(self, entry: VersionFile) -> str | None:
        """Return the digest that was dropped from a version number last, which is not restored; None without one."""
        with suppress(CompatkitError):
            record = last_drop(drop_log(References(self.root), entry.name, entry.version))
            return None if record is None else record.digest
        return None

    def unnamed(self, fault: Fault, entry: DropFile) -> bool:
        """Plan to restore a dropped version that has no other name; False if its manifest is lost."""
        record = read_drop(self._content(self.root, entry.path) or b"", entry.number)
        if record is None or not self._complete(fault, record.digest):
            return False
        path = f"refs/{entry.name}/@versions/{entry.version}"
        line = version_line(f"{entry.name}@{entry.version}", record.digest)
        words = f"write {path} as in {entry.path}"
        work = partial(self.changes.rewrite, path, line, self._same(path))
        return self._plan(fault, REFER, words, work, path)

    def _content(self, root: Path, path: str | Path) -> bytes | None:
        """Return the beginning of a regular file; None if it is missing or unreadable."""
        try:
            opened = durable.read(root / path, root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return None if opened is None else opened[0]

    def _damaged(self, entry: RegistryEntry) -> IsDamaged:
        """Return a predicate for whether a file is still damaged or unreadable."""

        def is_damaged(path: Path) -> bool:
            content = self._content(self.root, path)
            return content is None or fault_of(entry, content) is not None

        return is_damaged

    def _same(self, path: str) -> IsDamaged:
        """Return a predicate for whether a file still has its present content."""
        content = self._content(self.root, path)
        return lambda path: self._content(self.root, path) == content

    # --- blobs

    def missing(self, fault: Fault, entry: Blob) -> bool:
        """Plan to restore a blob; if that is impossible and it is a result, to move its pointers away."""
        return self._restore(fault, entry.digest) or self.forget_result(fault, entry)

    def damaged(self, fault: Fault, entry: Blob) -> bool:
        """Plan to move a damaged blob away, and to restore it."""
        if fault.code == "blob-size" and self._holds(entry.path, entry.digest):
            return False
        self._set_aside(fault, SET_ASIDE, "", partial(self._differs, entry.digest))
        if not self.missing(fault, entry) and fault.affected:
            self.left.append(attrs.evolve(fault, remedy=CODES["blob-missing"].remedy))
        return True

    def _restore(self, fault: Fault, digest: str) -> bool:
        """Plan to restore a blob and what it refers to; False if no intact copy is known."""
        for _ in walk([digest], partial(self._restore_blob, fault)):
            pass
        return self.restored[digest]

    def _restore_blob(self, fault: Fault, digest: str) -> list[str]:
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
        self._plan(
            fault, RESTORE, words, partial(self.changes.restore, path, digest, root / copy, root), path
        )
        return self._missing_edges(root, copy)

    def _is_available(self, digest: str) -> bool:
        """Return whether a blob is intact, or will be restored."""
        path = blob(digest).path
        present = path not in self._faulty and _is_file(self.root / path)
        return present or self.restored.get(digest, False)

    @cached_property
    def _faulty(self) -> set[str]:
        """Paths of errors."""
        return {fault.path for fault in self.report.faults if fault.severity == "error"}

    def _complete(self, fault: Fault, digest: str) -> bool:
        """Plan to restore what a manifest refers to; False if the manifest cannot be restored."""
        if not self._is_available(digest):
            return self._restore(fault, digest)
        for edge in self._missing_edges(self.root, blob(digest).path):
            self._restore(fault, edge)
        return True

    def _missing_edges(self, root: Path, path: str) -> list[str]:
        """Return the missing digests that a document refers to; the verification could not know them."""
        try:
            state = os.lstat(root / path)
            opened = durable.read(root / path, root) if state.st_size <= MAX_BYTES else None
            value = loads(opened[0], what=path) if opened is not None and opened[0][:1] == b"{" else None
        except (CompatkitError, OSError):
            return []  # not a document; or unreadable, which its own action reports
        return [edge.digest for edge in edges(value) if not self._is_available(edge.digest)]

    def forget_result(self, fault: Fault, entry: Blob) -> bool:
        """Plan to move the pointers to a lost result away, so that it can be measured again."""
        pointers = self._pointers[entry.digest]
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
        """Yield the entries of folders; unreadable folders have their own faults."""

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


_CONSEQUENCES: Mapping[type[RegistryEntry], str] = {
    AliasPointer: ": its log is used instead; without a log, set the alias again",
    AliasMove: ": this move is lost",
    DropFile: ": the reason is lost; the number stays dropped",
    ResultPointer: "; measure again",
    SignatureFile: "; its signer can sign again",
}
"""Consequence of moving a damaged file away, by type of the entry, if the registry can be read without it."""
_BY_ENTRY = {"symlink", "special-file", "folder-for-file"}
"""Codes whose repair depends on the type of the expected entry."""
_MISSING_BLOBS = (
    *("blob-missing", "manifest-missing", "parent-missing", "kin-missing", "result-missing"),
    "blob-in-trash",
)
_VERSION = ("version-torn", "version-content", "version-exchanged", "version-target", "VersionFile")
_SMALL_FILES = (
    *("tombstone-damaged", "tombstone-missing", "TombstoneFile", "WithdrawalFile"),
    *("alias-log-damaged", "AliasMove", "AliasPointer"),
    *("dropped-damaged", "DropFile"),
    *("policy-damaged", "PolicyFile"),
    *("evidence-damaged", "ResultPointer"),
    *("signature-damaged", "SignatureFile"),
)
_REPAIRS: Mapping[str, Callable[[_Repair, Fault, Any], bool]] = {
    "folder-missing": _Repair.folder,
    "blob-writable": _Repair.writable,
    "marker-damaged": _Repair.marker,
    **dict.fromkeys(_SMALL_FILES, _Repair.small_file),
    **dict.fromkeys(_VERSION, _Repair.version),
    **dict.fromkeys(_MISSING_BLOBS, _Repair.missing),
    **dict.fromkeys(("blob-digest", "blob-size", "Blob"), _Repair.damaged),
    **dict.fromkeys(("alias-log-gap", "policy-gap"), _Repair.gap),
    "tombstone-orphan": _Repair.orphan,
    "dropped-unnamed": _Repair.unnamed,
    "alias-damaged": _Repair.alias,
    "alias-dangling": _Repair.dangling,
    "result-format": _Repair.forget_result,
}
"""Repairs by fault code, or by the type of the entry for the codes in ``_BY_ENTRY``."""
