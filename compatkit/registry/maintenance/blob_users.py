"""Users of each blob: versions, manifests and measured results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import attrs

from compatkit.contracts.manifest import SCHEMA, Manifest, Payload, from_bytes, function_digest
from compatkit.errors import FormatError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.canonical_manifests import read_canonical
from compatkit.registry.document_graph import DocumentEdge, edges, walk

if TYPE_CHECKING:
    from compatkit.registry.maintenance.references import Published

Role = Literal["version", "parent", "payload", "file", "result"]
"""Role of a blob: manifest of a version or parent, weights, other file of a document, or measured result."""
RESULTS = "results of "
"""Prefix of the label of a pair's results."""
RECENT = 16
"""Number of manifests cached in memory."""


class BlobUse(NamedTuple):  # created several times as fast as an attrs class
    """One use of a blob.

    Attributes:
        role: Role of the blob.
        user: ``name@version``, an ancestor, or the results of a pair.
        living: False if only withdrawn versions need the blob.
        ancestor_only: True if the blob belongs to an ancestor of others that is not a part of a recombination.
        size: Size in bytes according to the user, if known.
        payload: Payload section of the manifest, if the blob is its weights.
    """

    role: Role
    user: str
    living: bool = True
    ancestor_only: bool = False
    size: int | None = None
    payload: Payload | None = None


class _ManifestUse(NamedTuple):
    """A manifest to follow, and the labels of its users."""

    digest: str
    labels: tuple[str, ...]
    living: bool
    ancestor_only: bool = False


