"""The two sides of a matrix: which components are asked for, and which head gives the bound of an extractor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from compatkit.components.loading import pinned
from compatkit.components.matrices.where import Where
from compatkit.contracts.contract import HEADS
from compatkit.contracts.evidence import Part
from compatkit.contracts.manifest import TRAINED, Manifest, function_digest, trained_with
from compatkit.contracts.rules import protocol_of
from compatkit.errors import IntegrityError, NotFound, UsageError
from compatkit.registry.index.search import Found
from compatkit.registry.names import Reference, Version
from compatkit.registry.resolving import is_pattern
from compatkit.registry.store import Store


@attrs.frozen(eq=False)
class Component:
    """A row or column, of which no weight was read.

    Attributes:
        place: Name, version and digest.
        manifest: Its manifest.
        function: Function digest.
        trained_with: For heads: manifest digest of the extractor it was trained with.
        trained_function: For heads: function digest of that extractor, where it is known.
        anchors: Kind and digest of what it was trained against.
        reference: ``name@version``.
    """

    place: Reference
    manifest: Manifest
    function: str
    trained_with: str | None = None
    trained_function: str | None = None
    anchors: frozenset[tuple[str, str]] = frozenset()
    reference: str = attrs.field(
        init=False, default=attrs.Factory(lambda self: pinned(self.place), takes_self=True)
    )

    def is_own(self, extractor: Component) -> bool:
        """Tell whether this head was trained with an extractor, or with another release that does the same."""
        return self.trained_with == str(extractor.place.digest) or self.trained_function == extractor.function

    def described(self) -> Part:
        """Return it as a row or column of a report."""
        from compatkit.reports.contracts import summary

        manifest = self.manifest
        return Part(self.reference, str(self.place.digest), self.function, manifest.kind, summary(manifest))


@attrs.frozen(eq=False)
class Sides:
    """Finds components in a registry; reads each manifest once."""

    store: Store
    _functions: dict[str, str | None] = attrs.field(init=False, factory=dict)

    def choose(self, wanted: str | Sequence[str], kind: str, where: Where) -> list[Component]:
        """Return what patterns mean and filters let through, each component once.

        Args:
            wanted: Pattern, or patterns; those of several names pass over what is of another kind. A shared head that
                solves a task, as no other does it, is taken as a head where it is named.
            kind: ``"extractor"`` or ``"head"``.
            where: Filters.

        Raises:
            NotFound: A pattern matches nothing of this kind, or nothing fits the filters.
            UsageError: A reference that is no pattern is of another kind.
        """
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        found: dict[str, Component] = {}
        for pattern in patterns:
            others: list[str] = []
            for place in self.store.select(pattern):
                if str(place.digest) in found:
                    continue
                component = self.component(place)
                # A pattern over names would bring in heads that tell rotations apart.
                kinds = (kind,) if kind != "head" or is_pattern(pattern) else HEADS
                if component.manifest.kind in kinds:
                    found[str(place.digest)] = component
                elif not is_pattern(pattern):
                    raise UsageError(
                        f"{component.reference} is of kind {component.manifest.kind}, where {kind} is expected.",
                        subject=pattern,
                    )
                else:
                    others.append(component.manifest.kind)
            if others and not found:
                raise NotFound(
                    f"{pattern!r} matches {len(others)} components, none of kind {kind}: they are of kind "
                    f"{' and '.join(sorted(set(others)))}.",
                    subject=pattern,
                )
        return self._fitting(found, kind, where)

    def component(self, place: Reference) -> Component:
        """Return one component.

        Args:
            place: With name, version and digest.

        Raises:
            IntegrityError: Its manifest is missing or damaged.
        """
        manifest = self.store.manifest(place)
        function = self._functions[str(place.digest)] = function_digest(manifest)
        trained = next(trained_with(manifest), None)
        anchors = frozenset((one.kind, one.digest) for one in protocol_of(manifest).anchors)
        return Component(place, manifest, function, trained, self._function(trained), anchors)

    def bounds(self, extractors: Sequence[Component], heads: Sequence[Component]) -> Mapping[str, Component]:
        """Return the head that gives the bound of each extractor, by its reference, where there is one.

        The first of the columns that was trained with it, else one of the registry: beside it by name, or else the
        first name, the lowest version. Withdrawn ones do not count.
        """
        found: dict[str, Component] = {}
        for extractor in extractors:
            own = next((one for one in heads if one.is_own(extractor)), None) or self._elsewhere(extractor)
            if own is not None:
                found[extractor.reference] = own
        return found

    def _elsewhere(self, extractor: Component) -> Component | None:
        digests = {str(extractor.place.digest)}
        for version in self.store.references.versions(extractor.place.name):
            place = self.store.references.digest(extractor.place.name, version)
            if place is not None and self._function(place) == extractor.function:
                digests.add(place)
        beside = f"{extractor.place.name.removesuffix('.extractor')}.head"
        hits = [
            one
            for digest in sorted(digests)
            for one in self.store.index.search(parent=digest, kind="head")
            if (TRAINED, digest) in one.parents
        ]
        for hit in sorted(hits, key=lambda one: (one.name != beside, one.name, Version.parse(one.version))):
            own = self._known(hit)
            if own is not None:
                return own
        return None

    def _known(self, hit: Found) -> Component | None:
        """Return a component that the index found, None where it is gone or damaged."""
        try:
            return self.component(self.store.resolve(f"{hit.name}@{hit.version}"))
        except (NotFound, IntegrityError):
            return None

    def _function(self, digest: str | None) -> str | None:
        if digest is not None and digest not in self._functions:
            self._functions[digest] = self.store.function_of(digest)
        return self._functions[digest] if digest is not None else None

    def _fitting(self, found: Mapping[str, Component], kind: str, where: Where) -> list[Component]:
        query = where.query(kind)
        if query is None:
            return list(found.values())
        hits = {(one.name, one.version) for one in self.store.index.search(query)}
        fitting = [one for one in found.values() if (one.place.name, str(one.place.version)) in hits]
        if not fitting:
            told = ", ".join(where.texts)
            raise NotFound(
                f"none of the {len(found)} components of kind {kind} that match fits {told}; `compatkit search "
                f"--kind {kind}` shows what there is.",
                subject=where.texts,
            )
        return fitting
