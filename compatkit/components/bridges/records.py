"""Records of published bridges, as the manifests of their recombinations hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from compatkit.registry.names import Reference
from compatkit.registry.store import Store

BRIDGED = "head"
"""Key of a judgment for the digest of the original head, which a refitted one replaces."""


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
