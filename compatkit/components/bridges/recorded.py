"""Published bridges between two parts: what their recombinations record of how they were judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from compatkit.registry.names import Reference
from compatkit.registry.store import Store

HEAD = "head"
"""Under which a judgement names the head that was bridged, by digest: a refitted one stands in its place."""


@attrs.frozen
class BridgeRecord:
    """A published bridge.

    Attributes:
        reference: ``name@version`` of the recombination.
        rung: By which rung it was made.
        agreement: Share of held-out images of which it says what the head's own network says.
        held_out: How many there were.
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
    """Yield the bridges between two parts that were not withdrawn, by name and rising version."""
    for one in store.index.search(kind="recombination", parent=str(extractor.digest)):
        judged = store.manifest(str(one)).training.get("bridge")
        if isinstance(judged, dict) and judged.get(HEAD) == head.digest and "agreement" in judged:
            facts = {name: judged[name] for name in ("rung", "agreement", "held_out", "says")}
            yield BridgeRecord(str(one), **facts)
