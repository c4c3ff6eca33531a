"""Every answer of the index, read from the files each time: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.foundation.spelling import normalize_name, normalize_text
from compatkit.registry import resolving
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.evidence import FUNCTION, from_bytes
from compatkit.registry.index.lookup import ListedName
from compatkit.registry.index.properties import ManifestProperties, properties_of
from compatkit.registry.index.query import Query
from compatkit.registry.index.search import SearchResult
from compatkit.registry.names import Version
from compatkit.registry.refs import References


@attrs.frozen
class Plain:
    """A registry's files."""

    root: Path

    @property
    def references(self) -> References:
        return References(self.root)

    def names(self, pattern: str | None = None) -> list[str]:
        return [name for name in resolving.names(self.references, pattern) if self.references.versions(name)]

    def search(self, query: Query) -> list[SearchResult]:
        fits = list(self._fitting(query))
        return fits[query.offset :][: query.limit]

    def count(self, query: Query) -> int:
        return len(list(self._fitting(query)))

    def listing(self) -> list[ListedName]:
        lines = (self._listed(name) for name in self.names())
        return [line for line in lines if line is not None]

    def roots(self) -> set[tuple[str, str]]:
        each = ((name, self.digest(name, version)) for name, version in self.references.each())
        return {(name, digest) for name, digest in each if digest}

    def digest(self, name: str, version: Version) -> str | None:
        try:
            return self.references.digest(name, version)
        except CompatkitError:
            return None

    def properties_of(self, digest: str | None) -> ManifestProperties | None:
        try:
            return (
                properties_of(Objects(self.root).read(str(digest), quarantine=False), "it")
                if digest
                else None
            )
        except CompatkitError:
            return None

    def _fitting(self, query: Query) -> Iterator[SearchResult]:
        for name in self.names(query.pattern):
            gone = self.references.withdrawn(name)
            every = self.references.versions(name)
            live = [version for version in every if version not in gone]
            for version in live[-1:] if query.latest else every if query.withdrawn else live:
                digest = self.digest(name, version)
                about = self.properties_of(digest)
                if about is not None and fits(query, name, about, str(digest)):
                    yield search_result(name, version, str(digest), about, version in gone)

    def _listed(self, name: str) -> ListedName | None:
        live = resolving.live(self.references, name)
        if not live:
            return None
        versions = tuple(map(str, live))
        about = self.properties_of(self.digest(name, live[-1]))
        try:
            aliases = Aliases(self.references.folder(name), self.root).all()
        except IntegrityError:
            about, aliases = None, {}
        if about is None:
            return ListedName(name, versions[-1], versions, error="damaged")
        facts = (about.kind, about.parameters, about.model, about.cut)
        return ListedName(name, versions[-1], versions, *facts, aliases)


def fits(query: Query, name: str, about: ManifestProperties, digest: str) -> bool:
    """Return whether a version with these facts is one, whatever its number."""
    tests = (
        query.pattern is None or fnmatchcase(name, query.pattern),
        query.kind in (None, about.kind),
        query.tags.items() <= about.tags.items(),
        query.model is None or fnmatchcase(about.model, query.model),
        query.channels is None or query.channels in about.channels,
        query.label is None or any(normalize_name(query.label) in classes for classes in about.classes),
        query.anchor is None or any(anchor.startswith(query.anchor) for anchor in about.anchors),
        query.parent is None or any(value == query.parent for _, value in about.parents),
        query.digest in (None, digest),
        all(word in about.words for word in query.words),
        all(word in name or word in about.words for word in normalize_text(query.anywhere or "").split()),
    )
    return all(tests)


def search_result(
    name: str, version: Version, digest: str, about: ManifestProperties, withdrawn: bool
) -> SearchResult:
    facts = (about.kind, about.builder, about.model, about.cut, about.parameters, about.bytes, about.title)
    more = (
        about.license,
        len(about.classes) or None,
        about.tags,
        about.channels,
        about.anchors,
        about.parents,
    )
    return SearchResult(name, str(version), digest, *facts, *more, withdrawn)


def results(root: Path, extractors: list[str], heads: list[str]) -> list[tuple[Any, ...]]:
    """Return what ``Index.results`` tells, as plain tuples, with an error as True."""
    message: list[tuple[Any, ...]] = []
    for pointer in sorted((root / "evidence").glob("*/*/*/*")):
        extractor, head, key, digest = pointer.relative_to(root / "evidence").parts
        folders = [root / "evidence" / extractor / head, pointer.parent]
        wanted = FUNCTION + extractor in extractors and FUNCTION + head in heads
        if not wanted or pointer.is_symlink() or any(folder.is_symlink() for folder in folders):
            continue
        parts: Any = ({}, {}, {})
        try:
            sound = pointer.read_text().strip() == f"sha256:{digest}"
            data = Objects(root).read(f"sha256:{digest}", verify="always", quarantine=False)
            parts = from_bytes(data, FUNCTION + extractor, FUNCTION + head, key, "it") if sound else parts
        except CompatkitError:
            sound = False
        message.append((FUNCTION + extractor, FUNCTION + head, f"sha256:{digest}", *parts, not sound))
    return sorted(message, key=repr)
