"""What is released, as those ask who decide on new versions: what is here, and what is arriving from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from compatkit.contracts.manifest import TRAINED, Manifest, trained_with
from compatkit.registry.index.lookup import Index
from compatkit.registry.names import Reference, Version
from compatkit.registry.refs import References


@attrs.frozen(eq=False)
class Releases:
    """The versions of one registry."""

    references: References
    index: Index

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name, rising, withdrawn ones included."""
        return self.references.versions(name)

    def alive(self, name: str) -> list[Version]:
        """Return the versions of a name that were not withdrawn, rising."""
        return sorted(set(self.versions(name)) - self.references.withdrawn(name))

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest of a version; None if there is none."""
        return self.references.digest(name, version)

    def named(self, digests: set[str]) -> Iterator[tuple[str, str]]:
        """Yield name and digest of every manifest among ``digests`` that has a name."""
        yield from ((name, digest) for name, digest in self.index.roots() if digest in digests)

    def heads(self, extractor: str) -> Iterator[Reference]:
        """Yield the heads that were not withdrawn and whose ``trained_with`` parent is a manifest."""
        for one in self.index.search(kind="head", parent=extractor):
            if (TRAINED, extractor) in one.parents:
                yield Reference(one.name, Version.parse(one.version), digest=one.digest)


@attrs.frozen(eq=False)
class Arriving(Releases):
    """The versions of a registry, and those that are about to join them, as if all were released.

    So the answer does not depend on the order in which they are named, and a head that comes together with an
    extractor counts for it.

    Attributes:
        coming: With name, version and digest; none of them withdrawn where it comes from.
        read: Returns a manifest by its digest.
    """

    coming: Sequence[Reference]
    read: Callable[[str], Manifest]
    _by_name: dict[str, dict[Version, Reference]] = attrs.field(init=False, factory=dict)
    _heads: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)
    _read: list[bool] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        for one in self.coming:
            if one.version is not None:
                self._by_name.setdefault(one.name, {})[one.version] = one

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name, rising, withdrawn and arriving ones included."""
        return sorted({*super().versions(name), *self._by_name.get(name, ())})

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest of a version; what is here counts."""
        there = super().digest(name, version)
        one = self._by_name.get(name, {}).get(version)
        return there if there is not None or one is None else one.digest

    def named(self, digests: set[str]) -> Iterator[tuple[str, str]]:
        """Yield name and digest of every manifest among ``digests`` that has, or gets, a name."""
        coming = ((one.name, str(one.digest)) for one in self.coming if one.digest in digests)
        yield from dict.fromkeys((*super().named(digests), *coming))

    def heads(self, extractor: str) -> Iterator[Reference]:
        """Yield the heads that were, or are being, released against a manifest."""
        if not self._read:
            self._read.append(True)
            for one in self.coming:
                manifest = self.read(str(one.digest))
                for parent in trained_with(manifest) if manifest.kind == "head" else ():
                    self._heads.setdefault(parent, []).append(one)
        here = list(super().heads(extractor))
        gone = {(name, version) for name in self._by_name for version in self.references.withdrawn(name)}
        coming = (one for one in self._heads.get(extractor, ()) if (one.name, one.version) not in gone)
        yield from {str(one): one for one in (*here, *coming)}.values()
