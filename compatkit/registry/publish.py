"""Publishing: validate everything, store the manifest, choose the number, and link the version last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from compatkit.errors import IntegrityError, VersionExists, VersionTooSmall
from compatkit.registry.canonical import MAX_BYTES, loads
from compatkit.registry.canonical import digest as digest_of
from compatkit.registry.changes.differences import Difference, diff
from compatkit.registry.manifest import Manifest, edges, from_bytes, sized_edges, to_bytes
from compatkit.registry.names import Reference, Version, check_name, is_digest
from compatkit.registry.objects import Objects
from compatkit.registry.references import References

FIRST = Version(1, 0, 0)
SHOWN = 8
"""Reasons that a message lists; a head may lose thousands of labels at once."""
STAY = (
    "New weights stay within a major line only if they were trained against the frozen auxiliary head of the "
    "version before, or were measured. "
)


@attrs.frozen
class Facts:
    """What a payload file was seen to hold: tensor digest and number of tensors."""

    tensors: str
    count: int


@attrs.frozen(eq=False)
class Publisher:
    """Publishes one manifest under one name.

    Attributes:
        payloads: Facts about payload files by digest, filled as they are seen.
        measured: The caller vouches that the measurement stated for new weights passed.
    """

    objects: Objects
    references: References
    payloads: dict[str, Facts]
    name: str
    manifest: Manifest
    measured: bool = False

    def publish(self, version: str | None) -> Reference:
        """See ``Store.publish``."""
        check_name(self.name)
        asked = None if version is None else Version.parse(version)
        data = to_bytes(self.manifest)
        digest = digest_of(data)
        needs = tuple(sized_edges(self.manifest))
        self._hold(needs)
        self._check_payload()
        stored = False
        while True:
            target = self._next(digest) if asked is None else asked
            there = self.references.digest(self.name, target)
            if there == digest:
                return Reference(self.name, target, digest=digest)
            if there is not None and asked is None:
                continue  # another process took the number in between
            if there is not None:
                raise VersionExists(
                    f"{self.name}@{target} exists with other content: it is {there}, this would be "
                    f"{digest}. A version is never rewritten; publish without a version to get the next "
                    "free number.",
                    subject=f"{self.name}@{target}",
                )
            if asked is not None:
                self._check_step(asked)
            if not stored:
                self.objects.put(data)
                stored = True
            if self.references.create(self.name, target, digest, lambda: self._hold(needs, data)):
                return Reference(self.name, target, digest=digest)
            # another process was faster: look again

    def _alive(self) -> list[Version]:
        return sorted(set(self.references.versions(self.name)) - self.references.withdrawn(self.name))

    def _next(self, digest: str) -> Version:
        taken, alive = self.references.taken(self.name), self._alive()
        if not alive:
            return max(taken).bumped("major") if taken else FIRST
        latest = alive[-1]
        if self.references.digest(self.name, latest) == digest:
            return latest
        bump = self._change(latest).bump
        bump = "patch" if bump == "none" else bump  # the same, written by a program that left out defaults
        target = latest.bumped(bump)
        while target in taken:
            target = target.bumped(bump)
        return target

    def _check_step(self, target: Version) -> None:
        taken = self.references.taken(self.name)
        above = [version for version in taken if version.major == target.major and version > target]
        if above:
            raise VersionTooSmall(
                f"{self.name}@{target} would come after {max(above)} of the same major line; the numbers of "
                "a line only rise. Publish without a version to get the next free number.",
                subject=f"{self.name}@{target}",
            )
        below = [version for version in self._alive() if version < target]
        if not below:
            return
        before = below[-1]
        change = self._change(before)
        least = before.bumped(change.bump)
        if target < least:
            told = [
                f"({level}) {reason}"
                for level, reasons in change.told().items()
                for bump, reason in reasons
                if target < before.bumped(bump)
            ]
            more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
            why = "; ".join(told[:SHOWN]) + more
            stay = STAY if any(one.place == ("payload", "tensors") for one in change.changes) else ""
            raise VersionTooSmall(
                f"{self.name}@{target} is too small a step from {before}: at least {least} is needed, because {why}. "
                f"{stay}Publish without a version to get the least step, or ask for {least} or more.",
                subject=f"{self.name}@{target}",
            )

    def _change(self, before: Version) -> Difference:
        return diff(self._manifest(before), self.manifest, measured=self.measured)

    def _manifest(self, version: Version) -> Manifest:
        digest = self.references.digest(self.name, version)
        if digest is None:
            raise IntegrityError(
                f"{self.name}@{version} vanished while it was read; the registry is being changed by hand."
            )
        return from_bytes(
            self.objects.read(digest, most=MAX_BYTES), what=f"manifest of {self.name}@{version}"
        )

    def _hold(self, needs: Sequence[tuple[str, int | None]], data: bytes | None = None) -> None:
        """See that everything that the manifest refers to is there, and will stay until the version is linked.

        Args:
            needs: What it refers to, with the sizes that it states.
            data: The manifest itself, if it is to be there too.
        """
        if data is not None and not self.objects.hold(digest_of(data)):
            self.objects.put(data)
        for edge, size in needs:
            if not self.objects.hold(edge):
                raise IntegrityError(
                    f"{self.name}: the manifest refers to {edge}, which this registry does not hold. Put "
                    "the blob, or publish the parent, first; then publish again.",
                    subject=edge,
                )
            held = self.objects.size(edge)
            if size is not None and held is not None and size != held:
                raise IntegrityError(
                    f"{self.name}: the manifest gives {edge} {size} bytes, the blob has {held}.", subject=edge
                )
        for digest in self._kin({edge for edge, _ in needs}):
            self.objects.hold(
                digest
            )  # what a parent refers to may be gone for good reasons; what is there stays

    def _kin(self, known: set[str]) -> Iterator[str]:
        """Yield every digest that the manifests of the parents, and of theirs, refer to and that is not ``known``."""
        ahead = {parent.component for parent in self.manifest.parents}
        walked: set[str] = set()
        while ahead:
            component = ahead.pop()
            walked.add(component)
            if self.objects.size(component) is None:
                continue
            value = loads(self.objects.read(component, most=MAX_BYTES), what=f"parent {component}")
            further = set(edges(value)) - known
            yield from further
            known = known | further
            parents = value.get("parents") if isinstance(value, dict) else None
            listed = [one for one in parents if isinstance(one, dict)] if isinstance(parents, list) else []
            ahead |= {one["component"] for one in listed if is_digest(one.get("component"))} - walked

    def _check_payload(self) -> None:
        payload = self.manifest.payload
        facts = self.payloads.get(payload.file.blob)
        if facts is None:
            from compatkit.registry.tensors.tensorfile import check_header, tensor_digest

            data = memoryview(self.objects.view(payload.file.blob))
            header = check_header(data)
            facts = Facts(tensor_digest(data, header), len(header.tensors))
            self.payloads[payload.file.blob] = facts
        if facts != Facts(payload.tensors, payload.count):
            raise IntegrityError(
                f"{self.name}: the manifest promises {payload.count} tensors {payload.tensors}, the payload "
                f"holds {facts.count} tensors {facts.tensors}. Take the payload that put_state returned.",
                subject=payload.file.blob,
            )
