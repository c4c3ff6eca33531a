"""Blobs of a transfer: what components consist of, and copying what the target lacks, several blobs at once.

A refused blob does not stop the others; a failing disk or network does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from compatkit.contracts.manifest import from_bytes, function_digest, sized_edges
from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.foundation.codec import MAX_BYTES, loads
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.endpoints import ComponentBlob, Origin, Target
from compatkit.registry.copy.report import Item
from compatkit.registry.names import Reference
from compatkit.registry.reach import names


@attrs.define(eq=False)
class Closure:
    """Components with everything that their manifests refer to, parents included; bytes are not kept in memory.

    Attributes:
        origin: Where they are read.
        blobs: Blobs of the components, by digest.
    """

    origin: Origin
    blobs: dict[str, ComponentBlob] = attrs.field(init=False, factory=dict)
    _broken: dict[str, CompatkitError] = attrs.field(init=False, factory=dict)
    _requested: set[str] = attrs.field(init=False, factory=set)

    def enter(self, references: Iterable[Reference]) -> None:
        """Add components; see ``take``."""
        wanted = [
            ComponentBlob(str(reference.digest), "component", f"{reference.name}@{reference.version}")
            for reference in references
        ]
        self._requested |= {reference.digest for reference in wanted}
        self.take(wanted)

    def take(self, pending: list[ComponentBlob]) -> None:
        """Add blobs and everything they refer to, level by level, as a remote fetches a level at once.

        Unreadable documents are recorded, and ``of`` raises.
        """
        while pending:
            self.origin.expect(blob.digest for blob in pending if blob.how != "payload")
            pending = [further for blob in pending for further in self._add(blob)]

    def of(self, digest: str) -> list[str]:
        """Return the digests of a component and all its blobs, manifests last.

        Raises:
            IntegrityError: One of its documents is missing, damaged or not strict.
        """
        seen: dict[str, None] = {}
        pending = [digest]
        while pending:
            part = pending.pop()
            if part not in self.blobs:
                raise self._broken[part]
            if part not in seen:
                seen[part] = None
                pending.extend(self.blobs[part].further)
        return self.leaves_first(seen)

    def all_of(self, references: Iterable[Reference]) -> list[str]:
        """Return the digests of some components and their blobs, each once, manifests last."""
        return self.leaves_first(
            dict.fromkeys(digest for reference in references for digest in self.of(str(reference.digest)))
        )

    def leaves_first(self, digests: Iterable[str]) -> list[str]:
        """Return digests in their order, manifests last."""
        return sorted(digests, key=lambda digest: self.blobs[digest].how == "component")

    def components(self, digests: Iterable[str]) -> list[str]:
        """Return the digests that belong to components."""
        return [digest for digest in digests if self.blobs[digest].how == "component"]

    def functions(self, components: Iterable[str]) -> list[str]:
        """Return the function digests of components, sorted."""
        return sorted({str(self.blobs[digest].function) for digest in components})

    def parents(self) -> list[Reference]:
        """Return the origin's versions of parents that were not requested themselves."""
        lacking = {*self.components(self.blobs)} - self._requested
        return [version for digest in sorted(lacking) for version in self.origin.versions_of(digest)]

    def _add(self, blob: ComponentBlob) -> list[ComponentBlob]:
        known = self.blobs.get(blob.digest)
        if known is not None and (known.how == "component" or blob.how != "component"):
            if blob.payload is not None and known.payload is None:
                self.blobs[blob.digest] = attrs.evolve(known, payload=blob.payload)
            return []
        try:
            further = self._further(blob)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._broken[blob.digest] = error
            return []
        return further

    def _further(self, blob: ComponentBlob) -> list[ComponentBlob]:
        """Add a blob and return what it refers to."""
        function = None
        further: list[ComponentBlob] = []
        if blob.how == "component":
            data = self.origin.document(blob.digest, blob.owner)
            manifest = from_bytes(data, what=f"manifest of {blob.owner} in {self.origin.where}")
            function = function_digest(manifest)
            ways = dict(names(data, blob.digest, component=True))
            for edge, size in sized_edges(loads(data, what=blob.owner)):
                how = ways.get(edge, "blob")
                if edge == manifest.payload.file.blob:
                    if not self._is_collected(edge, blob.digest):
                        further.append(ComponentBlob(edge, "payload", blob.owner, size, manifest.payload))
                else:
                    parent = f" (parent {edge[:19]})" if how == "component" else ""
                    further.append(ComponentBlob(edge, how, f"{blob.owner}{parent}", size))
        elif blob.how != "payload" and (self.origin.size(blob.digest) or MAX_BYTES + 1) <= MAX_BYTES:
            data = self.origin.document(blob.digest, blob.owner)
            for edge, how in names(data, blob.digest, component=False):
                if how != "named" and self.origin.size(edge) is not None:
                    further.append(ComponentBlob(edge, "blob", blob.owner))
        digests = tuple(each.digest for each in further)
        self.blobs[blob.digest] = attrs.evolve(blob, function=function, further=digests)
        return further

    def _is_collected(self, payload: str, digest: str) -> bool:
        """Return whether weights were collected because all their versions were withdrawn."""
        if self.origin.size(payload) is not None:
            return False
        versions = self.origin.versions_of(digest)
        return bool(versions) and all(map(self.origin.is_withdrawn, versions))


