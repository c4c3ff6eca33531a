"""Repair of blobs: the damaged make room, the missing come from wherever their bytes are."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs

from compatkit.contracts.codec import MAX_BYTES, loads
from compatkit.errors import CompatkitError, FormatError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.repair.planning import ASIDE, REFER, RESTORE, Planned
from compatkit.registry.verify.contents import read_content
from compatkit.registry.verify.faults import CODES, Fault, Findings
from compatkit.registry.verify.missing import blob_path
from compatkit.registry.verify.reaching import RESULTS, edges
from compatkit.registry.verify.survey import Survey
from compatkit.registry.verify.surveying import ANY_DIGEST, HEXADECIMAL, listed, survey_evidence

MISSING = {
    "blob-missing",
    "manifest-missing",
    "parent-missing",
    "kin-missing",
    "result-missing",
    "blob-in-trash",
}


@attrs.define
class BlobRepair:
    """Plans what mends ``blobs/``, and takes away pointers to results that are lost."""

    planned: Planned
    _brought: dict[str, bool] = attrs.field(factory=dict)
    _kept: dict[str, list[str]] | None = None
    _pointers: dict[str, list[str]] | None = None

    def takes(self, fault: Fault) -> bool:
        """Tell whether a fault is one of blobs."""
        return fault.path.startswith("blobs/")

    def mend(self, fault: Fault) -> bool:
        """Plan what mends a fault; False if nothing does."""
        digest = self._digest(fault.path)
        if fault.code == "blob-writable":
            mode = stat.S_IMODE(os.lstat(self.planned.root / fault.path).st_mode) & ~0o222
            return self.planned.give_rights(fault, mode)
        if digest is None:
            return False
        if fault.code in ("blob-place", "misnamed"):
            return self._move_to_place(fault, digest)
        if fault.code in MISSING:
            return self.bring(fault, digest) or self._forget_result(fault, digest)
        if fault.code == "result-format":
            return self._forget_result(fault, digest)
        plain = fault.code in ("blob-digest", "blob-size")
        if not plain and fault.code not in ("symlink", "special-file", "folder-for-file"):
            return False
        if fault.code == "blob-size" and self._is(fault.path, digest):
            return False
        work = partial(self.planned.mender.set_aside, fault.path, lambda path: self._differs(path, digest))
        self.planned.act(fault, ASIDE, f"move {fault.path} to quarantine/", work)
        if not self.bring(fault, digest) and not self._forget_result(fault, digest) and fault.whose:
            self.planned.leave(fault, CODES["blob-missing"].remedy)
        return True

    def bring(self, fault: Fault, digest: str) -> bool:
        """Plan to put bytes in their place, and what they keep; False if no good copy is known."""
        if digest in self._brought:
            return self._brought[digest]
        self._brought[digest] = False  # what keeps itself, in a circle, ends here
        place, mender, source = blob_path(digest), self.planned.mender, self.planned.source
        copy = next((one for one in self._copies(digest) if self._is(one, digest)), None)
        if copy is not None:
            work = partial(mender.put_back, place, digest, copy)
            self._brought[digest] = self.planned.act(
                fault, RESTORE, f"put {copy} back to {place}", work, place
            )
            self._follow(fault, self.planned.root, copy)
        elif source is not None and self._is_file(source.root / place):
            work = partial(mender.copy_in, place, digest, source.root / place, source.root)
            words = f"copy {place} from {source.root}"
            self._brought[digest] = self.planned.act(fault, RESTORE, words, work, place)
            self._follow(fault, source.root, place)
        return self._brought[digest]

    def is_there(self, digest: str) -> bool:
        """Tell whether a blob is in its place and nothing is wrong with it, or will be."""
        path = blob_path(digest)
        there = self._is_file(self.planned.root / path) and not self.planned.faulty(path)
        return there or self._brought.get(digest, False)

    def complete(self, fault: Fault, digest: str) -> bool:
        """Plan to bring a manifest and what it keeps, as far as that is damaged or missing; False if it cannot be."""
        if not self.is_there(digest):
            return self.bring(fault, digest)
        self._follow(fault, self.planned.root, blob_path(digest))
        return True

    def _follow(self, fault: Fault, root: Path, path: str) -> None:
        """Bring also what a document keeps: nobody could know before that it is needed."""
        try:
            state = os.lstat(root / path)
            found = durable.read(root / path, root) if state.st_size <= MAX_BYTES else None
            value = loads(found[0], what=path) if found is not None and found[0][:1] == b"{" else None
        except (FormatError, CompatkitError, OSError):
            return  # no document; or what cannot be read here fails again, and is told, when it is put back
        for _, edge, _ in edges(value):
            if not self.is_there(edge):
                self.bring(fault, edge)

    def _move_to_place(self, fault: Fault, digest: str) -> bool:
        place = blob_path(digest)
        if self._is_file(self.planned.root / place) or not self._is(fault.path, digest):
            return False
        work = partial(self.planned.mender.put_back, place, digest, fault.path)
        self._brought[digest] = True
        return self.planned.act(fault, RESTORE, f"move {fault.path} to {place}", work)

    def _forget_result(self, fault: Fault, digest: str) -> bool:
        """Plan to move pointers to a lost result away, so that checks work again; then measure again."""
        if self._pointers is None:
            survey = Survey(self.planned.root, Findings())
            survey_evidence(survey)
            self._pointers = defaultdict(list)
            for one in survey.results:
                self._pointers[f"sha256:{one[3]}"].append("/".join(("evidence", *one)))
        pointers = self._pointers.get(digest, [])
        for path in pointers:
            work = partial(self.planned.mender.set_aside, path, lambda path: True)
            self.planned.act(
                fault, REFER, f"move {path} to quarantine/: its result is lost; measure again", work, path
            )
        return bool(pointers) and all(user.startswith(RESULTS) for user in fault.whose)

    def _copies(self, digest: str) -> Iterator[str]:
        if self._kept is None:
            self._kept = defaultdict(list)
            for folder in ("trash", "quarantine"):
                for name in listed(Survey(self.planned.root, Findings()), folder):
                    if HEXADECIMAL.fullmatch(name[:64]):
                        self._kept[f"sha256:{name[:64]}"].append(f"{folder}/{name}")
        yield from self._kept.get(digest, [])

    def _is(self, path: str, digest: str) -> bool:
        try:
            return (
                read_content(self.planned.root / path, self.planned.root, lambda size: None).digest == digest
            )
        except (CompatkitError, OSError):
            return False

    def _differs(self, path: Path, digest: str) -> bool:
        """Tell whether what is at a path is not the blob; what cannot be read is not known to differ."""
        try:
            return read_content(path, self.planned.root, lambda size: None).digest != digest
        except IntegrityError:
            return True

    def _is_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except OSError:
            return False

    def _digest(self, path: str) -> str | None:
        match = ANY_DIGEST.search(path.rpartition("/")[2])
        return f"sha256:{match[1].lower()}" if match else None
