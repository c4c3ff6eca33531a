"""Blobs against their names, against those who use them, and against what a shared registry needs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.manifest import Payload
from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.verify.contents import Content, checked_header, read_content
from compatkit.registry.verify.faults import answer
from compatkit.registry.verify.missing import Missing, blob_path
from compatkit.registry.verify.reaching import Reach, Use
from compatkit.registry.verify.survey import Survey, odd_kind
from compatkit.registry.verify.surveying import listed
from compatkit.registry.weights.header import Header

DOCUMENTS = {"version", "parent", "result"}
"""Roles of blobs that are read as JSON."""


@attrs.define
class BlobChecks:
    """Looks at blobs one by one.

    Attributes:
        deep: Whether contents are compared with their names; what is read as JSON always is.
        tick: Told how many bytes more were looked at, and of what.
        reach: Who uses what.
        missing: Tells of what is not there.
        amount: Number of bytes that were read.
    """

    survey: Survey
    deep: bool
    tick: Callable[[int, str], None]
    reach: Reach = attrs.field(init=False)
    missing: Missing = attrs.field(init=False)
    amount: int = 0
    _seen: dict[str, str] = attrs.field(factory=dict)
    _failed: dict[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.reach = Reach(self.document)
        self.missing = Missing(self.survey, self.reach, self.deep)

    def document(self, digest: str) -> bytes | None:
        """Return the bytes of a blob that should be JSON; None where that is not possible, which is told later."""
        state = self._state(digest)
        if state is None or state.st_size > MAX_BYTES:
            return None
        try:
            found = durable.read(self.survey.root / blob_path(digest), self.survey.root)
        except (EnvironmentFailure, IntegrityError) as error:
            self._failed[digest] = answer(error)
            return None
        if found is None:
            return None
        self._count(len(found[0]), digest)
        self._seen[digest] = digest_of(found[0])
        return found[0] if self._seen[digest] == digest else None

    def again(self, digest: str) -> bytes | None:
        """Return the bytes of a document once more, or of one that nothing follows; None unless they are right."""
        if self._seen.get(digest, digest) != digest:
            return None
        try:
            found = durable.read(self.survey.root / blob_path(digest), self.survey.root, limit=MAX_BYTES + 1)
        except (EnvironmentFailure, IntegrityError):
            return None  # told where it is needed
        right = found is not None and (digest in self._seen or digest_of(found[0]) == digest)
        return found[0] if found is not None and right else None

    def check_all(self, digests: Iterable[str]) -> None:
        """Look at blobs, then at files that have a digest in their name and are in no place of a blob."""
        for digest in sorted(digests):
            self._check(digest)
        for code, digest, what in self.reach.faults:
            self._tell_document(code, digest, what)
        self.missing.tell_rest()

    def _tell_document(self, code: str, digest: str, what: str) -> None:
        roles = {"result"} if code == "result-format" else {"version", "parent"}
        uses = [use for use in self.reach.uses[digest] if use.role in roles]
        version = next((use.whose for use in uses if use.role == "version"), None)
        path = blob_path(digest)
        if code == "version-target" and version is not None:
            path = "refs/{}/@versions/{}".format(*version.split("@"))
            what = f"it points at {digest}: {what}"
        self.survey.findings.add(code, path, what, [use.whose for use in uses])

    def _state(self, digest: str) -> os.stat_result | None:
        known = self.survey.blobs.get(digest)
        if known is not None or digest in self.survey.odd:
            return known
        path = blob_path(digest)
        try:
            durable.check_folders((self.survey.root / path).parent, self.survey.root)
            state = os.lstat(self.survey.root / path)
        except (OSError, IntegrityError):  # a walk that could not come here has said so
            return None
        if odd := odd_kind(self.survey.root / path, state.st_mode, "file"):
            self.survey.odd[digest] = odd
            return None
        self.survey.blobs[digest] = state
        return state

    def _check(self, digest: str) -> None:
        path, users, findings = blob_path(digest), self.reach.users(digest), self.survey.findings
        state = self._state(digest)
        if digest in self.survey.odd:
            code, what = self.survey.odd[digest]
            findings.add(code, path, what, users)
            return
        if state is None:
            if not self.missing.tell(digest) and self._state(digest) is not None:
                self._check(digest)  # gc had taken it out and put it back
            return
        self._check_rights(digest, path, users)
        if digest in self._failed:
            findings.add("unreadable", path, self._failed[digest], users)
            return
        try:
            self._check_content(digest, path, state)
        except FileNotFoundError:
            del self.survey.blobs[digest]
            if self._state(digest) is None:
                self.missing.tell(digest)
        except (OSError, EnvironmentFailure, IntegrityError) as error:
            findings.unreadable(path, error, users)

    def _check_content(self, digest: str, path: str, state: os.stat_result) -> None:
        uses, full = self.reach.uses.get(digest, []), self.survey.root / path
        wrong = {use.size for use in uses if use.size not in (None, state.st_size)}
        promises = {use.payload: None for use in uses if use.payload is not None}
        header = checked_header(full) if promises and (self.deep or not wrong) else None
        content = None
        if digest in self._seen:
            actual = self._seen[digest]
        elif self.deep:
            where = header if isinstance(header, Header) else None
            content = read_content(full, self.survey.root, lambda size: self._count(size, digest), where)
            actual = content.digest
        else:
            actual = digest
            self.tick(state.st_size, digest)
        findings, users = self.survey.findings, self.reach.users(digest)
        if actual != digest:
            what = f"expected {digest}, got {actual} ({state.st_size:,} bytes)"
            findings.add("blob-digest", path, what, users)
        elif wrong:
            whose = [use.whose for use in uses if use.size in wrong]
            stated = ", ".join(f"{size:,}" for size in sorted(size for size in wrong if size is not None))
            findings.add("blob-size", path, f"expected {stated} bytes, got {state.st_size:,}", whose)
        elif isinstance(header, str):
            findings.add("payload-header", path, header, users)
        elif header is not None:
            self._check_payload(path, uses, promises, header, content)
        roles = DOCUMENTS & {use.role for use in uses}
        if actual == digest and roles and state.st_size > MAX_BYTES:
            code = "result-format" if roles == {"result"} else "version-target"
            self.reach.faults.append((code, digest, f"{state.st_size:,} bytes are more than a document has"))

    def _check_payload(
        self, path: str, uses: list[Use], promises: Iterable[Payload], header: Header, content: Content | None
    ) -> None:
        findings = self.survey.findings
        for promise in promises:
            whose = [use.whose for use in uses if use.payload == promise]
            tensors = content.tensors if content is not None else promise.tensors
            if (promise.count, promise.tensors) != (len(header.tensors), tensors):
                what = f"expected {promise.count} tensors {promise.tensors}, got {len(header.tensors)}, {tensors}"
                findings.add("payload-tensors", path, what, whose)
        if content is not None and content.not_finite:
            names = ", ".join(map(repr, content.not_finite))
            findings.add(
                "payload-not-finite", path, f"NaN or infinity in {names}", [use.whose for use in uses]
            )

    def _check_rights(self, digest: str, path: str, users: tuple[str, ...]) -> None:
        if os.name == "nt":
            return
        state = self.survey.blobs[digest]
        if state.st_mode & 0o222:
            what = f"mode {state.st_mode & 0o7777:o}; blobs are written once and read-only"
            self.survey.findings.add("blob-writable", path, what, users)
        if state.st_nlink > 1 and (names := self._other_names(path, state)):
            plural = "" if names == 1 else "s"
            what = f"{names} more name{plural} of the same file, not in tmp/, trash/ or quarantine/"
            self.survey.findings.add("blob-linked", path, what, users)

    def _other_names(self, path: str, state: os.stat_result) -> int:
        """Return how many names a file has that are not this registry's own drafts; looked up anew, for these pass."""
        folders = (listed(self.survey, folder) for folder in ("tmp", "trash", "quarantine"))
        own = Counter((one.st_dev, one.st_ino) for folder in folders for one in folder.values())
        try:
            now = os.lstat(self.survey.root / path)
        except OSError:
            return 0
        return max(0, now.st_nlink - 1 - own[state.st_dev, state.st_ino])

    def _count(self, size: int, digest: str) -> None:
        self.amount += size
        self.tick(size, digest)
