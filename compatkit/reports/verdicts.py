"""Check many pairs of contracts, and report the verdicts: extractors are rows, heads are columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.check import check_pairs
from compatkit.contracts.report import EQUAL_SHAPES, Finding, PairSummaries, display_severity
from compatkit.foundation.arguments import checks_arguments
from compatkit.reports.tabular import Tabular
from compatkit.reports.wording import verdict_of_word
from compatkit.reports.writing import json_text, write_optional

if TYPE_CHECKING:
    from rich.console import RenderableType

    from compatkit.contracts.channels import Blobs
    from compatkit.contracts.check import Classes
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.manifest import Manifest

    Manifests = Mapping[str, Manifest] | Sequence[Manifest]


SCHEMA = 1
FINDING_COLUMNS = ("finding", "level", "severity", "pairs", "for example", "expected", "actual", "remedy")


@attrs.frozen(repr=False, eq=False)
class Verdicts(PairSummaries, Tabular):
    """Verdict on each extractor with each head, from contracts and stored measurements, without reading weights.

    Data frames and CSV have a row for each pair; printed, Markdown and LaTeX tables have one for each extractor.

    Attributes:
        extractors: References of the extractors, one for each row.
        heads: References of the heads, one for each column.
        summaries: Summary of each pair, row by row.
    """

    _columns = ("extractor", "head", "word", "wiring", "promise", "evidence", "findings")

    def _grid(self) -> tuple[str, str, str]:
        return ("extractor", "head", "word")

    def _rows(self) -> list[dict[str, Any]]:
        columns = ("word", "wiring", "promise", "evidence")
        return [
            {"extractor": extractor, "head": head}
            | {name: getattr(summary.report, name) for name in columns}
            | {"findings": ", ".join(code for code, _ in summary.codes)}
            for extractor, head, summary in self.pairs()
        ]

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the verdicts as Markdown tables; also write them if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.markdown import escape, row

        counts = self.counts()
        lines = ["## Verdicts of the contracts", "", escape(self.summary()), ""]
        lines.append(row("extractor \\\\ head", *map(escape, self.heads)))
        lines.append(row(*["---"] * (len(self.heads) + 1)))
        for extractor, summaries in zip(self.extractors, self.summaries, strict=True):
            verdicts = (verdict_of_word(summary.report.word) for summary in summaries)
            lines.append(
                row(f"**{escape(extractor)}**", *(f"{verdict.mark} {verdict.word}" for verdict in verdicts))
            )
        lines.append("")
        for word in counts:
            lines.append(f"- {verdict_of_word(word).mark} **{word}**: {verdict_of_word(word).meaning}")
        if "unproven" in counts:
            lines += ["", f"**{EQUAL_SHAPES}** Measure the unproven pairs before relying on them."]
        lines += ["", "### Findings", "", row(*FINDING_COLUMNS), row(*["---"] * len(FINDING_COLUMNS))]
        for group in self.groups():
            finding = group.example
            pairs = f"{group.pairs:,}", f"{group.extractor} with {group.head}"
            severity = display_severity(finding.severity)
            texts = finding.level, severity, *pairs, finding.expected, finding.actual, finding.remedy
            lines.append(row(f"`{finding.code}`", *map(escape, texts)))
        return write_optional("\n".join(lines) + "\n", path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return all reports as JSON, each finding once; also write it if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        indices: dict[Finding, int] = {}
        pairs: list[dict[str, Any]] = []
        for extractor, head, summary in self.pairs():
            findings = self.report(extractor, head).findings
            numbers = [indices.setdefault(finding, len(indices)) for finding in findings]
            pairs.append(
                {**summary.report.to_json(), "extractor": extractor, "head": head, "findings": numbers}
            )
        value = {
            "schema": SCHEMA,
            "kind": "verdicts",
            "extractors": list(self.extractors),
            "heads": list(self.heads),
            "counts": self.counts(),
            "pairs": pairs,
            "findings": [attrs.asdict(finding) for finding in indices],
        }
        return write_optional(json_text(value), path)

    def __str__(self) -> str:
        from compatkit.reports.tables import verdict_table

        return verdict_table(self).text(ascii_only=False)

    def __rich__(self) -> RenderableType:
        from compatkit.reports.tables import verdict_table

        return verdict_table(self)


@checks_arguments
def check_all(
    extractors: Manifests,
    heads: Manifests,
    *,
    data: Classes | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]] | None = None,
    channels: Blobs | None = None,
    own: Collection[tuple[str, str]] = (),
    bn_policy: str = DEFAULT,
) -> Verdicts:
    """Compare the contracts of all extractors with those of all heads, without reading weights.

    Args:
        extractors: Manifests by reference, or a sequence, named ``extractor 1``, ``extractor 2``, ...
        heads: Manifests by reference, or a sequence, named ``extractor 1``, ``extractor 2``, ...
        data: Classes that the pairs are meant for, see ``check``.
        evidence: Measurements (cells of matrices) by references of extractor and head, oldest first.
        channels: Channel statistics, by the digest of the blob that stores them.
        own: Pairs (extractor, head) whose extractor computes the same as the one that the head was cut from or trained
            with.
        bn_policy: Batch-norm policy of the pairs: only measurements under it count as evidence.

    Returns:
        Verdicts on all pairs; ``report`` of a pair returns the same as ``check``.

    Raises:
        UsageError: A component is not an extractor, or not a head; or the policy is unknown.
        DataError: Two class names of the data or of a head are equal, or one class matches two of the other side.
    """
    summaries = check_pairs(
        _by_reference(extractors, "extractor"),
        _by_reference(heads, "head"),
        data=data,
        evidence=evidence or {},
        channels=channels or {},
        own=own,
        bn_policy=check_policy(bn_policy),
    )
    return Verdicts(summaries.extractors, summaries.heads, summaries.summaries, summaries.report)


def _by_reference(manifests: Manifests, kind: str) -> dict[str, Manifest]:
    if isinstance(manifests, Mapping):
        return dict(manifests)
    return {f"{kind} {number}": manifest for number, manifest in enumerate(manifests, 1)}
