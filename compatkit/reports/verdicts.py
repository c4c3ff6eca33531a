"""Check many pairs of contracts, and report the verdicts: extractors are rows, heads are columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.check import check_pairs
from compatkit.contracts.report import EQUAL_SHAPES, Finding, Outlines, display_severity
from compatkit.foundation.arguments import checks_arguments
from compatkit.reports.document import json_text
from compatkit.reports.markdown import escape, row
from compatkit.reports.tabular import Tabular
from compatkit.reports.wording import verdict_of_word
from compatkit.reports.writing import write_optional

if TYPE_CHECKING:
    from rich.console import RenderableType

    from compatkit.contracts.channels import Blobs
    from compatkit.contracts.check import Classes
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.manifest import Manifest

    Manifests = Mapping[str, Manifest] | Sequence[Manifest]


SCHEMA = 1
FINDINGS = ("finding", "level", "severity", "pairs", "for example", "expected", "actual", "remedy")


@attrs.frozen(repr=False, eq=False)
class Verdicts(Outlines, Tabular):
    """Verdict on each extractor with each head, from their contracts alone.

    Tables have a row for each pair.

    Attributes:
        extractors: References of the rows.
        heads: References of the columns.
        outlines: Outline of each pair, row by row.
    """

    _columns = ("extractor", "head", "word", "wiring", "promise", "evidence", "findings")

    def _grid(self) -> tuple[str, str, str]:
        return ("extractor", "head", "word")

    def _rows(self) -> list[dict[str, Any]]:
        answers = ("word", "wiring", "promise", "evidence")
        return [
            {"extractor": extractor, "head": head}
            | {name: getattr(outline.answers, name) for name in answers}
            | {"findings": ", ".join(code for code, _ in outline.codes)}
            for extractor, head, outline in self.pairs()
        ]

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the verdicts as Markdown tables; also write them if a path is given.

        Args:
            path: Path of the file, or None.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        counts = self.counts()
        lines = ["## Verdicts of the contracts", "", escape(self.summary()), ""]
        lines.append(row("extractor \\\\ head", *map(escape, self.heads)))
        lines.append(row(*["---"] * (len(self.heads) + 1)))
        for extractor, outlines in zip(self.extractors, self.outlines, strict=True):
            words = (verdict_of_word(outline.answers.word) for outline in outlines)
            lines.append(row(f"**{escape(extractor)}**", *(f"{word.mark} {word.word}" for word in words)))
        lines.append("")
        for word in counts:
            lines.append(f"- {verdict_of_word(word).mark} **{word}**: {verdict_of_word(word).meaning}")
        if "unproven" in counts:
            lines += ["", f"**{EQUAL_SHAPES}** Measure the unproven pairs before relying on them."]
        lines += ["", "### Findings", "", row(*FINDINGS), row(*["---"] * len(FINDINGS))]
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
        for extractor, head, outline in self.pairs():
            findings = self.report(extractor, head).findings
            numbers = [indices.setdefault(finding, len(indices)) for finding in findings]
            pairs.append(
                {**outline.answers.to_json(), "extractor": extractor, "head": head, "findings": numbers}
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
        extractors: Manifests by reference, or a sequence, which is numbered.
        heads: Manifests by reference, or a sequence, which is numbered.
        data: Target classes of all pairs, see ``check``.
        evidence: Measured cells by references of extractor and head, oldest first.
        channels: Channel statistics by blob digest.
        own: References of the pairs for which ``check(own=True)`` applies.
        bn_policy: Batch-norm policy of all pairs.

    Returns:
        Verdicts on all pairs; each report equals that of ``check``.

    Raises:
        UsageError: A component is not an extractor, or not a head; or the policy is unknown.
        DataError: Two classes of the data, or of a head, have the same name, or one matches two of the other side.
    """
    outlines = check_pairs(
        _by_reference(extractors, "extractor"),
        _by_reference(heads, "head"),
        data=data,
        evidence=evidence or {},
        channels=channels or {},
        own=own,
        bn_policy=check_policy(bn_policy),
    )
    return Verdicts(outlines.extractors, outlines.heads, outlines.outlines, outlines.report)


def _by_reference(manifests: Manifests, kind: str) -> dict[str, Manifest]:
    if isinstance(manifests, Mapping):
        return dict(manifests)
    return {f"{kind} {number}": manifest for number, manifest in enumerate(manifests, 1)}
