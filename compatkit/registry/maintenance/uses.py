"""Users of each blob: versions, manifests, the blobs and parents they name, and measured results."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Literal

import attrs

from compatkit.contracts.codec import dumps, loads
from compatkit.contracts.manifest import SCHEMA, Manifest, Payload, from_bytes, function_digest
from compatkit.errors import FormatError
from compatkit.registry.maintenance.references import Published
from compatkit.registry.reach import edges, walk

Role = Literal["version", "parent", "payload", "kept", "result"]
"""Role of a blob."""
RESULTS = "results of "
"""Prefix of the label of a pair's results."""


@attrs.frozen
class BlobUse:
    """One use of a blob.

    Attributes:
        role: Role of the blob.
        whose: The user: ``name@version``, an ancestor, or the results of a pair.
        living: False if only withdrawn versions need it.
        kin: True if it belongs to a component that is there only as an ancestor of another, and not as a part of a
            recombination.
        size: Size in bytes according to the user, if stated.
        payload: Payload of the manifest, if the blob is its weights.
    """

    role: Role
    whose: str
    living: bool = True
    kin: bool = False
    size: int | None = None
    payload: Payload | None = None


@attrs.frozen
class _Named:
    """A manifest to follow, and the labels of its users."""

    digest: str
    labels: tuple[str, ...]
    living: bool
    kin: bool = False


@attrs.define
class Uses:
    """Everything reachable from references, and its users.

    Attributes:
        read: Returns the bytes of a document; None if missing, damaged or too large.
        of: Uses of each blob by digest, in the order in which they were found.
        functions: References by the hex digits of their function digest.
        manifests: Number of manifests read.
        naming: Whether to compute function digests, which takes a third of the time.
        faults: Code, digest and description of faults in documents whose bytes are intact.
    """

    read: Callable[[str], bytes | None]
    of: dict[str, list[BlobUse]] = attrs.field(factory=lambda: defaultdict(list))
    functions: dict[str, list[str]] = attrs.field(factory=lambda: defaultdict(list))
    manifests: int = 0
    naming: bool = True
    faults: list[tuple[str, str, str]] = attrs.field(factory=list)
    _entered: set[str] = attrs.field(factory=set)

    def users(self, digest: str) -> tuple[str, ...]:
        """Return the users of a blob."""
        return tuple(dict.fromkeys(use.whose for use in self.of.get(digest, ())))

    def label(self, extractor: str, head: str) -> str:
        """Describe the pair of two function digests (hex).

        Args:
            extractor: Its function digest.
            head: Its function digest.
        """
        sides = (self.functions.get(one, [f"value:{one[:12]}"])[0] for one in (extractor, head))
        return "{}{} with {}".format(RESULTS, *sides)

    def follow_versions(self, versions: Iterable[Published], withdrawn: Container[Published]) -> None:
        """Follow versions to their manifests, the blobs these name, and their parents.

        Args:
            versions: All versions to check.
            withdrawn: Those that are withdrawn.
        """
        named: dict[str, list[Published]] = defaultdict(list)
        for one in versions:
            named[one.digest].append(one)
            self.of[one.digest].append(BlobUse("version", str(one), one not in withdrawn))
        starts = [
            _Named(digest, tuple(map(str, those)), any(one not in withdrawn for one in those))
            for digest, those in named.items()
        ]
        starts.sort(key=lambda one: not one.living)

        def parents(one: _Named) -> Iterator[_Named]:
            label = f"an ancestor of {one.labels[0].removeprefix('an ancestor of ')}"
            for parent, needed in self._follow(one):
                if parent not in named:
                    yield _Named(parent, (label,), one.living, one.kin or not needed)
                elif one.living:
                    yield _Named(parent, tuple(map(str, named[parent])), True)

        for _ in walk(starts, parents, key=lambda one: one.digest, rank=lambda one: not one.kin):
            pass

    def _follow(self, one: _Named) -> Iterator[tuple[str, bool]]:
        """Record the blobs of a manifest; yield the digests of its parents, and whether they are parts of it."""
        data = self.read(one.digest)
        if data is None:
            return
        value = self._document(one.digest, data)
        manifest = self._manifest(one.digest, data, value) if value is not None else None
        parts = set[str]()
        if manifest is not None and manifest.kind == "recombination":
            parts = {parent.component for parent in manifest.parents}
        for key, edge, size in edges(value):
            payload = (
                manifest.payload if manifest is not None and edge == manifest.payload.file.blob else None
            )
            role: Role = "parent" if key == "component" else "payload" if payload is not None else "kept"
            for label in one.labels:
                self.of[edge].append(BlobUse(role, label, one.living, one.kin, size, payload))
            if role == "parent":
                yield edge, edge in parts
        if manifest is not None and one.digest not in self._entered:
            self._entered.add(one.digest)
            self.manifests += 1
            if self.naming:
                self.functions[function_digest(manifest).rpartition(":")[2]].extend(one.labels)

    def _document(self, digest: str, data: bytes) -> Any:
        try:
            return loads(data, what="manifest")
        except FormatError as error:
            code = "manifest-format" if data.lstrip()[:1] == b"{" else "version-target"
            self.faults.append((code, digest, str(error)))
            return None

    def _manifest(self, digest: str, data: bytes, value: Any) -> Manifest | None:
        if not isinstance(value, dict) or not {"schema", "kind", "payload"} & value.keys():
            self.faults.append(("version-target", digest, "expected a manifest, got other JSON"))
            return None
        schema = value.get("schema")
        if type(schema) is int and schema > SCHEMA:
            self.faults.append(("manifest-schema", digest, f"expected schema {SCHEMA}, got {schema}"))
            return None
        try:
            manifest = from_bytes(data)
        except FormatError as error:
            self.faults.append(("manifest-format", digest, str(error)))
            return None
        if not _is_canonical(value, data):
            what = "the same values, written canonically, are other bytes: keys or spaces are not as they should be"
            self.faults.append(("manifest-canonical", digest, what))
        return manifest

    def follow_results(self, pointers: Iterable[tuple[str, str]]) -> None:
        """Follow pointers to results, given as label and digest, and record the blobs of the results."""
        read: set[str] = set()
        for label, digest in pointers:
            self.of[digest].append(BlobUse("result", label))
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
                self.of[edge].append(BlobUse("kept", label, size=size))


def _is_canonical(value: Any, data: bytes) -> bool:
    """Return whether bytes are the canonical JSON of the value read from them."""
    if not data.isascii():
        return dumps(value) == data
    # after a strict read without composable characters, only key order and spaces can differ
    return (
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" == data
    )
