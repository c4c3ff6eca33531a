"""What was moved, or would be: for people, for programs, and for the error that lists refusals."""

from __future__ import annotations

from typing import Any

import attrs

from compatkit.errors import CompatkitError, Incomplete
from compatkit.foundation.display import Shown
from compatkit.registry.names import Reference

SHOWN = 8
"""Refusals that a message lists."""


class SignatureWarning(UserWarning):
    """A damaged signature was left behind."""


@attrs.frozen
class Refusal:
    """One thing that did not come.

    Attributes:
        what: A reference ``name@version``, or the path of a result or signature.
        error: Why.
    """

    what: str
    error: CompatkitError

    def __str__(self) -> str:
        said = str(self.error)
        return said if said.startswith(self.what) else f"{self.what}: {said}"


@attrs.frozen
class Withdrawal:
    """A version that is withdrawn on the other side, and why."""

    reference: Reference
    reason: str


@attrs.frozen
class Item:
    """One blob that was moved, or would be.

    Attributes:
        digest: Of its bytes.
        bytes: Their number.
        whose: Component that it belongs to.
    """

    digest: str
    bytes: int
    whose: str


@attrs.define(repr=False)
class Moved(Shown):
    """What came of moving components.

    Attributes:
        made: Versions that are new there, parents included.
        there: Versions that were there already.
        unnamed: Parents without a name there: their number belongs to other bytes, or they were not accepted. They
            are kept, and found by digest.
        refused: What did not come, and why.
        withdrawn: Versions that are withdrawn on the other side, reported when that is found out.
        apart: Aliases that both sides moved, and that stay as they are.
        items: Blobs that were moved.
        results: Number of measured results that are new there.
        signatures: Number of signatures that are new there.
        aliases: Aliases that moved, ``name:alias``.
        planned: Whether nothing was done, and this is what would be.
    """

    made: list[Reference] = attrs.field(factory=list)
    there: list[Reference] = attrs.field(factory=list)
    unnamed: list[Reference] = attrs.field(factory=list)
    refused: list[Refusal] = attrs.field(factory=list)
    withdrawn: list[Withdrawal] = attrs.field(factory=list)
    apart: list[str] = attrs.field(factory=list)
    items: list[Item] = attrs.field(factory=list)
    results: int = 0
    signatures: int = 0
    aliases: list[str] = attrs.field(factory=list)
    planned: bool = False

    def __str__(self) -> str:
        first = f"{len(self.made)} new, {len(self.there)} there already, {len(self.refused)} refused"
        lines = [
            f"{first}; {self.blobs:,} blobs, {self.bytes:,} bytes{', planned only' if self.planned else ''}"
        ]
        return "\n".join(
            [*lines, *(f"new      {one}" for one in self.made), *(f"refused  {one}" for one in self.refused)]
        )

    @property
    def blobs(self) -> int:
        """Number of blobs."""
        return len(self.items)

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return sum(one.bytes for one in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        lists = {
            name: [{"reference": str(one), "digest": one.digest} for one in getattr(self, name)]
            for name in ("made", "there", "unnamed")
        }
        refused = [
            {"what": one.what, "code": one.error.code, "message": str(one.error)} for one in self.refused
        ]
        withdrawn = [{"reference": str(one.reference), "reason": one.reason} for one in self.withdrawn]
        counts = {name: getattr(self, name) for name in ("blobs", "bytes", "results", "signatures")}
        others = {name: getattr(self, name) for name in ("aliases", "apart", "planned")}
        items = [attrs.asdict(one) for one in self.items]
        return {**lists, "refused": refused, "withdrawn": withdrawn, **counts, **others, "objects": items}

    def check(self) -> Moved:
        """Return this, if nothing was refused.

        Raises:
            Incomplete: Something was; lists it, with ``errors`` and this as ``subject``.
        """
        if not self.refused:
            return self
        shown = [str(one) for one in self.refused[:SHOWN]]
        more = f" And {len(self.refused) - SHOWN} more." if len(self.refused) > SHOWN else ""
        rest = (
            "would come" if self.planned else f"came: {len(self.made)} new, {len(self.there)} there already"
        )
        raise Incomplete(
            f"{len(self.refused)} refused, the rest {rest}. {' '.join(shown)}{more}",
            errors=tuple(one.error for one in self.refused),
            subject=self,
        )
