"""Put a recombination together from its parts again, each found by its digest and held against what is stated of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.composition import ADAPTER, EXTRACTOR, HEAD, Composition, Facts, Pin
from compatkit.components.loading import load, pinned
from compatkit.components.pairs import check_pair
from compatkit.components.seams import load_adapter
from compatkit.contracts.batchnorm import estimates
from compatkit.contracts.check import Report, check
from compatkit.contracts.contract import EXTRACTORS, HEADS
from compatkit.contracts.stitch import after
from compatkit.errors import CutError, IntegrityError, UsageError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.recombination import Estimate, Recombination
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference, Version
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.contracts.contract import Blueprint, Port
    from compatkit.evaluation.matrix import LoadedPart

KINDS = {EXTRACTOR: EXTRACTORS, ADAPTER: ("adapter",), HEAD: HEADS}
"""What a part of each relation must be."""
SHOWN = 3
"""Names of tensors that a message lists."""


class WithdrawnWarning(UserWarning):
    """A part of a recombination was withdrawn since; it is loaded all the same, by its digest."""


@attrs.frozen(eq=False)
class Reassembly:
    """One recombination that is put together again.

    Attributes:
        store: Holds the parts.
        whose: Named in messages and warnings.
        made: What it is made of.
        verify: As for loading any component.
    """

    store: Store
    whose: str
    made: Composition
    verify: Verify = "auto"

    def put_together(
        self, adapters: Sequence[Blueprint], state: Mapping[str, Tensor], estimated: Mapping[str, Any]
    ) -> Recombination:
        """Return the recombination.

        Args:
            adapters: Blueprints of all adapters, in order.
            state: Tensors that cannot be had from the parts, and no others.
            estimated: What the estimated statistics came from.

        Raises:
            IntegrityError: A part is missing or damaged, of another kind or function than stated, or the tensors are
                not those that the parts lack.
            IncompatibleError: The parts cannot be wired; carries the report.
        """
        places = {one: self._reference(one) for one in self.made.pins}
        left, right = self._part(self.made.extractor, places), self._part(self.made.head, places)
        report = self._report(left, right, places[self.made.extractor], places[self.made.head])
        try:
            between, taken = self._adapters(adapters, state, left, places)
            statistics = {name: one for name, one in state.items() if name not in taken}
            estimate = Estimate(statistics, estimated) if estimates(self.made.policy) else None
            if statistics and estimate is None:
                raise UsageError(f"nothing takes the tensors {', '.join(sorted(statistics)[:SHOWN])}.")
            policy = self.made.policy
            return Recombination.of(
                left, right, report, normalisation=policy, statistics=estimate, adapters=between
            )
        except (CutError, UsageError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise IntegrityError(
                f"{self.whose} cannot be put together: {error}", subject=self.whose
            ) from error

    def _reference(self, pin: Pin) -> Reference:
        """Return a part's name and version where it has one here, the latest if several; warn of a withdrawn one."""
        found = self.store.index.search(digest=pin.digest, withdrawn=True)
        alive = [one for one in found if not one.withdrawn]
        if not found:
            return Reference(self.whose.partition("@")[0], digest=pin.digest)
        chosen = (alive or found)[-1]
        if not alive:
            tombstone = self.store.tombstone(chosen.name, chosen.version)
            why = f": {tombstone.reason}" if tombstone is not None else ""
            warnings.warn(
                f"{self.whose}: its {pin.relation} {chosen} was withdrawn{why}. It is used all the same, by its "
                "digest; put the recombination together anew without it where you can.",
                WithdrawnWarning,
                stacklevel=5,
            )
        return Reference(chosen.name, Version.parse(chosen.version), digest=pin.digest)

    def _part(self, pin: Pin, places: Mapping[Pin, Reference]) -> LoadedPart:
        with self._naming(pin, places[pin]):
            part = load(
                self.store, places[pin], verify=self.verify, admitted=True
            )  # the whole is signed, or not
        self._check(pin, part.reference, part.kind, part.function)
        return part

    def _adapters(
        self,
        blueprints: Sequence[Blueprint],
        state: Mapping[str, Tensor],
        extractor: LoadedPart,
        places: Mapping[Pin, Reference],
    ) -> tuple[list[Adapter], set[str]]:
        """Return the adapters, and the names of the tensors that those took which are no components."""
        ports: tuple[Port, ...] = extractor.manifest.contract.structural.outputs
        data = attrs.evolve(extractor.manifest.contract.data, labels=None)
        made: list[Adapter] = []
        taken: set[str] = set()
        for place, blueprint in enumerate(blueprints):
            gives = after(ports, blueprint)
            pin, facts = self.made.adapters.get(place), self.made.facts[place]
            if pin is not None:
                made.append(self._pinned(pin, blueprint, places[pin]))
            else:
                prefix = f"adapters.{place}."
                own = {name[len(prefix) :]: one for name, one in state.items() if name.startswith(prefix)}
                taken |= {prefix + name for name in own}
                known = facts or Facts()
                module = build_adapter(blueprint, own)
                made.append(Adapter(blueprint, module, ports, gives, data, known.parents, known.training))
            ports = gives
        return made, taken

    def _pinned(self, pin: Pin, stated: Blueprint, place: Reference) -> Adapter:
        with self._naming(pin, place):
            adapter = load_adapter(self.store, place, verify=self.verify, admitted=True)
        self._check(pin, str(adapter.reference), "adapter", adapter.function)
        if adapter.blueprint != stated:
            raise UsageError(f"its contract states another adapter than {adapter.reference}.")
        return adapter

    def _check(self, pin: Pin, reference: str, kind: str, function: str) -> None:
        kinds = " or ".join(KINDS[pin.relation])
        if kind not in KINDS[pin.relation]:
            raise IntegrityError(
                f"{self.whose}: its {pin.relation} {reference} is of kind {kind}, where {kinds} is expected.",
                subject=pin.digest,
            )
        if function != pin.function:
            raise IntegrityError(
                f"{self.whose}: its {pin.relation} {reference} is the function {function}, where {pin.function} is "
                "stated.",
                subject=pin.digest,
            )

    @contextmanager
    def _naming(self, pin: Pin, place: Reference) -> Iterator[None]:
        """Let an error say which part it is about, and what to do where that is missing."""
        try:
            yield
        except IntegrityError as error:
            raise type(error)(
                f"{self.whose}: its {pin.relation} {pinned(place)} cannot be loaded: {error} A recombination needs all "
                "of its parts: import it again from a registry that holds them.",
                subject=error.subject,
            ) from error

    def _report(self, left: LoadedPart, right: LoadedPart, extractor: Reference, head: Reference) -> Report:
        """Return what a check says of the two today; without what was measured, where one has no name here."""
        if extractor.version is None or head.version is None:
            report = check(left.manifest, right.manifest, own=right.is_own(left))
            return attrs.evolve(report, extractor=left.reference, head=right.reference)
        return check_pair(self.store, extractor, head)
