"""What the contracts say of many pairs, with its reports: extractors are rows, heads are columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.arguments import named
from compatkit.contracts.check import compare
from compatkit.contracts.report import Outlines
from compatkit.reports.writing import kept

if TYPE_CHECKING:
    from rich.console import RenderableType

    from compatkit.contracts.channels import Blobs
    from compatkit.contracts.contract import Data
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.manifest import Manifest

    Manifests = Mapping[str, Manifest] | Sequence[Manifest]


@attrs.frozen(repr=False, eq=False)
class Verdicts(Outlines):
    """What is known of every extractor with every head before a weight is read.

    Attributes:
        extractors: References of the rows.
        heads: References of the columns.
        outlines: One a pair, row by row.
    """

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the verdicts as Markdown tables, and write them where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.verdict_documents import markdown

        return kept(markdown(self), path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return all reports as JSON, each finding written once, and write it where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.verdict_documents import document

        return kept(document(self), path)

    def __str__(self) -> str:
        from compatkit.reports.verdict_table import plain

        return plain(self)

    def __rich__(self) -> RenderableType:
        from compatkit.reports.verdict_table import render

        return render(self)


@named
def check_all(
    extractors: Manifests,
    heads: Manifests,
    *,
    data: Data | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]] | None = None,
    channels: Blobs | None = None,
    own: Collection[tuple[str, str]] = (),
) -> Verdicts:
    """Compare every extractor's contract with every head's; reads no weights.

    Args:
        extractors: By reference; without references they are numbered.
        heads: The same.
        data: As for ``check``, for all pairs.
        evidence: Measured cells by reference of extractor and head, oldest first.
        channels: As for ``check``, of all manifests.
        own: References of the extractors and heads of which ``check(own=True)`` holds.

    Returns:
        A verdict for each pair; its report says what ``check`` says.

    Raises:
        UsageError: One of the extractors is none, or one of the heads.
        DataError: Two classes of the data, or of a head, have one name, or one means the same as two of the
            other side.
    """
    lefts, rights = _named(extractors, "extractor"), _named(heads, "head")
    found = compare(lefts, rights, data=data, evidence=evidence or {}, channels=channels or {}, own=own)
    return Verdicts(found.extractors, found.heads, found.outlines, found.report)


def _named(manifests: Manifests, what: str) -> dict[str, Manifest]:
    if isinstance(manifests, Mapping):
        return dict(manifests)
    return {f"{what} {number}": one for number, one in enumerate(manifests, 1)}
