"""Published bridges of a registry with their judgements, and new bridges for many pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.ladder import BRIDGED
from compatkit.foundation.arguments import checks_arguments
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.data.dataset import Split
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
        store: The registry's files.
        extractor: Resolved.
        head: Resolved.
    """
    for reference in store.index.search(kind="recombination", parent=str(extractor.digest)):
        judged = store.manifest(str(reference)).training.get("bridge")
        if isinstance(judged, dict) and judged.get(BRIDGED) == head.digest and "agreement" in judged:
            facts = {name: judged[name] for name in ("rung", "agreement", "held_out", "says")}
            yield BridgeRecord(str(reference), **facts)


@checks_arguments
@attrs.frozen(eq=False)
class Bridges:
    """Bridges between the parts of a registry; ``Registry.bridge`` builds one.

    Attributes:
        store: The files.
    """

    store: Store

    def of(self, extractor: str, head: str) -> list[BridgeRecord]:
        """Return the published bridges between two parts with their judgements; reads no weights.

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
            rung: A rung with an adapter: ``"permutation"``, ``"procrustes"``, ``"ridge"``, ``"ridge-procrustes"``,
                ``"ridge3x3"`` or ``"stitch"``; or ``"best"``, which tries all of these in closed form and takes the
                one with the highest agreement.
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
        from compatkit.components.bridges.building import between

        lefts, rights = (
            self.store.select(extractors, "extractor"),
            self.store.select(heads, "head"),
        )
        return between(
            self.store,
            lefts,
            rights,
            data,
            rung,
            tests=tests or {},
            max_images=max_images,
            seed=seed,
            progress=progress,
        )
