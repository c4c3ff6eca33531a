"""The bytes of a move: what belongs to components, and bringing what the target lacks, several blobs at once.

A blob that is refused stops no other; a failing disk or network stops all.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import attrs

from compatkit.contracts.manifest import from_bytes, function_digest, sized_edges
from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.foundation.codec import MAX_BYTES, loads
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.places import ComponentBlob, Origin, Target
from compatkit.registry.copy.report import Item
from compatkit.registry.names import Reference
from compatkit.registry.reach import names


@attrs.define(eq=False)
class Closure:
    """Components with everything that their manifests refer to, and their parents; bytes are not kept in memory.

    Attributes:
        origin: Where they are.
        blobs: What belongs to the components, by digest.
    """

    origin: Origin
    blobs: dict[str, ComponentBlob] = attrs.field(init=False, factory=dict)
    _broken: dict[str, CompatkitError] = attrs.field(init=False, factory=dict)
    _asked: set[str] = attrs.field(init=False, factory=set)

    def enter(self, references: Iterable[Reference]) -> None:
        """Take in components; see ``take``."""
        wanted = [
            ComponentBlob(str(one.digest), "component", f"{one.name}@{one.version}") for one in references
        ]
        self._asked |= {one.digest for one in wanted}
        self.take(wanted)

    def take(self, ahead: list[ComponentBlob]) -> None:
        """Take in blobs and all that they reach, level by level: a remote fetches a level at once.

        Documents that cannot be read are remembered, and ``of`` raises.
        """
        while ahead:
            self.origin.expect(one.digest for one in ahead if one.how != "payload")
            ahead = [further for one in ahead for further in self._taken_in(one)]

    def of(self, digest: str) -> list[str]:
        """Return a component's own digest and all that belongs to it, manifests last.

        Raises:
            IntegrityError: A document that belongs to it is missing, damaged or not strict.
        """
        seen: dict[str, None] = {}
        ahead = [digest]
        while ahead:
            one = ahead.pop()
            if one not in self.blobs:
                raise self._broken[one]
            if one not in seen:
                seen[one] = None
                ahead.extend(self.blobs[one].further)
        return self.leaves_first(seen)

    def all_of(self, references: Iterable[Reference]) -> list[str]:
        """Return what belongs to some components, each digest once, manifests last."""
        return self.leaves_first(
            dict.fromkeys(part for one in references for part in self.of(str(one.digest)))
        )

    def leaves_first(self, digests: Iterable[str]) -> list[str]:
        """Return digests in their order, manifests last."""
        return sorted(digests, key=lambda one: self.blobs[one].how == "component")

    def components(self, digests: Iterable[str]) -> list[str]:
        """Return which digests are those of components."""
        return [one for one in digests if self.blobs[one].how == "component"]

    def functions(self, components: Iterable[str]) -> list[str]:
        """Return the function digests of components, sorted."""
        return sorted({str(self.blobs[one].function) for one in components})

    def parents(self) -> list[Reference]:
        """Return the names that the origin has for parents that were not asked for themselves."""
        lacking = {*self.components(self.blobs)} - self._asked
        return [one for digest in sorted(lacking) for one in self.origin.named(digest)]

    def _taken_in(self, one: ComponentBlob) -> list[ComponentBlob]:
        known = self.blobs.get(one.digest)
        if known is not None and (known.how == "component" or one.how != "component"):
            if one.payload is not None and known.payload is None:
                self.blobs[one.digest] = attrs.evolve(known, payload=one.payload)
            return []
        try:
            further = self._further(one)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            self._broken[one.digest] = error
            return []
        return further

    def _further(self, one: ComponentBlob) -> list[ComponentBlob]:
        """Keep a blob, and return what it refers to."""
        function = None
        further: list[ComponentBlob] = []
        if one.how == "component":
            data = self.origin.document(one.digest, one.whose)
            manifest = from_bytes(data, what=f"manifest of {one.whose} in {self.origin.where}")
            function = function_digest(manifest)
            ways = dict(names(data, one.digest, component=True))
            for edge, size in sized_edges(loads(data, what=one.whose)):
                how = ways.get(edge, "blob")
                if edge == manifest.payload.file.blob:
                    if not self._is_collected(edge, one.digest):
                        further.append(ComponentBlob(edge, "payload", one.whose, size, manifest.payload))
                else:
                    parent = f" (parent {edge[:19]})" if how == "component" else ""
                    further.append(ComponentBlob(edge, how, f"{one.whose}{parent}", size))
        elif one.how != "payload" and (self.origin.size(one.digest) or MAX_BYTES + 1) <= MAX_BYTES:
            data = self.origin.document(one.digest, one.whose)
            for edge, how in names(data, one.digest, component=False):
                if how != "named" and self.origin.size(edge) is not None:
                    further.append(ComponentBlob(edge, "blob", one.whose))
        digests = tuple(each.digest for each in further)
        self.blobs[one.digest] = attrs.evolve(one, function=function, further=digests)
        return further

    def _is_collected(self, payload: str, digest: str) -> bool:
        """Return whether weights are gone for a good reason: all versions that have them were withdrawn."""
        if self.origin.size(payload) is not None:
            return False
        versions = self.origin.named(digest)
        return bool(versions) and all(map(self.origin.is_withdrawn, versions))


class Stopped(Exception):
    """Another blob failed in a way that ends the whole."""


@attrs.define(eq=False)
class Transfer(Closure):
    """Components whose bytes are brought to a target.

    Attributes:
        target: Where they are copied to.
        choice: How many blobs move at once, whether one that is refused ends all, and who is shown progress.
        items: Blobs that were copied.
    """

    target: Target
    choice: Choice
    items: list[Item]
    _here: set[str] = attrs.field(init=False, factory=set)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _arrived: int = attrs.field(init=False, default=0)
    _total: int = attrs.field(init=False, default=0)
    _done: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Return which blobs the target lacks, or has with another size than expected."""
        wanted = {one: self.blobs[one].size for one in digests}
        there = self.target.sizes(list(wanted))
        return [one for one, size in wanted.items() if there[one] is None or size not in (None, there[one])]

    def item(self, digest: str) -> Item:
        """Return what a report says of a blob."""
        one = self.blobs[digest]
        size = one.size if one.size is not None else self.origin.size(digest)
        return Item(digest, size or 0, one.whose)

    def bring(self, digest: str) -> bool:
        """Copy one blob unless it is there; weights are compared with what their manifest promises, once.

        Returns:
            Whether it was copied.
        """
        if digest in self._here and self.target.holds(digest):
            return False
        copied = self.target.bring(self.origin, self.blobs[digest], self._count)
        self._here.add(digest)
        return copied

    def bring_all(self, digests: Sequence[str]) -> dict[str, CompatkitError]:
        """Bring blobs; return why some were refused.

        Raises:
            EnvironmentFailure: Disk or network failed; the others were stopped.
            CompatkitError: One was refused, and the choice is strict.
        """
        self._arrived, self._total = 0, sum(self.item(one).bytes for one in self.lacking(digests))
        failed: dict[str, CompatkitError] = {}
        with closing(self._each(digests)) as each:
            for place, (digest, came) in enumerate(each):
                if isinstance(came, CompatkitError):
                    failed[digest] = came
                elif came:
                    self.items.append(self.item(digest))
                self._done = place, len(digests)
                self._show()
        self.target.settle()
        return failed

    def _each(self, digests: Sequence[str]) -> Generator[tuple[str, bool | CompatkitError]]:
        """Yield each blob with whether it was copied, or why it was refused, in the order in which they end."""
        if self.choice.jobs == 1:
            yield from map(self._one, digests)
            return
        with ThreadPoolExecutor(self.choice.jobs) as pool:
            running = [pool.submit(self._one, one) for one in digests]
            try:
                for one in as_completed(running):
                    yield one.result()
            except BaseException:
                self._stop.set()
                for other in running:
                    other.cancel()
                raise

    def _one(self, digest: str) -> tuple[str, bool | CompatkitError]:
        try:
            return digest, self.bring(digest)
        except CompatkitError as error:
            if self.choice.strict or isinstance(error, EnvironmentFailure):
                raise
            return digest, error

    def _count(self, arrived: int) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._arrived += arrived
        self._show()

    def _show(self) -> None:
        self.choice.progress(*self._done, f"{self._arrived / 1e6:.1f} of {self._total / 1e6:.1f} MB")