class Stopped(Exception):
    """Another blob failed in a way that ends the transfer."""


@attrs.define(eq=False)
class Transfer(Closure):
    """Components whose blobs are copied to a target.

    Attributes:
        target: Where they are copied to.
        choice: Blobs at once, strictness, and progress.
        items: Copied blobs.
    """

    target: Target
    choice: Choice
    items: list[Item]
    _here: set[str] = attrs.field(init=False, factory=set)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _arrived: int = attrs.field(init=False, default=0)
    _total: int = attrs.field(init=False, default=0)
    _done: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Return the digests that the target lacks, or has with another size."""
        wanted = {digest: self.blobs[digest].size for digest in digests}
        sizes = self.target.sizes(list(wanted))
        return [
            digest
            for digest, size in wanted.items()
            if sizes[digest] is None or size not in (None, sizes[digest])
        ]

    def item(self, digest: str) -> Item:
        """Return the report's entry of a blob."""
        blob = self.blobs[digest]
        size = blob.size if blob.size is not None else self.origin.size(digest)
        return Item(digest, size or 0, blob.owner)

    def bring(self, digest: str) -> bool:
        """Copy one blob unless the target has it; weights are compared with their manifest once.

        Returns:
            Whether it was copied.
        """
        if digest in self._here and self.target.holds(digest):
            return False
        copied = self.target.bring(self.origin, self.blobs[digest], self._count)
        self._here.add(digest)
        return copied

    def bring_all(self, digests: Sequence[str]) -> dict[str, CompatkitError]:
        """Copy blobs; return the refused ones with their errors.

        Raises:
            EnvironmentFailure: Disk or network failed; the others were stopped.
            CompatkitError: A blob was refused, and the choice is strict.
        """
        self._arrived, self._total = 0, sum(self.item(digest).bytes for digest in self.lacking(digests))
        failed: dict[str, CompatkitError] = {}
        with ThreadPoolExecutor(self.choice.jobs) as pool:
            try:
                for count, outcome in enumerate(pool.map(self._try_bring, digests)):
                    if isinstance(outcome, CompatkitError):
                        failed[digests[count]] = outcome
                    elif outcome:
                        self.items.append(self.item(digests[count]))
                    self._done = count, len(digests)
                    self._show()
            except BaseException:
                self._stop.set()
                raise
        self.target.settle()
        return failed

    def _try_bring(self, digest: str) -> bool | CompatkitError:
        try:
            return self.bring(digest)
        except CompatkitError as error:
            if self.choice.strict or isinstance(error, EnvironmentFailure):
                raise
            return error

    def _count(self, arrived: int) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._arrived += arrived
        self._show()

    def _show(self) -> None:
        self.choice.progress(*self._done, f"{self._arrived / 1e6:.1f} of {self._total / 1e6:.1f} MB")
