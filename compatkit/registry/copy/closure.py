"""What must be copied with a component: everything that its manifest refers to, and the manifests of its parents."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from compatkit.contracts.codec import MAX_BYTES, loads
from compatkit.contracts.manifest import Payload, from_bytes, function_digest, sized_edges
from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.registry.copy.places import Carrier, Source
from compatkit.registry.copy.transfer import promised
from compatkit.registry.names import Reference
from compatkit.registry.reach import How, names


@attrs.frozen
class Part:
    """A blob to be copied.

    Attributes:
        how: As what it is referred to.
        size: Bytes that it must have, if that is said.
        whose: Component that it belongs to, for messages.
        payload: What a manifest promises of it, if it is weights.
        function: Function digest, if it is a manifest.
        further: What it refers to in turn.
    """

    how: How
    size: int | None
    whose: str
    payload: Payload | None = None
    function: str | None = None
    further: tuple[str, ...] = ()


@attrs.define(eq=False)
class Closure:
    """Components of a source with all that belongs to them; their bytes are not kept in memory.

    Attributes:
        source: Where they are.
        carrier: Takes them to where they shall be too.
        parts: What belongs to them, by digest.
        broken: Why a document could not be read, by digest.
    """

    source: Source
    carrier: Carrier
    parts: dict[str, Part] = attrs.field(factory=dict)
    broken: dict[str, CompatkitError] = attrs.field(factory=dict)
    _asked: set[str] = attrs.field(factory=set)
    _here: set[str] = attrs.field(factory=set)

    def enter(self, references: Iterable[Reference]) -> None:
        """Take in components; documents that cannot be read are remembered, and ``of`` tells."""
        wanted = list(references)
        self._asked |= {str(one.digest) for one in wanted}
        self.take([(str(one.digest), Part("component", None, f"{one.name}@{one.version}")) for one in wanted])

    def take(self, ahead: list[tuple[str, Part]]) -> None:
        """Take in blobs and all that they reach, level by level: a source that is far fetches a level at once.

        Documents that cannot be read are remembered, and ``of`` tells.
        """
        while ahead:
            self.source.expect(digest for digest, part in ahead if part.how != "payload")
            ahead = [further for digest, part in ahead for further in self._taken_in(digest, part)]

    def _taken_in(self, digest: str, part: Part) -> list[tuple[str, Part]]:
        known = self.parts.get(digest)
        if known is not None and (known.how == "component" or part.how != "component"):
            if part.payload is not None and known.payload is None:
                self.parts[digest] = attrs.evolve(known, payload=part.payload)
            return []
        try:
            self.parts[digest], further = self._entered(digest, part)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self.broken[digest] = error
            return []
        return further

    def parents(self) -> list[Reference]:
        """Return the names that the source has for parents that were not asked for themselves."""
        lacking = {digest for digest, part in self.parts.items() if part.how == "component"} - self._asked
        return [one for digest in sorted(lacking) for one in self.source.named(digest)]

    def leaves_first(self, digests: Iterable[str]) -> list[str]:
        """Return digests in their order, manifests last."""
        return sorted(digests, key=lambda one: self.parts[one].how == "component")

    def of(self, digest: str) -> list[str]:
        """Return a component's own digest and all that belongs to it, manifests last.

        Raises:
            IntegrityError: A document that belongs to it is missing, damaged or not strict.
        """
        seen: dict[str, None] = {}
        ahead = [digest]
        while ahead:
            one = ahead.pop()
            if one not in self.parts:
                raise self.broken[one]
            if one not in seen:
                seen[one] = None
                ahead.extend(self.parts[one].further)
        return self.leaves_first(seen)

    def functions(self, components: Iterable[str]) -> list[str]:
        """Return the function digests of components, sorted."""
        return sorted({str(self.parts[one].function) for one in components})

    def bring(self, digest: str) -> bool:
        """Copy one blob, unless it is there; weights are compared with what their manifest promises, once.

        Returns:
            Whether it was copied.
        """
        if digest in self._here and self.carrier.holds(digest):
            return False
        part = self.parts[digest]
        examine = None if part.payload is None else promised(part.payload, part.whose)
        copied = self.carrier.bring(digest, part.size, part.whose, examine)
        self._here.add(digest)
        return copied

    def _entered(self, digest: str, part: Part) -> tuple[Part, list[tuple[str, Part]]]:
        if part.how == "payload":
            return part, []
        if part.how == "component":
            return self._component(digest, part)
        size = self.source.size(digest)
        if size is not None and size <= MAX_BYTES:
            data = self.source.document(digest, part.whose)
            further = [
                (one, Part("blob", None, part.whose))
                for one, how in names(data, digest, component=False)
                if how != "named" and self.source.size(one) is not None
            ]
            return attrs.evolve(part, further=tuple(one for one, _ in further)), further
        return part, []

    def _component(self, digest: str, part: Part) -> tuple[Part, list[tuple[str, Part]]]:
        data = self.source.document(digest, part.whose)
        manifest = from_bytes(data, what=f"manifest of {part.whose} in {self.source.where}")
        ways = dict(names(data, digest, component=True))
        further: list[tuple[str, Part]] = []
        for edge, size in sized_edges(loads(data, what=part.whose)):
            how, whose = ways.get(edge, "blob"), part.whose
            if edge == manifest.payload.file.blob:
                if self._is_collected(edge, digest):
                    continue
                further.append((edge, Part("payload", size, whose, manifest.payload)))
            else:
                whose = f"{whose} (parent {edge[:19]})" if how == "component" else whose
                further.append((edge, Part(how, size, whose)))
        return attrs.evolve(
            part, function=function_digest(manifest), further=tuple(one for one, _ in further)
        ), further

    def _is_collected(self, payload: str, digest: str) -> bool:
        """Tell whether weights are gone for a good reason: all versions that have them were withdrawn."""
        if self.source.size(payload) is not None:
            return False
        versions = self.source.named(digest)
        return bool(versions) and all(
            one.version is not None and self.source.withdrawn(one.name, one.version) for one in versions
        )