@attrs.define
class BlobUsers:
    """Users of all blobs that are reachable from references.

    Attributes:
        read: Function that returns the bytes of a document; None if missing, damaged or too large.
        uses: Uses of each blob by digest, in the order in which they were found.
        functions: References by the hex digits of their function digest.
        with_functions: Whether to compute function digests, which takes long.
        faults: Code, digest and description of faults in documents whose digest is correct.
        recent: Manifests read last, by digest.
    """

    read: Callable[[str], bytes | None]
    uses: dict[str, list[BlobUse]] = attrs.field(factory=lambda: defaultdict(list))
    functions: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    with_functions: bool = True
    faults: list[tuple[str, str, str]] = attrs.field(factory=list)
    recent: dict[str, Manifest] = attrs.field(factory=dict)
    _entered: set[str] = attrs.field(factory=set)

    def of(self, digest: str) -> tuple[str, ...]:
        """Return the users of a blob."""
        return tuple(dict.fromkeys(use.user for use in self.uses.get(digest, ())))

    def label(self, extractor: str, head: str) -> str:
        """Describe a pair, given the hex digits of both function digests."""
        sides = (
            self.functions.get(function, [f"value:{function[:12]}"])[0] for function in (extractor, head)
        )
        return "{}{} with {}".format(RESULTS, *sides)

    def follow_versions(
        self,
        versions: Iterable[Published],
        withdrawn: Set[Published],
        after_each: Callable[[Published], object] = lambda version: None,
    ) -> None:
        """Follow versions to their manifests, the blobs these name, and their parents.

        Args:
            versions: Versions to follow.
            withdrawn: Withdrawn ones among them.
            after_each: Function called with each version after its manifest was read, withdrawn ones last.
        """
        by_digest: dict[str, list[Published]] = defaultdict(list)
        living: set[str] = set()
        ordered = sorted(versions, key=withdrawn.__contains__) if withdrawn else list(versions)
        for version in ordered:
            is_living = not withdrawn or version not in withdrawn
            by_digest[version.digest].append(version)
            self.uses[version.digest].append(BlobUse("version", version.label, is_living))
            if is_living:
                living.add(version.digest)

        def starts() -> Iterator[_ManifestUse]:
            for version in ordered:
                same = by_digest[version.digest]
                if same[0] is version:
                    labels = tuple([other.label for other in same])
                    yield _ManifestUse(version.digest, labels, version.digest in living)
                after_each(version)  # the walk has followed the previous start when it requests the next

        def parents(manifest: _ManifestUse) -> Iterator[_ManifestUse]:
            for parent, is_part in self._follow(manifest):
                if parent not in by_digest:
                    label = f"an ancestor of {manifest.labels[0].removeprefix('an ancestor of ')}"
                    yield _ManifestUse(
                        parent, (label,), manifest.living, manifest.ancestor_only or not is_part
                    )
                elif manifest.living:
                    yield _ManifestUse(parent, tuple(version.label for version in by_digest[parent]), True)

        for _ in walk(
            starts(), parents, key=lambda step: step.digest, rank=lambda step: not step.ancestor_only
        ):
            pass

    def _follow(self, use: _ManifestUse) -> list[tuple[str, bool]]:
        """Record the blobs of a manifest; return the digests of its parents, and whether they are parts of it."""
        data = self.read(use.digest)
        if data is None:
            return []
        manifest, edges = read_canonical(data) or self._parsed(use.digest, data)
        payload = manifest.payload if manifest is not None else None
        is_recombination = manifest is not None and manifest.kind == "recombination"
        parts = {parent.component for parent in manifest.parents} if manifest and is_recombination else ()
        parents: list[tuple[str, bool]] = []
        for key, edge, size in edges:
            own = payload if payload is not None and edge == payload.file.blob else None
            role: Role = "parent" if key == "component" else "payload" if own is not None else "file"
            for label in use.labels:
                self.uses[edge].append(BlobUse(role, label, use.living, use.ancestor_only, size, own))
            if role == "parent":
                parents.append((edge, edge in parts))
        if manifest is not None and use.digest not in self._entered:
            self._entered.add(use.digest)
            self.recent[use.digest] = manifest
            if len(self.recent) > RECENT:
                del self.recent[next(iter(self.recent))]
            if self.with_functions:
                self.functions[function_digest(manifest).rpartition(":")[2]].extend(use.labels)
        return parents

    @property
    def manifests(self) -> int:
        """Number of manifests read."""
        return len(self._entered)

    def _parsed(self, digest: str, data: bytes) -> tuple[Manifest | None, Iterable[DocumentEdge]]:
        """Report the fault of a document; return the manifest, or None, and everything it refers to."""
        manifest = value = None
        code, what = "", ""
        try:
            value = loads(data, what="manifest")
            manifest = from_bytes(data)
            if dumps(value) != data:
                code, what = "manifest-canonical", "the canonical encoding of its values differs"
        except FormatError as error:
            code, what = _code_of(data, value), str(error)
        if code:
            self.faults.append((code, digest, what))
        return manifest, edges(value)

    def follow_results(self, pointers: Iterable[tuple[str, str]]) -> None:
        """Follow pointers to results, given as label and digest; record the blobs of the results."""
        read: set[str] = set()
        for label, digest in pointers:
            self.uses[digest].append(BlobUse("result", label))
            if digest in read:
                continue
            read.add(digest)
            data = self.read(digest)
            if data is None:
                continue
            value, what = None, "expected an object"
            try:
                value = loads(data, what="result")
            except FormatError as error:
                what = str(error)
            if not isinstance(value, dict):
                self.faults.append(("result-format", digest, what))
            for _, edge, size in edges(value):
                self.uses[edge].append(BlobUse("file", label, size=size))


def _code_of(data: bytes, value: Any) -> str:
    """Return the fault code of a document that is not a manifest, given its JSON value, or None."""
    if value is None:
        return "manifest-format" if data.lstrip()[:1] == b"{" else "version-target"
    if not isinstance(value, dict) or not {"schema", "kind", "payload"} & value.keys():
        return "version-target"
    schema = value.get("schema")
    return "manifest-schema" if type(schema) is int and schema > SCHEMA else "manifest-format"
