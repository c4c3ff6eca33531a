"""What a manifest refers to must be there, as the manifest states, and stay until the version is linked."""

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
class PayloadFacts:
    """Tensor digest and number of tensors of a payload file that was read."""

    tensors: str
    count: int


@attrs.frozen(eq=False)
class Holding:
    """What one manifest that is about to be published refers to.

    Attributes:
        payloads: Facts about payload files by digest, filled as they are read.
        name: Under which it is published, for messages.
    """

    objects: Objects
    payloads: dict[str, PayloadFacts]
    name: str
    manifest: Manifest

    @cached_property
    def _needed(self) -> Sequence[tuple[str, int | None]]:
        """Digest of each blob that the manifest refers to, with its size where stated."""
        return tuple(sized_edges(self.manifest))

    def hold(self, data: bytes | None = None) -> None:
        """Check that everything that the manifest refers to is there, and keep it until the version is linked.

        Args:
            data: Bytes of the manifest, if they are to be kept too.
        """
        if data is not None and not self.objects.hold(digest_of(data)):
            self.objects.put(data)
        for edge, size in self._needed:
            if not self.objects.hold(edge):
                raise IntegrityError(
                    f"{self.name}: the manifest refers to {edge}, which this registry does not hold. Put "
                    "the blob, or publish the parent, first; then publish again.",
                    subject=edge,
                )
            actual = self.objects.size(edge)
            if size is not None and actual is not None and size != actual:
                raise IntegrityError(
                    f"{self.name}: the manifest gives {edge} {size} bytes, the blob has {actual}.",
                    subject=edge,
                )
        for digest in sorted(self._kin() - {edge for edge, _ in self._needed}):
            self.objects.hold(digest)  # may be gone for good reasons; what is there stays

    def _kin(self) -> set[str]:
        """Return everything that the manifests of the parents, and of theirs, refer to."""
        digests: set[str] = set()

        def parents(component: str) -> Iterator[str]:
            if self.objects.size(component) is None:
                return
            for edge in edges(
                loads(self.objects.read(component, most=MAX_BYTES), what=f"parent {component}")
            ):
                digests.add(edge.digest)
                if edge.key == "component":
                    yield edge.digest

        for _ in walk([parent.component for parent in self.manifest.parents], parents):
            pass
        return digests

    def check_payload(self) -> None:
        """Check that the weights are those that the manifest promises."""
        payload = self.manifest.payload
        facts = self.payloads.get(payload.file.blob)
        if facts is None:
            from compatkit.registry.weights.tensorfile import check_header, tensor_digest

            data = memoryview(self.objects.view(payload.file.blob))
            header = check_header(data)
            facts = PayloadFacts(tensor_digest(data, header), len(header.tensors))
            self.payloads[payload.file.blob] = facts
        if facts != PayloadFacts(payload.tensors, payload.count):
            raise IntegrityError(
                f"{self.name}: the manifest promises {payload.count} tensors {payload.tensors}, the payload "
                f"holds {facts.count} tensors {facts.tensors}. Take the payload that put_state returned.",
                subject=payload.file.blob,
            )
