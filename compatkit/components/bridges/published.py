"""Published bridges of a registry with their judgments, and new bridges for many pairs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.ladder import BEST, BEST_OF, BRIDGED, LABELED, chosen_rungs
from compatkit.components.loading import load
from compatkit.contracts.check import check
from compatkit.errors import DataError, IncompatibleError, UsageError, type_of
from compatkit.foundation.arguments import checks_arguments
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.data.dataset import Split
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.conditions import Progress


@attrs.frozen
class BridgeRecord:
    """A published bridge.

    Attributes:
        reference: ``name@version`` of the recombination.
        rung: Its rung.
        agreement: Share of held-out images with the prediction of the head's own network.
        held_out: Number of held-out images.
        says: ``"fit"``, ``"doubtful"`` or ``"no fit"``.
    """

    reference: str
    rung: str
    agreement: float
    held_out: int
    says: str

    def __str__(self) -> str:
        return (
            f"{self.reference} bridges them through {self.rung}: agreement {self.agreement:.3f} on "
            f"{self.held_out:,} images held out, {self.says}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


def recorded(store: Store, extractor: Reference, head: Reference) -> Iterator[BridgeRecord]:
    """Yield the bridges between two parts that are not withdrawn, by name and ascending version.

    Args:
        store: Store of the registry.
        extractor: Resolved reference of the extractor.
        head: Resolved reference of the original head.
    """
    for reference in store.index.search(kind="recombination", parent=str(extractor.digest)):
        judged = store.manifest(str(reference)).training.get("bridge")
        if isinstance(judged, dict) and judged.get(BRIDGED) == head.digest and "agreement" in judged:
            values = {name: judged[name] for name in ("rung", "agreement", "held_out", "says")}
            yield BridgeRecord(str(reference), **values)


@checks_arguments
@attrs.frozen(eq=False)
class Bridges:
    """Bridges between the parts of a registry; ``Registry.bridge`` builds one.

    Attributes:
        store: Store of the registry.
    """

    store: Store

    def of(self, extractor: str, head: str) -> list[BridgeRecord]:
        """Return the published bridges between two parts with their judgments; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of the original head; a refitted head counts as a bridge of its origin.

        Raises:
            NotFound: A reference does not resolve.
        """
        return list(recorded(self.store, self.store.resolve(extractor), self.store.resolve(head)))

    def between(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Mapping[str, Split],
        rung: str,
        *,
        tests: Mapping[str, Split] | None = None,
        max_images: int = 1000,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> dict[tuple[str, str], Bridge]:
        """Bridge every pair of parts that were not trained together, for ``matrix(..., bridges=...)``.

        Pairs whose bridge cannot be built are left out with a warning.

        Args:
            extractors: Pattern, or patterns.
            heads: Pattern, or patterns.
            data: Images of each extractor's domain, by name or pinned reference; labels are ignored.
            rung: A rung that inserts an adapter: ``"permutation"``, ``"procrustes"``, ``"ridge"``,
                ``"ridge-procrustes"``, ``"ridge3x3"``, ``"stitch"`` or a plugin's; or ``"best"``, which tries all of
                these in closed form and takes the one with the highest agreement.
            tests: Labeled images to measure every rung on, with the same keys.
            max_images: As for ``bridge``.
            seed: As for ``bridge``.
            progress: Called with pairs done, pairs in all, and the pair.

        Returns:
            Bridges by pinned references of extractor and head.

        Raises:
            UsageError: The rung is unknown, changes the head or needs labels.
            DataError: An extractor has no images, or too few.
        """
        from compatkit.components.bridges.building import bridge_pair
        from compatkit.components.bridges.inputs import BridgeRequest

        if not isinstance(data, Mapping):
            raise UsageError(f"data= expects a mapping from extractor name to images, got {type_of(data)}.")
        if rung in LABELED:
            raise UsageError(
                f"The rung {rung} needs labels, which are not used here. Use a rung that inserts an adapter without "
                f"them, such as ridge, or {BEST}.",
                subject=rung,
            )
        rungs = BEST_OF if rung == BEST else chosen_rungs([rung], False)
        lefts, rights = self.store.select(extractors, "extractor"), self.store.select(heads, "head")
        bridges: dict[tuple[str, str], Bridge] = {}
        for number, (left, right) in enumerate(product(lefts, rights)):
            if progress is not None:
                progress(number, len(lefts) * len(rights), f"{left.name} + {right.name}")
            extractor, head = load(self.store, left), load(self.store, right)
            if head.is_own(extractor):
                continue
            images = _images_of(extractor, data)
            if images is None:
                raise DataError(
                    f"{left.name} has no images to fit a bridge on; images were given for {', '.join(data)}."
                )
            test, notes = _tests_of(head, _images_of(extractor, tests or {}))
            request = BridgeRequest(
                data=images, test=test, rungs=rungs, until=None, max_images=max_images, seed=seed
            )
            report = check(extractor.manifest, head.manifest)
            try:
                bridge = bridge_pair(self.store, extractor, head, report, request)
            except (IncompatibleError, DataError) as error:
                if (
                    isinstance(error, DataError) and error.subject is None
                ):  # the images are unsuitable, not a part
                    raise
                warnings.warn(
                    f"{extractor.reference} with {head.reference} has no bridge by {rung}: {error}",
                    stacklevel=3,
                )
                continue
            if rung != BEST and not bridge.inserts:
                raise UsageError(
                    f"The rung {rung} inserts no adapter between unchanged parts. Use one that does, or {BEST} for the "
                    "one in closed form with the highest agreement.",
                    subject=rung,
                )
            bridges[extractor.reference, head.reference] = attrs.evolve(bridge, notes=(*bridge.notes, *notes))
        return bridges


def _images_of(extractor: Component, images: Mapping[str, Split]) -> Split | None:
    return images.get(extractor.reference, images.get(extractor.name))


def _tests_of(head: Component, test: Split | None) -> tuple[Split | None, tuple[str, ...]]:
    """Return the test images if the head knows one of their classes; else None and a note."""
    from compatkit.components.bridges.judging import has_known_class

    if test is None or has_known_class(test, head):
        return test, ()
    return None, (
        f"No accuracy is measured: {test.name} holds no image of a class that {head.reference} knows.",
    )
