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
from compatkit.errors import CompatkitError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.blobs import blob
from compatkit.registry.maintenance.contents import read_content
from compatkit.registry.maintenance.faults import CODES, Fault
from compatkit.registry.maintenance.plan import ASIDE, REFER, RESTORE, Planned
from compatkit.registry.maintenance.uses import RESULTS
from compatkit.registry.reach import edges, walk
from compatkit.registry.scan import HEXADECIMAL, Aside, Blob, Misplaced, ResultPointer


@attrs.define
class BlobRepair:
    """Plans what mends ``blobs/``, and takes away pointers to results that are lost."""

    planned: Planned
    _brought: dict[str, bool] = attrs.field(factory=dict)
    _kept: dict[str, list[str]] | None = None
    _pointers: dict[str, list[str]] | None = None

    def rights(self, fault: Fault) -> bool:
        """Plan to take the right to write away."""
        mode = stat.S_IMODE(os.lstat(self.planned.root / fault.path).st_mode) & ~0o222
        return self.planned.give_rights(fault, mode)

    def missing(self, fault: Fault, place: Blob) -> bool:
        """Plan to bring a blob; or, if it was a result, to move what points at it away."""
        return self.bring(fault, place.digest) or self.forget_result(fault, place)

    def damaged(self, fault: Fault, place: Blob) -> bool:
        """Plan to move what is in a blob's place away, and to bring the blob."""
        digest = place.digest
        if fault.code == "blob-size" and self._is(place.path, digest):
            return False
        work = partial(self.planned.mender.set_aside, place.path, lambda path: self._differs(path, digest))
        self.planned.act(fault, ASIDE, f"move {place.path} to quarantine/", work)
        if not self.missing(fault, place) and fault.whose:
            self.planned.leave(fault, CODES["blob-missing"].remedy)
        return True

    def misplaced(self, fault: Fault, place: Misplaced) -> bool:
        """Plan to move a blob to its place, unless there is one or its bytes do not fit."""
        target = blob(place.digest).path
        if self._is_file(self.planned.root / target) or not self._is(place.path, place.digest):
            return False
        work = partial(self.planned.mender.put_back, target, place.digest, place.path)
        self._brought[place.digest] = True
        return self.planned.act(fault, RESTORE, f"move {place.path} to {target}", work)

    def bring(self, fault: Fault, digest: str) -> bool:
        """Plan to put bytes in their place, and what they keep; False if no good copy is known."""
        for _ in walk([digest], partial(self._bring, fault)):
            pass
        return self._brought[digest]

    def _bring(self, fault: Fault, digest: str) -> list[str]:
        """Plan to put bytes in their place; return what they keep and that is not there."""
        if digest in self._brought:
            return []
        place, mender, source = blob(digest).path, self.planned.mender, self.planned.source
        copy = next((one for one in self._copies(digest) if self._is(one, digest)), None)
        if copy is not None:
            work = partial(mender.put_back, place, digest, copy)
            words, root, kept = f"put {copy} back to {place}", self.planned.root, copy
        elif source is not None and self._is_file(source.root / place):
            work = partial(mender.copy_in, place, digest, source.root / place, source.root)
            words, root, kept = f"copy {place} from {source.root}", source.root, place
        else:
            self._brought[digest] = False
            return []
        self._brought[digest] = self.planned.act(fault, RESTORE, words, work, place)
        return self._lacking(root, kept)

    def is_there(self, digest: str) -> bool:
        """Tell whether a blob is in its place and nothing is wrong with it, or will be."""
        path = blob(digest).path
        there = self._is_file(self.planned.root / path) and not self.planned.faulty(path)
        return there or self._brought.get(digest, False)

    def complete(self, fault: Fault, digest: str) -> bool:
        """Plan to bring a manifest and what it keeps, as far as that is damaged or missing; False if it cannot be."""
        if not self.is_there(digest):
            return self.bring(fault, digest)
        for edge in self._lacking(self.planned.root, blob(digest).path):
            self.bring(fault, edge)
        return True

    def _lacking(self, root: Path, path: str) -> list[str]:
        """Return what a document keeps and that is not there: nobody could know before that it is needed."""
        try:
            state = os.lstat(root / path)
            found = durable.read(root / path, root) if state.st_size <= MAX_BYTES else None
            value = loads(found[0], what=path) if found is not None and found[0][:1] == b"{" else None
        except (CompatkitError, OSError):
            return []  # no document; or what cannot be read here fails again, and is told, when it is put back
        return [edge.digest for edge in edges(value) if not self.is_there(edge.digest)]

    def forget_result(self, fault: Fault, place: Blob) -> bool:
        """Plan to move pointers to a lost result away, so that checks work again; then measure again."""
        if self._pointers is None:
            self._pointers = defaultdict(list)
            for one in self.planned.scan("evidence"):
                if isinstance(one, ResultPointer):
                    self._pointers[f"sha256:{one.result}"].append(one.path)
        pointers = self._pointers.get(place.digest, [])
        for path in pointers:
            work = partial(self.planned.mender.set_aside, path, lambda path: True)
            words = f"move {path} to quarantine/: its result is lost; measure again"
            self.planned.act(fault, REFER, words, work, path)
        return bool(pointers) and all(user.startswith(RESULTS) for user in fault.whose)

    def _copies(self, digest: str) -> Iterator[str]:
        if self._kept is None:
            self._kept = defaultdict(list)
            for one in self.planned.scan("trash", "quarantine"):
                if isinstance(one, Aside) and HEXADECIMAL.fullmatch(one.file[:64]):
                    self._kept[f"sha256:{one.file[:64]}"].append(one.path)
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
