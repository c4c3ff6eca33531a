"""A registry as one catalogue shows it: all versions, their relatives by digest, and the kept results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from compatkit.components.catalogue.results import KeptResults, kept_results
from compatkit.contracts.manifest import function_digest
from compatkit.errors import CompatkitError
from compatkit.registry.index.search import SearchResult
from compatkit.registry.names import Version
from compatkit.registry.publications import PublicationRecord, publication
from compatkit.registry.store import Store

AUXILIARY = "auxiliary_head"
"""Kind of an anchor whose sharing promises that parts fit."""


@attrs.frozen
class Facts:
    """What a catalogue needs of every manifest.

    Attributes:
        function: Function digest; empty for a damaged manifest.
        shared: Digests of the auxiliary heads that it was trained against.
    """

    function: str = ""
    shared: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class Readings:
    """What was read of files that never change; shared by the snapshots of one registry.

    Attributes:
        store: The registry.
    """

    store: Store
    _facts: dict[str, Facts] = attrs.field(init=False, factory=dict)
    _published: dict[tuple[str, str, str], PublicationRecord] = attrs.field(init=False, factory=dict)

    def facts(self, digest: str) -> Facts:
        """Return the facts of a manifest."""
        known = self._facts.get(digest)
        if known is None:
            try:
                manifest = self.store.manifest(digest)
            except CompatkitError:
                return Facts()  # a damaged one may be repaired
            anchors = manifest.contract.protocol.anchors
            shared = tuple(anchor.digest for anchor in anchors if anchor.kind == AUXILIARY)
            known = self._facts[digest] = Facts(function_digest(manifest), shared)
        return known

    def published(self, version: SearchResult) -> PublicationRecord | None:
        """Return who published a version and when; None if that is not recorded."""
        key = version.name, version.version, version.digest
        if key not in self._published:
            try:
                record = publication(self.store.root, version.name, Version.parse(version.version))
            except CompatkitError:
                return None
            if record is None or record.digest != version.digest:
                return None
            self._published[key] = record
        return self._published[key]


@attrs.frozen(eq=False)
class Snapshot:
    """All versions of a registry at one time.

    Attributes:
        store: The registry.
        readings: What was read of its files.
        versions: Versions that can be read by name, in ascending order, with withdrawn ones.
        damaged: Names without a version that can be read, sorted.
        places: Versions by manifest digest.
        children: Relation and child by the digest of the parent.
        sharers: Versions by digest of an anchor.
    """

    store: Store
    readings: Readings
    versions: Mapping[str, Sequence[SearchResult]]
    damaged: Sequence[str]
    places: Mapping[str, Sequence[SearchResult]]
    children: Mapping[str, Sequence[tuple[str, SearchResult]]]
    sharers: Mapping[str, Sequence[SearchResult]]

    @classmethod
    def of(cls, readings: Readings) -> Snapshot:
        """Read a registry.

        Args:
            readings: What was read of it before.

        Raises:
            EnvironmentFailure: Its files cannot be read, or the index cannot be written.
        """
        store = readings.store
        versions, places = (
            defaultdict[str, list[SearchResult]](list),
            defaultdict[str, list[SearchResult]](list),
        )
        children = defaultdict[str, list[tuple[str, SearchResult]]](list)
        sharers = defaultdict[str, list[SearchResult]](list)
        for version in store.index.search(withdrawn=True):
            versions[version.name].append(version)
            places[version.digest].append(version)
            if len(places[version.digest]) == 1:  # further names of a manifest have the same relatives
                for relation, parent in version.parents:
                    children[parent].append((relation, version))
                for anchor in version.anchors:
                    sharers[anchor].append(version)
        damaged = [name for name in store.names() if name not in versions]
        return cls(store, readings, dict(versions), damaged, dict(places), dict(children), dict(sharers))

    def shown(self, name: str) -> SearchResult:
        """Return the version that stands for a name: the latest that is not withdrawn, or else the latest."""
        every = self.versions[name]
        return next((version for version in reversed(every) if not version.withdrawn), every[-1])

    def place(self, digest: str) -> SearchResult | None:
        """Return the version that stands for a manifest: the first name that is not withdrawn; None without one."""
        places = self.places.get(digest, ())
        return next((version for version in places if not version.withdrawn), places[0] if places else None)

    @cached_property
    def by_function(self) -> Mapping[str, Sequence[SearchResult]]:
        """Versions by function digest."""
        grouped = defaultdict[str, list[SearchResult]](list)
        for digest, places in self.places.items():
            if function := self.readings.facts(digest).function:
                grouped[function] += places
        return grouped

    def of_function(self, function: str) -> SearchResult | None:
        """Return the version that stands for a function: the last that is not withdrawn; None without one."""
        every = self.by_function.get(function, ())
        return next((one for one in reversed(every) if not one.withdrawn), every[-1] if every else None)

    @cached_property
    def results(self) -> KeptResults:
        """Kept results of pairs."""
        return kept_results(self.store, self.by_function)

    @cached_property
    def shared(self) -> Mapping[str, set[str]]:
        """Kinds of the components that were trained against each auxiliary head."""
        kinds = defaultdict[str, set[str]](set)
        for digest, places in self.places.items():
            for anchor in self.readings.facts(digest).shared:
                kinds[anchor].add(str(places[0].kind))
        return kinds

    @cached_property
    def newest(self) -> str:
        """Time of the newest publication that is recorded, ISO 8601; empty without one."""
        records = (self.readings.published(self.shown(name)) for name in self.versions)
        return max((record.time for record in records if record is not None), default="")
