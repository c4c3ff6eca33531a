"""What must be copied with a component: everything that its manifest refers to, and the manifests of its parents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry.canonical import MAX_BYTES, loads
from compatkit.registry.copying.transfer import Transfer, promised
from compatkit.registry.documents import How, names
from compatkit.registry.manifest import Payload, from_bytes, function_digest, sized_edges
from compatkit.registry.names import Reference

if TYPE_CHECKING:
    from compatkit.registry.store import Store


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
    """Components of another registry with all that belongs to them; their bytes are not kept in memory."""

    source: Store
    transfer: Transfer
    parts: dict[str, Part] = attrs.field(factory=dict)
    _asked: set[str] = attrs.field(factory=set)
    _here: set[str] = attrs.field(factory=set)
    _named: dict[str, list[Reference]] | None = None

    def document(self, digest: str, whose: str) -> list[str]:
        """Take in a blob that is no component, and return it with all that belongs to it."""
        self._walk(digest, Part("blob", None, whose))
        return self.of(digest)

    def add(self, reference: Reference) -> None:
        """Take in a component and what belongs to it.

        Raises:
            IntegrityError: A document is missing, damaged or not strict.
        """
        self._asked.add(str(reference.digest))
        self._walk(str(reference.digest), Part("component", None, f"{reference.name}@{reference.version}"))

    def _walk(self, digest: str, part: Part) -> None:
        ahead = [(digest, part)]
        while ahead:
            digest, part = ahead.pop()
            known = self.parts.get(digest)
            if known is not None and (known.how == "component" or part.how != "component"):
                if part.payload is not None and known.payload is None:
                    self.parts[digest] = attrs.evolve(known, payload=part.payload)
                continue
            part, further = self._entered(digest, part)
            self.parts[digest] = part
            ahead.extend(further)

    def parents(self) -> list[Reference]:
        """Return the names that the source has for parents that were not asked for themselves."""
        lacking = {digest for digest, part in self.parts.items() if part.how == "component"} - self._asked
        return [one for digest in sorted(lacking) for one in self._names_of(digest)]

    def leaves_first(self) -> list[str]:
        """Return all digests, manifests last."""
        return sorted(self.parts, key=lambda digest: self.parts[digest].how == "component")

    def of(self, digest: str) -> list[str]:
        """Return a component's own digest and all that belongs to it, manifests last."""
        seen: dict[str, None] = {}
        ahead = [digest]
        while ahead:
            one = ahead.pop()
            if one not in seen:
                seen[one] = None
                ahead.extend(self.parts[one].further)
        return sorted(seen, key=lambda one: self.parts[one].how == "component")

    def functions(self) -> list[str]:
        """Return the function digests of all components, sorted."""
        return sorted({part.function for part in self.parts.values() if part.function is not None})

    def bring(self, digest: str) -> None:
        """Copy one blob, unless it is here; weights are compared with what their manifest promises, once."""
        if digest in self._here and self.transfer.target.hold(digest):
            return
        part = self.parts[digest]
        examine = None if part.payload is None else promised(part.payload, part.whose)
        self.transfer.bring(digest, part.size, part.whose, examine)
        self._here.add(digest)

    def _entered(self, digest: str, part: Part) -> tuple[Part, list[tuple[str, Part]]]:
        if part.how == "payload":
            return part, []
        if part.how == "component":
            return self._component(digest, part)
        size = self.transfer.size(digest)
        if size is not None and size <= MAX_BYTES:
            data = self.transfer.document(digest, part.whose)
            further = [
                (one, Part("blob", None, part.whose))
                for one, how in names(data, digest, component=False)
                if how != "named" and self.transfer.size(one) is not None
            ]
            return attrs.evolve(part, further=tuple(one for one, _ in further)), further
        return part, []

    def _component(self, digest: str, part: Part) -> tuple[Part, list[tuple[str, Part]]]:
        data = self.transfer.document(digest, part.whose)
        manifest = from_bytes(data, what=f"manifest of {part.whose} in {self.source.root}")
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
        if self.transfer.size(payload) is not None:
            return False
        versions = self._names_of(digest)
        return bool(versions) and all(
            one.version is not None and self.source.references.tombstone(one.name, one.version) is not None
            for one in versions
        )

    def _names_of(self, digest: str) -> list[Reference]:
        if self._named is None:
            self._named = {}
            for name, version in self.source.references.each():
                try:
                    found = self.source.references.digest(name, version)
                except IntegrityError:
                    continue  # whoever asks for this version is told; here it names nothing
                if found is not None:
                    self._named.setdefault(found, []).append(Reference(name, version, digest=found))
        return self._named.get(digest, [])
