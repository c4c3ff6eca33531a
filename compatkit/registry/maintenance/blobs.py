"""Check blobs against their digests and the documents that refer to them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes
from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import blob_path
from compatkit.registry.layout_scan import Aside, Blob, scan
from compatkit.registry.maintenance.blob_users import BlobUse, BlobUsers
from compatkit.registry.maintenance.contents import Content, header_or_fault, read_content
from compatkit.registry.maintenance.faults import kind_fault, os_message
from compatkit.registry.maintenance.survey import Survey
from compatkit.registry.names import Version
from compatkit.registry.weights.header import Header

DOCUMENTS = {"version", "parent", "result"}
"""Roles of blobs that contain JSON."""


@attrs.define
class BlobChecks:
    """Checks blobs one by one.

    Attributes:
        survey: Files of the registry; faults are added to it.
        deep: Whether to compare contents with digests; JSON documents are always compared.
        total: Bytes of all blobs, for ``progress``.
        progress: Function called with bytes done, total bytes, and a description.
        remote: Remote that the registry fetches missing weights from, for messages; empty if it has none.
        users: Users of each blob.
        left: Size of each blob of weights that was left in the remote, by digest.
        bytes_read: Bytes read.
    """

    survey: Survey
    deep: bool
    total: int
    progress: Progress | None
    remote: str = ""
    users: BlobUsers = attrs.field(init=False)
    left: dict[str, int] = attrs.field(init=False, factory=dict)
    bytes_read: int = 0
    _done: int = 0
    _seen: dict[str, str] = attrs.field(factory=dict)
    _failed: dict[str, str] = attrs.field(factory=dict)
    _affected_by_folder: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        self.users = BlobUsers(self.document)

    def document(self, digest: str) -> bytes | None:
        """Return the bytes of a JSON blob; None if unreadable, which is reported later."""
        state = self._state(digest)
        if state is None or state.st_size > MAX_BYTES:
            return None
        try:
            content = self.survey.content(blob_path(digest))
        except (EnvironmentFailure, IntegrityError) as error:
            self._failed[digest] = os_message(error)
            return None
        if content is None:
            return None
        self._count(len(content), digest)
        self._seen[digest] = digest_of(content)
        return content if self._seen[digest] == digest else None

    def manifest(self, digest: str) -> Manifest | None:
        """Return a manifest, read again unless read recently; None unless intact."""
        if digest in self.users.recent or not digest or self._seen.get(digest, digest) != digest:
            return self.users.recent.get(digest)
        with suppress(EnvironmentFailure, IntegrityError):  # reported by the check of its users
            content = self.survey.content(blob(digest).path, MAX_BYTES + 1)
            if content is not None and digest_of(content) == digest:
                return from_bytes(content)
        return None

    def check_all(self, digests: Iterable[str]) -> None:
        """Check blobs, then report faults of documents and of unreadable folders."""
        for digest in sorted(digests):
            self._check(digest)
        if self.left:
            files = "1 file" if len(self.left) == 1 else f"{len(self.left):,} files"
            what = f"{files} of {sum(self.left.values()):,} bytes; loads fetch them from {self.remote}"
            self.survey.findings.add("weights-remote", "blobs", what)
        for code, digest, what in self.users.faults:
            self._report_document(code, digest, what)
        for path, (code, what) in sorted(self.survey.blocked.items()):
            name = path.removeprefix("refs/").partition("/@")[0] if path.startswith("refs/") else ""
            self.survey.findings.add(
                code, path, what, self._affected_by_folder[path] or ([name] if name else [])
            )

    def _report_document(self, code: str, digest: str, what: str) -> None:
        roles = {"result"} if code == "result-format" else {"version", "parent"}
        uses = [use for use in self.users.uses[digest] if use.role in roles]
        version = next((use.user for use in uses if use.role == "version"), None)
        entry = blob(digest)
        if code == "version-target" and version is not None:
            name, _, number = version.partition("@")
            entry = self.survey.names[name].versions[Version.parse(number)]
            what = f"it points to {digest}: {what}"
        self.survey.findings.add(code, entry, what, [use.user for use in uses])

    def _state(self, digest: str) -> os.stat_result | None:
        known = self.survey.blobs.get(digest)
        if known is not None or digest in self.survey.irregular:
            return known
        path = self.survey.root / blob(digest).path
        try:
            durable.check_folders(path.parent, self.survey.root)
            state = os.lstat(path)
        except (OSError, IntegrityError):  # reported when the folder was listed
            return None
        if fault := kind_fault(path, state.st_mode, "file"):
            self.survey.irregular[digest] = fault
            return None
        self.survey.blobs[digest] = state
        return state

    def _check(self, digest: str) -> None:
        entry, findings = blob(digest), self.survey.findings
        state = self._state(digest)
        if digest in self.survey.irregular:
            code, what = self.survey.irregular[digest]
            findings.add(code, entry, what, self.users.of(digest))
            return
        if state is None:
            if not self._report_missing(entry) and self._state(digest) is not None:
                self._check(digest)  # gc moved it out and back
            return
        if os.name != "nt" and state.st_mode & 0o222:
            what = f"mode {state.st_mode & 0o7777:o}; blobs are written once and read-only"
            findings.add("blob-writable", entry, what, self.users.of(digest))
        if digest in self._failed:
            findings.add("unreadable", entry, self._failed[digest], self.users.of(digest))
            return
        try:
            self._check_content(entry, state)
        except FileNotFoundError:
            del self.survey.blobs[digest]
            if self._state(digest) is None:
                self._report_missing(entry)
        except (OSError, EnvironmentFailure, IntegrityError) as error:
            findings.add("unreadable", entry, os_message(error), self.users.of(digest))

    def _check_content(self, entry: Blob, state: os.stat_result) -> None:
        digest = entry.digest
        uses = self.users.uses.get(digest, [])
        wrong_sizes = {use.size for use in uses if use.size not in (None, state.st_size)}
        is_payload = any(use.payload is not None for use in uses) and (self.deep or not wrong_sizes)
        header = header_or_fault(self.survey.root / entry.path) if is_payload else None
        content = None
        if digest in self._seen:
            actual = self._seen[digest]
        elif self.deep:
            tensor_header = header if isinstance(header, Header) else None
            content = read_content(
                self.survey.root / entry.path,
                self.survey.root,
                lambda size: self._count(size, digest),
                tensor_header,
            )
            actual = content.digest
        else:
            actual = digest
            self._tick(state.st_size, digest)
        findings = self.survey.findings
        if actual != digest:
            what = f"expected {digest}, got {actual} ({state.st_size:,} bytes)"
            findings.add("blob-digest", entry, what, self.users.of(digest))
        elif wrong_sizes:
            affected = [use.user for use in uses if use.size in wrong_sizes]
            stated = ", ".join(
                f"{size:,}" for size in sorted(size for size in wrong_sizes if size is not None)
            )
            findings.add("blob-size", entry, f"expected {stated} bytes, got {state.st_size:,}", affected)
        elif isinstance(header, str):
            findings.add("payload-header", entry, header, self.users.of(digest))
        elif header is not None:
            self._check_payload(entry, uses, header, content)
        if (
            actual == digest
            and state.st_size > MAX_BYTES
            and (roles := DOCUMENTS & {use.role for use in uses})
        ):
            code = "result-format" if roles == {"result"} else "version-target"
            self.users.faults.append((code, digest, f"{state.st_size:,} bytes are too many for a document"))

    def _check_payload(
        self, entry: Blob, uses: list[BlobUse], header: Header, content: Content | None
    ) -> None:
        findings = self.survey.findings
        for payload in dict.fromkeys(use.payload for use in uses if use.payload is not None):
            tensors = content.tensors if content is not None else payload.tensors
            if (payload.count, payload.tensors) != (len(header.tensors), tensors):
                what = f"expected {payload.count} tensors {payload.tensors}, got {len(header.tensors)}, {tensors}"
                affected = [use.user for use in uses if use.payload == payload]
                findings.add("payload-tensors", entry, what, affected)

    def _report_missing(self, entry: Blob) -> bool:
        """Report a missing blob; return False if it has come back."""
        digest, findings = entry.digest, self.survey.findings
        users = self.users.of(digest)
        if not users:
            return True  # gc moved it out in the meantime
        parents = (str(path) for path in Path(entry.path).parents)
        if blocked := next((path for path in parents if path in self.survey.blocked), None):
            self._affected_by_folder[blocked].extend(users)
            return True
        trash, quarantine = (self._copies(folder, digest) for folder in ("trash", "quarantine"))
        copy = next((path for path in (*trash, *quarantine) if self._is_intact(path, digest)), None)
        if os.path.lexists(self.survey.root / entry.path):
            return False
        code = missing_code(self.users.uses[digest])
        if code == "blob-collected" and quarantine:
            code = "blob-missing"  # it was damaged, not collected
        uses = self.users.uses[digest]
        if self.remote and not (trash or quarantine) and {use.role for use in uses} == {"payload"}:
            self.left[digest] = max(use.size or 0 for use in uses)
        elif copy in trash:
            findings.add("blob-in-trash", entry, f"it is in {copy}", users)
        elif copy is not None:
            remedy = "--repair restores that copy"
            findings.add(code, entry, f"an intact copy is in {copy}", users, remedy)
        else:
            what = "missing, and no intact copy in trash/ or quarantine/"
            findings.add(code, entry, what, users)
        return True

    def _copies(self, folder: str, digest: str) -> list[str]:
        """Return the paths of copies of a blob in ``trash`` or ``quarantine``, listed again."""
        if folder in self.survey.blocked:
            return []
        return [
            entry.path
            for entry in scan(self.survey.root, folder)
            if isinstance(entry, Aside) and entry.file.startswith(digest[7:])
        ]

    def _is_intact(self, path: str, digest: str) -> bool:
        try:
            if not self.deep:
                sizes = {use.size for use in self.users.uses.get(digest, []) if use.size is not None}
                return sizes <= {os.lstat(self.survey.root / path).st_size}
            content = read_content(self.survey.root / path, self.survey.root)
            return content.digest == digest
        except (OSError, IntegrityError):
            return False

    def _count(self, size: int, digest: str) -> None:
        self.bytes_read += size
        self._tick(size, digest)

    def _tick(self, size: int, digest: str) -> None:
        self._done += size
        if self.progress is not None:
            self.progress(self._done, max(self.total, self._done), digest[7:19])


def blob(digest: str) -> Blob:
    """Return the entry of a blob."""
    return Blob(blob_path(digest), digest)


def missing_code(uses: Iterable[BlobUse]) -> str:
    """Return the fault code of a missing blob, according to its users."""
    roles = {use.role for use in uses}
    if "version" in roles:
        return "manifest-missing"
    if "parent" in roles:
        return "parent-missing"
    if roles == {"result"}:
        return "result-missing"
    living = [use for use in uses if use.living]
    if not living and roles == {"payload"}:
        return "blob-collected"
    return "kin-missing" if all(use.ancestor_only for use in living or uses) else "blob-missing"
