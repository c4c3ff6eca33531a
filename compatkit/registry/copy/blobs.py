"""Blobs of a transfer: find the blobs of components, and copy missing ones in parallel.

A refused blob does not stop the others; a failing disk or network does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import from_bytes, function_digest, sized_edges
from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.foundation.codec import MAX_BYTES, loads
from compatkit.registry.copy.endpoints import ComponentBlob, Origin, Target
from compatkit.registry.copy.report import CopiedBlob, on_refusal
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.document_graph import names

if TYPE_CHECKING:
    from compatkit.registry.names import Reference


@attrs.define(eq=False)
class BlobGraph:
    """Graph of the blobs of components: everything that manifests refer to, including parents, without contents.

    Attributes:
        origin: Registry or packages that contain the components.
        blobs: Blobs of the components, by digest.
    """

    origin: Origin
    blobs: dict[str, ComponentBlob] = attrs.field(init=False, factory=dict)
    _broken: dict[str, CompatkitError] = attrs.field(init=False, factory=dict)
    _requested: set[str] = attrs.field(init=False, factory=set)

    def add_components(self, references: Iterable[Reference]) -> None:
        """Add components; see ``add``."""
        manifests = [
            ComponentBlob(str(reference.digest), "component", f"{reference.name}@{reference.version}")
            for reference in references
        ]
        self._requested |= {manifest.digest for manifest in manifests}
        self.add(manifests)

    def add(self, level: list[ComponentBlob]) -> None:
        """Add blobs and everything they refer to, level by level, because a remote fetches a level at once.

        Unreadable documents are recorded; ``blobs_of`` raises their errors.
        """
        while level:
            self.origin.prefetch(blob.digest for blob in level if blob.role != "payload")
            level = [child for blob in level for child in self._add(blob)]

    def blobs_of(self, *digests: str) -> list[str]:
        """Return the digests of components or results and of all their blobs, each once, manifests last.

        Raises:
            IntegrityError: A document is missing, damaged or malformed.
        """
        seen: dict[str, None] = {}
        for digest in digests:
            pending = [digest]
            while pending:
                current = pending.pop()
                if current not in self.blobs:
                    raise self._broken[current]
                if current not in seen:
                    seen[current] = None
                    pending.extend(self.blobs[current].children)
        return sorted(seen, key=lambda digest: self.blobs[digest].role == "component")

    def blobs_of_versions(self, references: Iterable[Reference]) -> list[str]:
        """Return the digests of all blobs of versions, each once, manifests last."""
        return self.blobs_of(*(str(reference.digest) for reference in references))

    def components(self, digests: Iterable[str]) -> list[str]:
        """Return the digests of manifests among blobs."""
        return [digest for digest in digests if self.blobs[digest].role == "component"]

    def functions(self, components: Iterable[str]) -> list[str]:
        """Return the function digests of components, sorted."""
        return sorted({str(self.blobs[digest].function) for digest in components})

    def parents(self) -> list[Reference]:
        """Return the versions in the origin of parents that were not requested themselves."""
        parents = {*self.components(self.blobs)} - self._requested
        return [version for digest in sorted(parents) for version in self.origin.versions_of(digest)]

    def _add(self, blob: ComponentBlob) -> list[ComponentBlob]:
        """Add a blob and return the blobs that it refers to; none if it is known or unreadable."""
        known = self.blobs.get(blob.digest)
        if known is not None and (known.role == "component" or blob.role != "component"):
            if blob.payload is not None and known.payload is None:
                self.blobs[blob.digest] = attrs.evolve(known, payload=blob.payload)
            return []
        with on_refusal(lambda error: self._broken.update({blob.digest: error})):
            return self._add_new(blob)
        return []

    def _add_new(self, blob: ComponentBlob) -> list[ComponentBlob]:
        """Read a blob if it is a document, add it, and return the blobs that it refers to."""
        function = None
        children: list[ComponentBlob] = []
        if blob.role == "component":
            data = self.origin.document(blob.digest, blob.owner)
            manifest = from_bytes(data, what=f"manifest of {blob.owner} in {self.origin.address}")
            function = function_digest(manifest)
            roles = dict(names(data, blob.digest, component=True))
            for edge, size in sized_edges(loads(data, what=blob.owner)):
                role = roles.get(edge, "blob")
                if edge != manifest.payload.file.blob:
                    parent = f" (parent {edge[:19]})" if role == "component" else ""
                    children.append(ComponentBlob(edge, role, f"{blob.owner}{parent}", size))
                elif not self._is_collected(edge, blob.digest):
                    children.append(ComponentBlob(edge, "payload", blob.owner, size, manifest.payload))
        elif blob.role != "payload" and (self.origin.size(blob.digest) or MAX_BYTES + 1) <= MAX_BYTES:
            data = self.origin.document(blob.digest, blob.owner)
            for edge, role in names(data, blob.digest, component=False):
                if role != "named" and self.origin.size(edge) is not None:
                    children.append(ComponentBlob(edge, "blob", blob.owner))
        digests = tuple(child.digest for child in children)
        self.blobs[blob.digest] = attrs.evolve(blob, function=function, children=digests)
        return children

    def _is_collected(self, payload: str, digest: str) -> bool:
        """Return whether the weights of a manifest were garbage-collected, as all its versions were withdrawn."""
        if self.origin.is_in_use(digest) or self.origin.size(payload) is not None:
            return False
        versions = self.origin.versions_of(digest)
        return bool(versions) and all(map(self.origin.is_withdrawn, versions))


class Stopped(Exception):
    """The transfer was stopped, because another blob failed."""


@attrs.define(eq=False)
class BlobCopier(BlobGraph):
    """Copies the blobs of components to a target.

    Attributes:
        target: Registry to copy to.
        settings: Settings of the transfer; ``jobs``, ``strict`` and ``progress`` are used.
        copied: Copied blobs.
    """

    target: Target
    settings: TransferSettings
    copied: list[CopiedBlob]
    _present: set[str] = attrs.field(init=False, factory=set)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _copied_bytes: int = attrs.field(init=False, default=0)
    _total_bytes: int = attrs.field(init=False, default=0)
    _progress: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    def blobs_of(self, *digests: str) -> list[str]:
        """Return the digests as ``BlobGraph.blobs_of`` does; without weights if the settings leave them out."""
        digests_of_blobs = super().blobs_of(*digests)
        if self.settings.weights:
            return digests_of_blobs
        return [digest for digest in digests_of_blobs if self.blobs[digest].role != "payload"]

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return the digests of blobs that the target lacks, or has with another size."""
        expected = {digest: self.blobs[digest].size for digest in digests}
        sizes = self.target.sizes(list(expected))
        return [
            digest
            for digest, size in expected.items()
            if sizes[digest] is None or size not in (None, sizes[digest])
        ]

    def copied_blob(self, digest: str) -> CopiedBlob:
        """Return the entry of a blob for the report."""
        blob = self.blobs[digest]
        size = blob.size if blob.size is not None else self.origin.size(digest)
        return CopiedBlob(digest, size or 0, blob.owner)

    def copy(self, digest: str) -> bool:
        """Copy one blob unless the target has it; weights are compared with their manifest only the first time.

        Returns:
            Whether it was copied.
        """
        if digest in self._present and self.target.has(digest):
            return False
        copied = self.target.copy(self.origin, self.blobs[digest], self._count)
        self._present.add(digest)
        return copied

    def copy_all(self, digests: Sequence[str]) -> dict[str, CompatkitError]:
        """Copy blobs; return the errors of refused ones.

        Raises:
            EnvironmentFailure: Disk or network failed; the other copies were stopped.
            CompatkitError: A blob was refused, and the transfer is strict.
        """
        self._copied_bytes = 0
        self._total_bytes = sum(self.copied_blob(digest).bytes for digest in self.missing(digests))
        failed: dict[str, CompatkitError] = {}
        with ThreadPoolExecutor(self.settings.jobs) as pool:
            try:
                for count, outcome in enumerate(pool.map(self._try_copy, digests)):
                    if isinstance(outcome, CompatkitError):
                        failed[digests[count]] = outcome
                    elif outcome:
                        self.copied.append(self.copied_blob(digests[count]))
                    self._progress = count, len(digests)
                    self._report_progress()
            except BaseException:
                self._stop.set()
                raise
        self.target.settle()
        return failed

    def _try_copy(self, digest: str) -> bool | CompatkitError:
        try:
            return self.copy(digest)
        except CompatkitError as error:
            if self.settings.strict or isinstance(error, EnvironmentFailure):
                raise
            return error

    def _count(self, copied: int) -> None:
        """Add copied bytes to the progress; raise if another copy failed."""
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._copied_bytes += copied
        self._report_progress()

    def _report_progress(self) -> None:
        self.settings.progress(
            *self._progress, f"{self._copied_bytes / 1e6:.1f} of {self._total_bytes / 1e6:.1f} MB"
        )
