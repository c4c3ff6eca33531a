"""Verdicts of many pairs as Markdown, and as JSON in which no finding is written twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.report import EQUAL_SHAPES, Finding
from compatkit.reports.markdown import escape
from compatkit.reports.wording import of_word

if TYPE_CHECKING:
    from compatkit.contracts.report import Outlines

SCHEMA = 1
_FINDINGS = ("finding", "level", "severity", "pairs", "for example", "expected", "came", "remedy")


def markdown(verdicts: Outlines) -> str:
    """Return the document; it starts with a heading of level 2, so that it fits into a larger one."""
    counts = verdicts.counts()
    lines = ["## Verdicts of the contracts", "", escape(verdicts.summary()), ""]
    lines.append(_row("extractor \\\\ head", *map(escape, verdicts.heads)))
    lines.append(_row(*["---"] * (len(verdicts.heads) + 1)))
    for extractor, row in zip(verdicts.extractors, verdicts.outlines, strict=True):
        said = [of_word(outline.answers.word) for outline in row]
        lines.append(_row(f"**{escape(extractor)}**", *(f"{one.mark} {one.word}" for one in said)))
    lines.append("")
    for word in counts:
        lines.append(f"- {of_word(word).mark} **{word}**: {of_word(word).meaning}")
    if "unproven" in counts:
        lines += ["", f"**{EQUAL_SHAPES}** Measure the unproven pairs before relying on them."]
    lines += ["", "### Findings", "", _row(*_FINDINGS), _row(*["---"] * len(_FINDINGS))]
    for group in verdicts.groups():
        one = group.example
        where = f"{group.extractor} with {group.head}"
        texts = (one.level, one.severity, f"{group.pairs:,}", where, one.expected, one.came, one.remedy)
        lines.append(_row(f"`{one.code}`", *map(escape, texts)))
    return "\n".join(lines) + "\n"


def document(verdicts: Outlines) -> str:
    """Return all reports; a pair names its findings by their places in the list of distinct ones."""
    places: dict[Finding, int] = {}
    pairs: list[dict[str, Any]] = []
    for extractor, head, outline in verdicts.pairs():
        findings = verdicts.report(extractor, head).findings
        found = [places.setdefault(one, len(places)) for one in findings]
        pairs.append({**outline.answers.to_json(), "extractor": extractor, "head": head, "findings": found})
    value = {
        "schema": SCHEMA,
        "kind": "verdicts",
        "extractors": list(verdicts.extractors),
        "heads": list(verdicts.heads),
        "counts": verdicts.counts(),
        "pairs": pairs,
        "findings": [attrs.asdict(one) for one in places],
    }
    text = json.dumps(value, ensure_ascii=False, indent=2)
    # A half surrogate has no UTF-8; written as an escape it comes back as it was.
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
