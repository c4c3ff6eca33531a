"""The plain rule behind the index: every answer from the files themselves, slowly, where SQLite cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import attrs

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.registry import resolving
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.index.evidence import Files
from compatkit.registry.index.listed import Listed
from compatkit.registry.index.profiles import Profile, linked, profile
from compatkit.registry.index.scanning import Number
from compatkit.registry.index.search import Found, Query, found
from compatkit.registry.names import Version
from compatkit.registry.reach import How
from compatkit.registry.refs import References
from compatkit.registry.results import Result


@attrs.frozen(eq=False)
class Walk:
    """Asks the files.

    Attributes:
        references: Names and versions.
        objects: Manifests.
    """

    references: References
    objects: Objects
    _profiles: dict[str, Profile] = attrs.field(init=False, factory=dict)

    def names(self, pattern: str | None) -> list[str]:
        """Return all names that have a version, sorted, or those that a glob matches."""
        return [name for name in resolving.names(self.references, pattern) if self.references.versions(name)]

    def find(self, name: str, number: Number) -> Found | None:
        """Return one version; None if there is none."""
        version = Version(*number)
        if version not in self.references.taken(name):
            return None
        withdrawn = version in self.references.withdrawn(name) and version in self.references.versions(name)
        return self._found(name, version, withdrawn)

    def page(self, query: Query, after: tuple[str, Number] | None = None) -> list[Found]:
        """Return what fits, by name and rising version, beginning after a version."""
        fits = (one for place, one in self._fitting(query) if after is None or place > after)
        return list(islice(fits, query.offset, None if query.limit is None else query.offset + query.limit))

    def count(self, query: Query) -> int:
        """Return how many versions fit."""
        return sum(1 for _ in self._fitting(query))

    def listing(self, pattern: str | None, after: str, limit: int) -> list[Listed]:
        """Return names with versions that are not withdrawn, sorted, beginning after one."""
        names = (name for name in self.names(pattern) if name > after)
        lines = (self._listed(name) for name in names)
        return list(islice((line for line in lines if line is not None), limit))

    def roots(self) -> Iterator[tuple[str, str]]:
        """Yield every name with the digest of each manifest that a version of it points at."""
        for name, version in self.references.each():
            digest = self._digest(name, version)[0]
            if digest:
                yield name, digest

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield every manifest's digest with each digest that must be kept with it."""
        left, seen = [digest for _, digest in self.roots()], set[str]()
        while left:
            digest = left.pop()
            if digest in seen:
                continue
            seen.add(digest)
            for edge, how in self._edges(digest).items():
                yield digest, edge
                if how != "payload":
                    left.append(edge)

    def referenced(self) -> set[str]:
        """Return the digests of all that any version keeps: its manifest, and along edges what those keep."""
        return {digest for _, digest in self.roots()} | {edge for _, edge in self.edges()}

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[Result]:
        """Return what was measured of every extractor with every head, by function digest."""
        return list(Files(self.references.root).kept(extractors, heads))

    def counts(self) -> dict[str, int]:
        """Return how many names, versions, manifests and damaged ones there are."""
        all_found = [self._found(name, version, False) for name, version in self.references.each()]
        return {
            "names": len({one.name for one in all_found}),
            "versions": len(all_found),
            "manifests": len({one.digest for one in all_found if one.digest}),
            "damaged": sum(bool(one.error) for one in all_found),
        }

    def _fitting(self, query: Query) -> Iterator[tuple[tuple[str, Number], Found]]:
        for name in self.names(query.pattern):
            gone = self.references.withdrawn(name)
            versions = self.references.versions(name)
            live = [version for version in versions if version not in gone]
            asked = live[-1:] if query.latest else versions if query.withdrawn else live
            for version in asked:
                digest = self._digest(name, version)[0]
                about = self._profile(digest)[0] if digest else None
                if about is not None and query.fits(name, about, digest):
                    place = name, attrs.astuple(version)
                    yield place, found(name, str(version), digest, about, withdrawn=version in gone)

    def _edges(self, digest: str) -> Mapping[str, How]:
        about = self._profile(digest)[0]
        if about is not None:
            return about.edges
        try:
            data = self.objects.read(digest, aside=False)
        except CompatkitError:
            return {}
        return linked(data, lambda: data, digest)

    def _listed(self, name: str) -> Listed | None:
        live = resolving.live(self.references, name)
        if not live:
            return None
        versions = tuple(map(str, live))
        digest, error = self._digest(name, live[-1])
        about, problem = self._profile(digest) if digest else (None, error)
        if about is None:
            return Listed(name, versions[-1], versions, error=problem)
        try:
            aliases = Aliases(self.references.folder(name), self.references.root).all()
        except IntegrityError as error:
            return Listed(name, versions[-1], versions, error=str(error))
        facts = (about.kind, about.parameters, about.model, about.split)
        return Listed(name, versions[-1], versions, *facts, aliases)

    def _found(self, name: str, version: Version, withdrawn: bool) -> Found:
        digest, error = self._digest(name, version)
        about, problem = self._profile(digest) if digest else (None, error)
        return found(name, str(version), digest, about, withdrawn=withdrawn, error=problem)

    def _digest(self, name: str, version: Version) -> tuple[str, str]:
        """Return the digest that a version points at, or ``""`` and why there is none."""
        try:
            return self.references.digest(name, version) or "", f"{name}@{version} is not there any more."
        except CompatkitError as error:
            return "", str(error)

    def _profile(self, digest: str) -> tuple[Profile | None, str]:
        """Return what a manifest says, or None and why that is not known."""
        try:
            data = self.objects.read(digest, aside=False)
            if digest not in self._profiles:
                self._profiles[digest] = profile(data, f"manifest {digest}")
            return self._profiles[digest], ""
        except CompatkitError as error:
            return None, str(error)
