"""Check that everything a manifest refers to is stored, and keep it until the version is linked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs

from compatkit.contracts.manifest import Manifest, sized_edges
from compatkit.errors import IntegrityError
from compatkit.foundation.codec import MAX_BYTES, loads
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.blobs import Objects
from compatkit.registry.document_graph import edges, walk


@attrs.frozen
class PayloadSummary:
    """Tensor digest and number of tensors of a payload file that was read."""

    tensors: str
    count: int


@attrs.frozen(eq=False)
class RequiredBlobs:
    """Blobs that one manifest refers to, before it is published.

    Attributes:
        objects: Blobs of the registry.
        identity: Identity of the registry.
        payloads: Summary of each payload file by digest, filled as files are read.
        name: Component name, for messages.
        manifest: Manifest to publish.
    """

    objects: Objects
    identity: str
    payloads: dict[str, PayloadSummary]
    name: str
    manifest: Manifest

    @cached_property
    def _edges(self) -> Sequence[tuple[str, int | None]]:
        """Digest of each blob that the manifest refers to, with its size where stated."""
        return tuple(sized_edges(self.manifest))

    def retain(self, data: bytes | None = None) -> None:
        """Check that all blobs exist with their stated sizes, and keep them until the version is linked.

        Args:
            data: Bytes of the manifest, to keep them too.
        """
        if data is not None and not self.objects.retain(digest_of(data)):
            self.objects.put(data)
        payload = self.manifest.payload
        if self.objects.size(payload.file.blob) is None:
            from compatkit.registry.remotes.fetching import fetch_payload  # imports half of the remotes

            fetch_payload(self.objects, self.identity, payload, self.name)
        for edge, size in self._edges:
            if not self.objects.retain(edge):
                raise IntegrityError(
                    f"{self.name}: the manifest refers to {edge}, which is not in this registry. Put "
                    "the blob, or publish the parent, first; then publish again.",
                    subject=edge,
                )
            actual = self.objects.size(edge)
            if size is not None and actual is not None and size != actual:
                raise IntegrityError(
                    f"{self.name}: the manifest gives {edge} {size} bytes, the blob has {actual}.",
                    subject=edge,
                )
        for digest in sorted(self._ancestor_blobs() - {edge for edge, _ in self._edges}):
            self.objects.retain(digest)  # may have been removed on purpose

    def _ancestor_blobs(self) -> set[str]:
        """Return the digests that the manifests of all ancestors refer to."""
        digests: set[str] = set()

        def parents(component: str) -> Iterator[str]:
            if self.objects.size(component) is None:
                return
            for edge in edges(
                loads(self.objects.read(component, max_bytes=MAX_BYTES), what=f"parent {component}")
            ):
                digests.add(edge.digest)
                if edge.key == "component":
                    yield edge.digest

        for _ in walk([parent.component for parent in self.manifest.parents], parents):
            pass
        return digests

    def check_payload(self) -> None:
        """Check that the payload has the tensors that the manifest states."""
        payload = self.manifest.payload
        summary = self.payloads.get(payload.file.blob)
        if summary is None:
            from compatkit.registry.weights.tensorfile import check_header, tensor_digest

            data = memoryview(self.objects.view(payload.file.blob))
            header = check_header(data)
            summary = PayloadSummary(tensor_digest(data, header), len(header.tensors))
            self.payloads[payload.file.blob] = summary
        if summary != PayloadSummary(payload.tensors, payload.count):
            raise IntegrityError(
                f"{self.name}: the manifest states {payload.count} tensors {payload.tensors}, the payload "
                f"has {summary.count} tensors {summary.tensors}. Take the payload that put_state returned.",
                subject=payload.file.blob,
            )
