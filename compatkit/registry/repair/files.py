"""Repair of the small files: marker, folders, rights, versions, tombstones and pointers to results."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs

from compatkit.contracts.codec import dumps
from compatkit.errors import CompatkitError, InvalidName, NotFound
from compatkit.registry.layout import LAYOUT, MARKER, Layout
from compatkit.registry.names import Version, check_name
from compatkit.registry.repair.blobs import BlobRepair
from compatkit.registry.repair.planning import ASIDE, REFER, Planned
from compatkit.registry.verify.aliaslogs import read_move, read_pointer
from compatkit.registry.verify.faults import Fault
from compatkit.registry.verify.pointers import (
    LINE,
    age,
    is_cut_off,
    is_result_pointer,
    is_tombstone,
    read_json,
)
from compatkit.registry.verify.signatures import fault as signature_fault

REASON = "tombstone was damaged"
"""Why a version is withdrawn whose tombstone could not be read."""
SETTLED = 60
"""Seconds; a version file that is younger may still be written, where there are no hard links."""
_IN_PLACE = {"symlink", "special-file", "folder-for-file"}
_VERSION = re.compile("refs/(.+)/@versions/([^/]+)")
_ALIAS = re.compile("refs/(.+)/@aliases/([^/]+)")
_TOMBSTONE = re.compile("refs/(.+)/@tombstones/([^/]+)")
_RESULT = re.compile("evidence/[0-9a-f]{64}/[0-9a-f]{64}/[0-9a-f]{64}/([0-9a-f]{64})")
_SIGNATURE = re.compile(r"signatures/([0-9a-f]{64})/([0-9a-f]{16}-[0-9a-f]{64}\.json)")
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERS = re.compile(rb'"(?:layout|min_reader|min_writer)"\s*:\s*([0-9]{1,9})')


@attrs.define
class FileRepair:
    """Plans what mends everything but blobs and aliases."""

    planned: Planned
    blobs: BlobRepair

    def takes(self, fault: Fault) -> bool:
        """Tell whether a fault is one of these files: of all that are left, yes."""
        return True

    def mend(self, fault: Fault) -> bool:
        """Plan what mends a fault; False if nothing does."""
        mender = self.planned.mender
        if fault.code == "folder-missing":
            work = partial(mender.make_folder, fault.path)
            return self.planned.act(fault, ASIDE, f"make the folder {fault.path}/", work)
        if fault.code == "narrow-rights":
            state, root = os.lstat(self.planned.root / fault.path), os.stat(self.planned.root)
            mode = stat.S_IMODE(state.st_mode) | (stat.S_IMODE(root.st_mode) & 0o2777)
            return self.planned.give_rights(fault, mode)
        if fault.code in ("marker-missing", "marker-damaged"):
            return self._marker(fault)
        if match := _VERSION.fullmatch(fault.path):
            if fault.code in {"version-torn", "version-content", "version-target", *_IN_PLACE}:
                return self._version(fault, match[1], match[2])
        elif (match := _ALIAS.fullmatch(fault.path)) and fault.code == "alias-dangling":
            pointer = read_pointer(self.planned.content(fault.path) or b"")
            return pointer is not None and self.bring_version(fault, match[1], pointer[0])
        elif match := _TOMBSTONE.fullmatch(fault.path):
            if fault.code in ("tombstone-damaged", "symlink", "special-file"):
                return self._tombstone(fault, match[1], match[2])
            if fault.code == "tombstone-orphan":
                return self.bring_version(fault, match[1], match[2])
        elif (match := _RESULT.fullmatch(fault.path)) and fault.code in {"evidence-damaged", *_IN_PLACE}:
            return self._result(fault, match[1])
        elif (match := _SIGNATURE.fullmatch(fault.path)) and fault.code in {"signature-damaged", *_IN_PLACE}:
            return self._signature(fault, f"sha256:{match[1]}", match[2])
        return False

    def _marker(self, fault: Fault) -> bool:
        old = self.planned.content(MARKER) or b""
        value = read_json(old)
        other = isinstance(value, dict) and value.get("hash", "sha256") != "sha256"
        if other or any(int(number) > LAYOUT for number in _NUMBERS.findall(old)):
            self.planned.leave(fault, "it seems to be of a newer layout: upgrade compatkit, and verify again")
            return True
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

    def _version(self, fault: Fault, name: str, version: str) -> bool:
        path = self.planned.root / fault.path
        content = self.planned.content(fault.path)
        if content is not None and is_cut_off(content) and age(path) < SETTLED:
            self.planned.leave(
                fault, "another process may be writing it at this moment: verify again in a minute"
            )
            return True
        if self.bring_version(fault, name, version, content):
            return True
        if fault.code == "version-target":
            return False
        if users := self._mentions(name, version):
            self.planned.leave(
                fault,
                f"{users} shows that {name}@{version} was published, so its number stays taken; name another copy of "
                "the registry that has it (--from ROOT)",
            )
            return True
        words = (
            f"move {fault.path} to quarantine/: {name}@{version} is no version, and its number is free again"
        )
        if fault.code == "version-content":
            words = (
                f"move {fault.path} to quarantine/: {name}@{version} is lost, what it pointed at is not known"
            )
        work = partial(self.planned.mender.set_aside, fault.path, self._holds_no_digest)
        return self.planned.act(fault, REFER, words, work)

    def bring_version(self, fault: Fault, name: str, version: str, content: bytes | None = None) -> bool:
        """Plan to take a version from the other registry, with all that it keeps; False if that has none."""
        source = self.planned.source
        digest = self._digest_there(name, version)
        if source is None or digest is None:
            return False
        line = f"{digest}\n".encode()
        if content is not None and is_cut_off(content) and not line.startswith(content):
            return False  # the beginning shows that it was another component
        if fault.code == "version-target" and source.id != self._id():
            return False
        if not self.blobs.complete(fault, digest):
            return False
        path = f"refs/{name}/@versions/{version}"
        work = partial(
            self.planned.mender.rewrite, path, line, lambda path: self.planned.content(path) == content
        )
        words = f"write {path} as it is in {source.root}"
        return self.planned.act(fault, REFER, words, work, path)

    def _tombstone(self, fault: Fault, name: str, version: str) -> bool:
        when = os.lstat(self.planned.root / fault.path).st_mtime
        time = datetime.fromtimestamp(max(0.0, when), UTC).isoformat(timespec="seconds")
        data = dumps({"reason": REASON, "time": time})
        words = f"write {fault.path} anew ({name}@{version} stays withdrawn); a copy goes to quarantine/"
        work = partial(self.planned.mender.rewrite, fault.path, data, self._is_no_tombstone)
        return self.planned.act(fault, REFER, words, work)

    def _result(self, fault: Fault, result: str) -> bool:
        mender = self.planned.mender

        def damaged(path: Path) -> bool:
            content = self.planned.content(path)
            return content is None or not is_result_pointer(content, result)

        if self.blobs.is_there(f"sha256:{result}"):
            work = partial(mender.rewrite, fault.path, f"sha256:{result}\n".encode(), damaged)
            words = f"write {fault.path} anew from its name; a copy goes to quarantine/"
        else:
            work = partial(mender.set_aside, fault.path, damaged)
            words = f"move {fault.path} to quarantine/; measure again"
        return self.planned.act(fault, REFER, words, work)

    def _signature(self, fault: Fault, digest: str, name: str) -> bool:
        def damaged(path: Path) -> bool:
            content = self.planned.content(path)
            return content is None or signature_fault(content, digest, name) is not None

        words = f"move {fault.path} to quarantine/; whoever signed it can do so again"
        work = partial(self.planned.mender.set_aside, fault.path, damaged)
        return self.planned.act(fault, ASIDE, words, work)

    def _mentions(self, name: str, version: str) -> str | None:
        """Return what shows that a version was published once: a tombstone, an alias or its log."""
        folder = f"refs/{name}"
        if os.path.lexists(self.planned.root / folder / "@tombstones" / version):
            return f"{folder}/@tombstones/{version}"
        for path in sorted((self.planned.root / folder / "@aliases").glob("*")):
            pointer = read_pointer(self.planned.content(path) or b"")
            if pointer is not None and pointer[0] == version:
                return f"{folder}/@aliases/{path.name}"
        for path in sorted((self.planned.root / folder / "@log").glob("*/*")):
            move = read_move(self.planned.content(path) or b"", 0)
            if move is not None and version in (move.before, move.after):
                return f"{folder}/@log/{path.parent.name}/{path.name}"
        return None

    def _digest_there(self, name: str, version: str) -> str | None:
        """Return the digest of a version in the other registry; None if it has none that can be read."""
        if self.planned.source is None:
            return None
        try:
            return self.planned.source.references.digest(check_name(name), Version.parse(version))
        except (InvalidName, NotFound, CompatkitError):
            return None

    def _id(self) -> str:
        from compatkit.registry.layout import inspect

        try:
            return inspect(self.planned.root).id
        except CompatkitError:
            return ""

    def _holds_no_digest(self, path: Path) -> bool:
        content = self.planned.content(path)
        return content is None or LINE.fullmatch(content) is None

    def _is_no_tombstone(self, path: Path) -> bool:
        content = self.planned.content(path)
        return content is None or not is_tombstone(content)
