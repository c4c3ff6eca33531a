"""Report of a transfer: text, JSON, and an error that lists the refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, Incomplete
from compatkit.foundation.display import Shown
from compatkit.registry.names import Reference

MAX_LISTED = 8
"""Maximum number of refusals listed in a message."""


class SignatureWarning(UserWarning):
    """A damaged signature was not copied."""


@attrs.frozen
class Refusal:
    """A component or file that was not copied.

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
def on_refusal(handle: Callable[[CompatkitError], object]) -> Iterator[None]:
    """Pass an error in the block to ``handle`` instead of raising it, unless disk or network failed.

    Args:
        handle: Function of the error.
    """
    try:
        yield
    except EnvironmentFailure:
        raise
    except CompatkitError as error:
        handle(error)


def race_note(address: str) -> str:
    """Return what to know about a remote in which a version can be written over by a simultaneous push."""
    return (
        f"{address} has no conditional writes: two simultaneous pushes of one number can both succeed here, and the "
        "last one's component stays. Let one person push, or use another remote."
    )


@attrs.frozen
class OfferedChange:
    """A change in the origin that was not made in the target.

    Attributes:
        kind: ``"alias"``, ``"withdrawal"``, ``"restoration"``, ``"results"``, or ``"version"`` for a withdrawn version
            that lacks a required signature.
        what: What would change: ``name:alias``, ``name@version``, or a number of results.
        detail: The change, or the reason of a withdrawal.
        option: Option of the command line that makes the change.
        error: Why the change is refused even with the option, or None.
    """

    kind: Literal["alias", "withdrawal", "restoration", "results", "version"]
    what: str
    detail: str
    option: str
    error: CompatkitError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        values = {"kind": self.kind, "what": self.what, "detail": self.detail, "option": self.option}
        return {**values, "code": self.error and self.error.code}


@attrs.frozen
class Withdrawal:
    """A version that was withdrawn on one side only.

    Attributes:
        reference: Version.
        reason: Reason of the withdrawal.
    """

    reference: Reference
    reason: str


@attrs.frozen
class CopiedBlob:
    """A blob that was copied, or would be in a dry run.

    Attributes:
        digest: Digest of the blob.
        bytes: Size in bytes.
        owner: Component that it belongs to.
    """

    digest: str
    bytes: int
    owner: str


@attrs.define(repr=False)
class TransferReport(Shown):
    """Report of a transfer.

    Attributes:
        created: New versions in the target, parents included.
        existing: Versions that the target had already.
        unnamed: Parents copied without a name, because their number is taken or they were refused; only their digests
            refer to them.
        refused: Components and files that were not copied, with the reasons.
        withdrawn: Versions that were withdrawn on one side only before the transfer.
        offered: Changes in the origin that were not made in the target.
        diverged: Unchanged aliases with the reason, such as different moves on both sides.
        copied: Copied blobs, or those that a dry run would copy.
        results: Number of new measured results.
        signatures: Number of new signatures.
        aliases: Aliases that moved, ``name:alias``.
        notes: What a user should know about the target.
        planned: Whether this is a dry run.
    """

    created: list[Reference] = attrs.field(factory=list, metadata={"key": "made"})
    existing: list[Reference] = attrs.field(factory=list)
    unnamed: list[Reference] = attrs.field(factory=list)
    refused: list[Refusal] = attrs.field(factory=list)
    withdrawn: list[Withdrawal] = attrs.field(factory=list)
    offered: list[OfferedChange] = attrs.field(factory=list)
    diverged: list[str] = attrs.field(factory=list, metadata={"key": "apart"})
    copied: list[CopiedBlob] = attrs.field(factory=list, metadata={"key": "objects"})
    results: int = 0
    signatures: int = 0
    aliases: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    planned: bool = False

    def __str__(self) -> str:
        first = f"{len(self.created)} new, {len(self.existing)} there already, {len(self.refused)} refused"
        planned = ", planned only" if self.planned else ""
        lines = [f"{first}; {self.blobs:,} blobs, {self.bytes:,} bytes{planned}"]
        lines += [f"new      {reference}" for reference in self.created]
        lines += [f"offered  {offer.what}: {offer.detail}" for offer in self.offered]
        lines += [f"refused  {refusal}" for refusal in self.refused]
        lines += [f"note     {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def blobs(self) -> int:
        """Number of copied blobs."""
        return len(self.copied)

    @property
    def bytes(self) -> int:
        """Size of all copied blobs in bytes."""
        return sum(blob.bytes for blob in self.copied)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "made": _references_json(self.created),
            "existing": _references_json(self.existing),
            "unnamed": _references_json(self.unnamed),
            "refused": [
                {"what": refusal.what, "code": refusal.error.code, "message": str(refusal.error)}
                for refusal in self.refused
            ],
            "withdrawn": [
                {"reference": str(withdrawal.reference), "reason": withdrawal.reason}
                for withdrawal in self.withdrawn
            ],
            "offered": [offer.to_json() for offer in self.offered],
            "blobs": self.blobs,
            "bytes": self.bytes,
            "results": self.results,
            "signatures": self.signatures,
            "aliases": self.aliases,
            "apart": self.diverged,
            "notes": self.notes,
            "planned": self.planned,
            "objects": [attrs.asdict(blob) for blob in self.copied],
        }

    def check(self) -> TransferReport:
        """Return this report if nothing was refused.

        Raises:
            Incomplete: Something was refused; ``errors`` lists the reasons, ``subject`` is this report.
        """
        if not self.refused:
            return self
        shown = [str(refusal) for refusal in self.refused[:MAX_LISTED]]
        more = f" And {len(self.refused) - MAX_LISTED} more." if len(self.refused) > MAX_LISTED else ""
        verb = "would be copied" if self.planned else "copied"
        raise Incomplete(
            f"{len(self.refused)} refused; {len(self.created)} new {verb}, {len(self.existing)} there already. "
            f"{' '.join(shown)}{more}",
            errors=tuple(refusal.error for refusal in self.refused),
            subject=self,
        )


def _references_json(references: Iterable[Reference]) -> list[dict[str, Any]]:
    return [{"reference": str(reference), "digest": reference.digest} for reference in references]
