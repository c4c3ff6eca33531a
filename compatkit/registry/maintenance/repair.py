"""What mends each fault, by its code; nothing is ever deleted.

Damaged files go to ``quarantine/``; missing bytes come from ``trash/``, from a good copy in ``quarantine/``, or from
another copy of the registry, and only if their digest is right. What cannot be mended is said, with what to do.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, FormatError, UsageError
from compatkit.registry import disk as durable
from compatkit.registry.aliases import AliasEntry
from compatkit.registry.layout import LAYOUT, MARKER, Layout
from compatkit.registry.maintenance.check import Soundness
from compatkit.registry.maintenance.faults import CODES, Fault
from compatkit.registry.maintenance.plan import ASIDE, REFER, Planned, RepairPlan
from compatkit.registry.maintenance.restore import BlobRepair
from compatkit.registry.maintenance.smallfiles import (
    age,
    is_cut_off,
    is_result_pointer,
    is_tombstone,
    policy_file,
    read_json,
    read_move,
    read_pointer,
    signature_fault,
)
from compatkit.registry.names import Version
from compatkit.registry.policylog import understood
from compatkit.registry.refs import LIMIT, now, pointed, version_line, withdrawal_path
from compatkit.registry.scan import (
    AliasMove,
    AliasPointer,
    Misplaced,
    PolicyFile,
    ResultPointer,
    SignatureFile,
    TombstoneFile,
    VersionFile,
    WithdrawalFile,
)

if TYPE_CHECKING:
    from compatkit.registry.store import Store

REASON = "tombstone was damaged"
"""Why a version is withdrawn whose tombstone could not be read."""
SETTLED = 60
"""Seconds; a version file that is younger may still be written, where there are no hard links."""
MOST_MOVES = 10_000
"""Moves of an alias that are written anew; a log with larger gaps was never one."""
MOST_CHANGES = 1_000
"""Changes of a policy, of one gap, that are brought back."""
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = re.compile(rb'"(?:layout|min_reader|min_writer)"\s*:\s*([0-9]{1,9})')


def plan(soundness: Soundness, *, source: Store | None = None) -> RepairPlan:
    """Say what would mend what an examination found. Changes nothing.

    Args:
        soundness: What ``examine`` returned.
        source: Another copy of the registry, or any that may hold the same bytes.

    Raises:
        UsageError: ``source`` is the registry itself.
    """
    if source is not None and source.root.resolve() == soundness.root.resolve():
        raise UsageError(
            f"{source.root} is the registry itself; name another copy of it.", subject=source.root
        )
    planned = Planned(soundness, source)
    repair = _Repair(planned, BlobRepair(planned))
    for fault in soundness.faults:
        if fault.severity != "info" or fault.code == "alias-behind":
            if not repair.mend(fault):
                planned.leave(fault)
    return planned.finished()


@attrs.frozen
class _Repair:
    """Plans what mends faults; each method returns False if nothing does."""

    planned: Planned
    blobs: BlobRepair
    _aliases: dict[tuple[str, str], bool] = attrs.field(factory=dict, init=False)

    def mend(self, fault: Fault) -> bool:
        """Plan what mends a fault."""
        place: Any = fault.place
        code = type(place).__name__ if fault.code in _IN_PLACE else fault.code
        mending = _REPAIRS.get(code)
        return mending is not None and mending(self, fault, place)

    def folder(self, fault: Fault, place: None) -> bool:
        work = partial(self.planned.mender.make_folder, fault.path)
        return self.planned.act(fault, ASIDE, f"make the folder {fault.path}/", work)

    def rights(self, fault: Fault, place: None) -> bool:
        state, root = os.lstat(self.planned.root / fault.path), os.stat(self.planned.root)
        mode = stat.S_IMODE(state.st_mode) | (stat.S_IMODE(root.st_mode) & 0o2777)
        return self.planned.give_rights(fault, mode)

    def marker(self, fault: Fault, place: None) -> bool:
        old = self.planned.content(MARKER) or b""
        value = read_json(old)
        other = isinstance(value, dict) and value.get("hash", "sha256") != "sha256"
        if other or any(int(number) > LAYOUT for number in _NUMBERS.findall(old)):
            return self.planned.leave(
                fault, "it seems to be of a newer layout: upgrade compatkit, and verify again"
            )
        known = _ID.search(old)
        if known is not None:
            identity, words = known[0].decode(), "with the identity that can still be read in it"
        else:
            from uuid import uuid4

            identity, words = str(uuid4()), "with a new identity, for the old one is lost"
        data = dumps(attrs.asdict(Layout(LAYOUT, 1, 1, "sha256", identity)))
        work = partial(self.planned.mender.rewrite, MARKER, data, lambda path: path.read_bytes() == old)
        if os.path.lexists(self.planned.root / MARKER) and not old:
            work = partial(self.planned.mender.rewrite, MARKER, data, lambda path: True)
        return self.planned.act(
            fault, ASIDE, f"write {MARKER} anew, {words}; what is there goes to quarantine/", work
        )

    def version(self, fault: Fault, place: VersionFile) -> bool:
        name, version = place.name, place.version
        content = self.planned.content(place.path)
        if content is not None and is_cut_off(content) and age(self.planned.root / place.path) < SETTLED:
            wait = "another process may be writing it at this moment: verify again in a minute"
            return self.planned.leave(fault, wait)
        if self._take_back(fault, place, content) or self._bring_version(fault, name, version, content):
            return True
        if fault.code == "version-target":
            return False
        if shown := self._mention(name, version):
            return self.planned.leave(
                fault,
                f"{shown} shows that {name}@{version} was published, so its number stays taken; name another copy of "
                "the registry that has it (--from ROOT)",
            )
        lost = (
            "is lost, what it pointed at is not known"
            if fault.code in ("version-content", "version-exchanged")
            else "is no version, and its number is free again"
        )
        words = f"move {place.path} to quarantine/: {name}@{version} {lost}"
        return self._set_aside(
            fault, REFER, words, lambda content: pointed(content, f"{name}@{version}") is None
        )

    def _take_back(self, fault: Fault, place: VersionFile, content: bytes | None) -> bool:
        """Plan to write a version from the file that states it and lies in the place of another; False without one."""
        one = f"{place.name}@{place.version}"
        for other in self.planned.soundness.faults:
            line = (self.planned.content(other.path) or b"") if other.code == "version-exchanged" else b""
            if pointed(line, one) is not None:
                unchanged = lambda path: self.planned.content(path) == content  # noqa: E731 - read better beside its use
                work = partial(self.planned.mender.rewrite, place.path, line, unchanged)
                return self.planned.act(fault, REFER, f"write {place.path} as {other.path} states it", work)
        return False

    def _bring_version(self, fault: Fault, name: str, version: Version, content: bytes | None = None) -> bool:
        """Plan to take a version from the other registry, with all that it keeps; False if that has none."""
        source = self.planned.source
        if source is None:
            return False
        try:
            digest = source.references.digest(name, version)
        except CompatkitError:
            return False
        if digest is None:
            return False
        line = version_line(f"{name}@{version}", digest)
        if content is not None and is_cut_off(content) and not line.startswith(content):
            return False  # the beginning shows that it was another component
        if fault.code == "version-target" and not self.planned.is_copy():
            return False
        if not self.blobs.complete(fault, digest):
            return False
        path = f"refs/{name}/@versions/{version}"
        unchanged = lambda path: self.planned.content(path) == content  # noqa: E731 - read better beside its use
        work = partial(self.planned.mender.rewrite, path, line, unchanged)
        return self.planned.act(fault, REFER, f"write {path} as it is in {source.root}", work, path)

    def _mention(self, name: str, version: Version) -> str | None:
        """Return the path of what shows that a version was published once: a tombstone, an alias or its log."""
        found: dict[type, str] = {}
        for one in self.planned.scan(f"refs/{name}", names=name.__eq__):
            if isinstance(one, TombstoneFile) and one.version == version:
                return one.path
            if isinstance(one, AliasPointer):
                pointer = read_pointer(self.planned.content(one.path) or b"")
                if pointer is not None and pointer[0] == str(version):
                    found.setdefault(AliasPointer, one.path)
            elif isinstance(one, AliasMove):
                move = read_move(self.planned.content(one.path) or b"", 0)
                if move is not None and str(version) in (move.before, move.after):
                    found.setdefault(AliasMove, one.path)
        return found.get(AliasPointer) or found.get(AliasMove)

    def tombstone(self, fault: Fault, place: TombstoneFile | WithdrawalFile) -> bool:
        if fault.code == "folder-for-file":
            return False
        one = f"{place.name}@{place.version}"
        both = {f"refs/{place.name}/@tombstones/{place.version}", withdrawal_path(one)}
        (twin,) = both - {place.path}
        data, stays = self.planned.content(twin), f"({one} stays withdrawn)"
        if data is None or not is_tombstone(data):
            there = next(path for path in (place.path, twin) if os.path.lexists(self.planned.root / path))
            when = os.lstat(self.planned.root / there).st_mtime
            time = datetime.fromtimestamp(max(0.0, when), UTC).isoformat(timespec="seconds")
            data = dumps({"reason": REASON, "time": time})
        if fault.code == "tombstone-missing":
            work = partial(self.planned.mender.create, place.path, data)
            return self.planned.act(fault, REFER, f"write {place.path} {stays}", work)
        words = f"write {place.path} anew {stays}; a copy goes to quarantine/"
        doubt = self._doubt(lambda content: not is_tombstone(content))
        return self.planned.act(
            fault, REFER, words, partial(self.planned.mender.rewrite, place.path, data, doubt)
        )

    def orphan(self, fault: Fault, place: TombstoneFile) -> bool:
        return self._bring_version(fault, place.name, place.version)

    def dangling(self, fault: Fault, place: AliasPointer) -> bool:
        pointer = read_pointer(self.planned.content(place.path) or b"")
        return pointer is not None and self._bring_version(fault, place.name, Version.parse(pointer[0]))

    def result(self, fault: Fault, place: ResultPointer) -> bool:
        damaged = lambda content: not is_result_pointer(content, place.result)  # noqa: E731 - used twice
        if not self.blobs.is_there(f"sha256:{place.result}"):
            words = f"move {place.path} to quarantine/; measure again"
            return self._set_aside(fault, REFER, words, damaged)
        line = f"sha256:{place.result}\n".encode()
        work = partial(self.planned.mender.rewrite, place.path, line, self._doubt(damaged))
        words = f"write {place.path} anew from its name; a copy goes to quarantine/"
        return self.planned.act(fault, REFER, words, work)

    def signature(self, fault: Fault, place: SignatureFile) -> bool:
        words = f"move {place.path} to quarantine/; whoever signed it can do so again"
        damaged = lambda content: signature_fault(content, f"sha256:{place.signed}", place.file)  # noqa: E731
        return self._set_aside(fault, ASIDE, words, damaged)

    def policy(self, fault: Fault, place: PolicyFile) -> bool:
        """From a copy of the registry, or not at all: nobody else knows what was promised."""
        done = False
        if self.planned.is_copy():
            most = MOST_CHANGES if fault.code == "policy-gap" else 1
            for number in range(place.number, place.number + most):
                one = policy_file(place.scope, number)
                data = self._change_there(one)
                if data is None or (number > place.number and (self.planned.root / one.path).exists()):
                    break
                doubt = self._doubt(lambda content, one=one: not _is_change(content, one))
                work = partial(self.planned.mender.rewrite, one.path, data, doubt)
                words = (
                    f"write {one.path} as it is in {self.planned.source.root if self.planned.source else ''}"
                )
                done = self.planned.act(fault, REFER, words, work, one.path)
        return done or self.planned.leave(fault, CODES["policy-damaged"].remedy)

    def _change_there(self, one: PolicyFile) -> bytes | None:
        """Return what the other copy has, if that is sound."""
        source = self.planned.source
        try:
            found = source and durable.read(source.root / one.path, source.root, limit=LIMIT + 1)
        except CompatkitError:
            return None
        return found[0] if found and _is_change(found[0], one) else None

    def alias(self, fault: Fault, place: AliasPointer | AliasMove) -> bool:
        """The log is mended once, with its pointer, whatever is found of it first."""
        key = place.name, place.alias
        if key not in self._aliases:
            self._aliases[key] = _Log(self.planned, fault, *key).mend()
        return self._aliases[key]

    def _doubt(self, damaged: Callable[[bytes], Any]) -> Callable[[Path], bool]:
        """Return what tells whether a file is still damaged; one that cannot be read is."""

        def doubt(path: Path) -> bool:
            content = self.planned.content(path)
            return content is None or bool(damaged(content))

        return doubt

    def _set_aside(self, fault: Fault, stage: int, words: str, damaged: Callable[[bytes], Any]) -> bool:
        work = partial(self.planned.mender.set_aside, fault.path, self._doubt(damaged))
        return self.planned.act(fault, stage, words, work)


def _is_change(content: bytes, place: PolicyFile) -> bool:
    try:
        return bool(understood(content, place.scope, place.number))
    except FormatError:
        return False


_IN_PLACE = {"symlink", "special-file", "folder-for-file"}
"""What is mended as what should be in the place is."""
_REPAIRS: Mapping[str, Callable[[_Repair, Fault, Any], bool]] = {
    "folder-missing": _Repair.folder,
    "narrow-rights": _Repair.rights,
    "marker-missing": _Repair.marker,
    "marker-damaged": _Repair.marker,
    **dict.fromkeys(
        ("version-torn", "version-content", "version-exchanged", "version-target", "VersionFile"),
        _Repair.version,
    ),
    **dict.fromkeys(
        ("tombstone-damaged", "tombstone-missing", "TombstoneFile", "WithdrawalFile"), _Repair.tombstone
    ),
    "tombstone-orphan": _Repair.orphan,
    **dict.fromkeys(
        ("alias-damaged", "alias-behind", "alias-log-damaged", "alias-log-gap", "AliasPointer", "AliasMove"),
        _Repair.alias,
    ),
    "alias-dangling": _Repair.dangling,
    **dict.fromkeys(("policy-damaged", "policy-gap", "PolicyFile"), _Repair.policy),
    **dict.fromkeys(("evidence-damaged", "ResultPointer"), _Repair.result),
    **dict.fromkeys(("signature-damaged", "SignatureFile"), _Repair.signature),
    "blob-writable": lambda self, fault, place: self.blobs.rights(fault),
    **dict.fromkeys(
        (
            "blob-missing",
            "manifest-missing",
            "parent-missing",
            "kin-missing",
            "result-missing",
            "blob-in-trash",
        ),
        lambda self, fault, place: self.blobs.missing(fault, place),
    ),
    **dict.fromkeys(
        ("blob-digest", "blob-size", "Blob"), lambda self, fault, place: self.blobs.damaged(fault, place)
    ),
    "blob-place": lambda self, fault, place: self.blobs.misplaced(fault, place),
    "misnamed": lambda self, fault, place: (
        isinstance(place, Misplaced) and self.blobs.misplaced(fault, place)
    ),
    "result-format": lambda self, fault, place: self.blobs.forget_result(fault, place),
}
"""What mends a fault, by its code; by what should be in the place, where something else is."""


@attrs.define
class _Log:
    """One alias with its log, as it can still be read."""

    planned: Planned
    fault: Fault
    name: str
    alias: str
    moves: dict[int, AliasEntry] = attrs.field(factory=dict)
    numbers: list[int] = attrs.field(factory=list)
    pointer: tuple[str, int] | None = None

    def __attrs_post_init__(self) -> None:
        for one in self.planned.scan(f"refs/{self.name}", names=self.name.__eq__):
            if isinstance(one, AliasMove) and one.alias == self.alias:
                self.numbers.append(one.number)
                move = read_move(self.planned.content(one.path) or b"", one.number)
                if move is not None:
                    self.moves[one.number] = move
        self.pointer = read_pointer(self.planned.content(self._place) or b"")

    @property
    def _folder(self) -> str:
        return f"refs/{self.name}/@log/{self.alias}"

    @property
    def _place(self) -> str:
        return f"refs/{self.name}/@aliases/{self.alias}"

    def mend(self) -> bool:
        """Plan the moves that are missing or damaged, then the pointer."""
        last = max([*self.numbers, self.pointer[1] if self.pointer else 0], default=0)
        if last - len(self.moves) > MOST_MOVES:
            gone = f"{last - len(self.moves):,} moves are gone; set the alias again: `compatkit alias`"
            return self.planned.leave(self.fault, gone)
        reached, version = 0, None
        for number in range(1, last + 1):
            after, known = self._after(number)
            if not known:
                self._drop(number)
                continue
            if number not in self.moves:
                self._write(number, version, after)
            reached, version = number, after
        self._point(reached, version)
        return True

    def _after(self, number: int) -> tuple[str | None, bool]:
        """Return where the alias pointed after a move, and whether anything tells."""
        if number in self.moves:
            return self.moves[number].after, True
        later = next((self.moves[one] for one in sorted(self.moves) if one > number), None)
        if later is not None:
            return later.before, True
        if self.pointer is not None and self.pointer[1] >= number:
            return self.pointer[0], True
        return None, False

    def _write(self, number: int, before: str | None, after: str | None) -> None:
        path = f"{self._folder}/{number}"
        later = next((self.moves[one].time for one in sorted(self.moves) if one > number), now())
        data = dumps({"from": before, "rebuilt": True, "time": later, "to": after})
        told = f"{path}: from {before or 'nothing'} to {after or 'nothing'}, as its neighbours tell"
        if number in self.numbers:
            work = partial(self.planned.mender.rewrite, path, data, self._is_no_move)
            self.planned.act(
                self.fault, REFER, f"write {told}; a copy of what is there goes to quarantine/", work, path
            )
        else:
            work = partial(self.planned.mender.create, path, data)
            self.planned.act(self.fault, REFER, f"write {told}", work, path)

    def _drop(self, number: int) -> None:
        path = f"{self._folder}/{number}"
        work = partial(self.planned.mender.set_aside, path, self._is_no_move)
        words = f"move {path} to quarantine/: nothing tells where it pointed, the move before it counts"
        self.planned.act(self.fault, REFER, words, work, path)

    def _point(self, number: int, version: str | None) -> None:
        there = os.path.lexists(self.planned.root / self._place)
        if self.pointer == (version, number) or (not there and version is None):
            return
        if number == 0 and self.pointer is not None:
            return  # one without a log, written by hand: it is all there is
        mender = self.planned.mender
        old = self.planned.content(self._place)
        unchanged = lambda path: self.planned.content(path) == old  # noqa: E731 - read better beside its use
        if version is None:
            told = "the alias was removed" if number else "no log tells where it pointed; set the alias again"
            work = partial(mender.set_aside, self._place, unchanged)
            self.planned.act(
                self.fault, REFER, f"move {self._place} to quarantine/: {told}", work, self._place
            )
        else:
            data = f"{version} {number}\n".encode()
            work = partial(mender.rewrite, self._place, data, unchanged)
            words = f"write {self._place}: {version}, as move {number} of its log says"
            self.planned.act(self.fault, REFER, words, work, self._place)

    def _is_no_move(self, path: Path) -> bool:
        return read_move(self.planned.content(path) or b"", 0) is None
