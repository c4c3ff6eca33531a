"""Report of a transfer as text, as JSON, and as the error that lists refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, Incomplete
from compatkit.foundation.display import Shown
from compatkit.registry.names import Reference

SHOWN = 8
"""Number of refusals that a message lists."""


class SignatureWarning(UserWarning):
    """A damaged signature was not copied."""


@attrs.frozen
class Refusal:
    """Something that was not copied.

    Attributes:
        what: A reference ``name@version``, or the path of a result or signature.
        error: The reason.
    """

    what: str
    error: CompatkitError

    def __str__(self) -> str:
        message = str(self.error)
        return message if message.startswith(self.what) else f"{self.what}: {message}"


@contextmanager
def refusing(handle: Callable[[CompatkitError], object]) -> Iterator[None]:
    """Pass an error to ``handle`` and continue after the block, unless disk or network failed."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except CompatkitError as error:
        handle(error)


@attrs.frozen
class Withdrawal:
    """A version that was withdrawn on one side only, and the reason."""

    reference: Reference
    reason: str


@attrs.frozen
class Item:
    """A blob that was copied, or would be.

    Attributes:
        digest: Digest of the blob.
        bytes: Size.
        owner: Component that it belongs to.
    """

    digest: str
    bytes: int
    owner: str


@attrs.define(repr=False)
class Moved(Shown):
    """Result of a transfer.

    Attributes:
        made: New versions in the target, parents included.
        existing: Versions that the target had already.
        unnamed: Parents copied without a name, because their number is taken or they were refused; they are found by
            digest.
        refused: Components and files that were not copied, with the reasons.
        withdrawn: Versions withdrawn on one side only before the transfer.
        apart: Aliases that both sides moved differently; unchanged.
        items: Copied blobs.
        results: Number of new measured results.
        signatures: Number of new signatures.
        aliases: Aliases that moved, ``name:alias``.
        planned: Whether this is a dry run.
    """

    made: list[Reference] = attrs.field(factory=list)
    existing: list[Reference] = attrs.field(factory=list)
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
        first = f"{len(self.made)} new, {len(self.existing)} there already, {len(self.refused)} refused"
        planned = ", planned only" if self.planned else ""
        lines = [f"{first}; {self.blobs:,} blobs, {self.bytes:,} bytes{planned}"]
        lines += [f"new      {reference}" for reference in self.made]
        lines += [f"refused  {refusal}" for refusal in self.refused]
        return "\n".join(lines)

    @property
    def blobs(self) -> int:
        """Number of blobs."""
        return len(self.items)

    @property
    def bytes(self) -> int:
        """Size of all copied blobs."""
        return sum(item.bytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        lists = {
            name: [
                {"reference": str(reference), "digest": reference.digest} for reference in getattr(self, name)
            ]
            for name in ("made", "existing", "unnamed")
        }
        refused = [
            {"what": refusal.what, "code": refusal.error.code, "message": str(refusal.error)}
            for refusal in self.refused
        ]
        withdrawn = [
            {"reference": str(withdrawal.reference), "reason": withdrawal.reason}
            for withdrawal in self.withdrawn
        ]
        counts = {name: getattr(self, name) for name in ("blobs", "bytes", "results", "signatures")}
        others = {name: getattr(self, name) for name in ("aliases", "apart", "planned")}
        items = [attrs.asdict(item) for item in self.items]
        return {**lists, "refused": refused, "withdrawn": withdrawn, **counts, **others, "objects": items}

    def check(self) -> Moved:
        """Return this report if nothing was refused.

        Raises:
            Incomplete: Something was refused; ``errors`` lists the reasons, ``subject`` is this report.
        """
        if not self.refused:
            return self
        shown = [str(refusal) for refusal in self.refused[:SHOWN]]
        more = f" And {len(self.refused) - SHOWN} more." if len(self.refused) > SHOWN else ""
        verb = "would be copied" if self.planned else "copied"
        raise Incomplete(
            f"{len(self.refused)} refused; {len(self.made)} new {verb}, {len(self.existing)} there already. "
            f"{' '.join(shown)}{more}",
            errors=tuple(refusal.error for refusal in self.refused),
            subject=self,
        )
