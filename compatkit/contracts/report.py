"""Reports of a check: findings, and three separate answers (wiring, promise, evidence) instead of one score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.grades import Grade
from compatkit.errors import UnknownName, UsageError, near, suggest
from compatkit.foundation.display import Shown

Level = Literal["structural", "data", "protocol", "statistical", "empirical"]
Severity = Literal["refuses", "adaptable", "warns", "informs", "promises"]
Wiring = Literal["refused", "needs-adapter", "direct"]
Promise = Literal["none", "shared-init", "shared-head", "one-network"]
Requirement = Literal["direct", "shared-init", "shared-head", "compatible", "perfect"]
Word = Literal[
    "perfect",
    "compatible",
    "weak",
    "promised",
    "undecided",
    "unproven",
    "adaptable",
    "incompatible",
    "refused",
]

Codes = tuple[tuple[str, Severity], ...]
"""Distinct code and severity of findings, in the order of the levels."""

REQUIREMENTS: tuple[Requirement, ...] = get_args(Requirement)
WORDS: tuple[Word, ...] = get_args(Word)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
DISPLAY_WORDS = {"informs": "info"}
"""Severities with another word for display than the stored one."""
EQUAL_SHAPES = "Equal shapes are not compatibility."

_PROMISED: dict[Requirement, tuple[Promise, ...]] = {
    "shared-init": ("shared-init", "shared-head", "one-network"),
    "shared-head": ("shared-head", "one-network"),
}
MEASURED: dict[Requirement, tuple[Grade, ...]] = {
    "compatible": ("compatible", "perfect"),
    "perfect": ("perfect",),
}
"""Requirements on measurements, with the grades that satisfy them."""


@attrs.frozen
class Finding:
    """One agreement or difference of two contracts.

    Attributes:
        code: Stable identifier, such as ``"channels-differ"``.
        level: Level of the contract.
        severity: ``refuses``: no adapter resolves it; ``adaptable``: an adapter does; ``warns``, ``informs``: the
            parts can be wired nevertheless; ``promises``: a reason to expect that they work together.
        expected: Value that one side requires.
        actual: Value that the other side provides.
        between: Names of the two sides: the one that requires, then the one that provides.
        remedy: Adapter or command that resolves it; empty if none is needed.
    """

    code: str
    level: Level
    severity: Severity
    expected: str
    actual: str
    between: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f" Remedy: {self.remedy}." if self.remedy else ""
        return (
            f"{self.code} ({self.level}, {display_severity(self.severity)}): expected {self.expected}; "
            f"actual {self.actual} [{self.between}].{remedy}"
        )


@attrs.frozen(repr=False)
class Report(Shown):
    """Result of checking an extractor with a head, without reading weights.

    Attributes:
        wiring: Whether the parts can be connected: ``refused``, ``needs-adapter`` or ``direct``.
        promise: Strongest reason in the contracts to expect that the parts work together: ``none``, ``shared-init``,
            ``shared-head`` (trained against the same head) or ``one-network`` (the head was cut from or trained with
            this extractor).
        evidence: Grade of measurements: ``none``, ``stale``, ``undecided``, ``chance``, ``weak``, ``compatible`` or
            ``perfect``.
        findings: Agreements and differences, in the order of the levels.
        extractor: Reference of the extractor, if known.
        head: Reference of the head, if known.
    """

    wiring: Wiring
    promise: Promise
    evidence: Grade
    findings: tuple[Finding, ...] = ()
    extractor: str | None = None
    head: str | None = None

    @property
    def word(self) -> Word:
        """Summary in one word; "incompatible" is reserved for pairs measured at chance."""
        if self.wiring == "refused":
            return "refused"
        if self.evidence == "chance":
            return "incompatible"
        if self.wiring == "needs-adapter":
            return "adaptable"
        if self.evidence != "none" and self.evidence != "stale":
            return self.evidence
        return "promised" if self.promise in _PROMISED["shared-head"] else "unproven"

    @property
    def unproven(self) -> bool:
        """Whether only shapes support the pair: wired directly, no promise, no measurement."""
        return self.word == "unproven"

    def satisfies(self, level: str) -> bool:
        """Return whether the pair reaches ``level``; a pair measured at chance reaches none.

        Args:
            level: ``"direct"``, ``"shared-init"``, ``"shared-head"`` (promises), ``"compatible"``,
                ``"perfect"`` (measured). All require direct wiring.

        Raises:
            UsageError: The level is unknown.
        """
        required = requirement(level)
        if self.wiring != "direct" or self.evidence == "chance":
            return False
        if required in _PROMISED:
            return self.promise in _PROMISED[required]
        return required == "direct" or self.evidence in MEASURED[required]

    def with_findings(self, added: Iterable[Finding]) -> Report:
        """Return a copy with further findings at the end.

        Args:
            added: Findings to append.
        """
        return attrs.evolve(self, findings=(*self.findings, *added))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the three answers, the word and all findings."""
        return {
            "extractor": self.extractor,
            "head": self.head,
            "word": self.word,
            "wiring": self.wiring,
            "promise": self.promise,
            "evidence": self.evidence,
            "findings": [attrs.asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.word}: wiring {self.wiring}, promise {self.promise}, evidence {self.evidence}",
            f"  extractor  {self.extractor or '(not named)'}",
            f"  head       {self.head or '(not named)'}",
        ]
        for finding in self.findings:
            lines.append(f"  {display_severity(finding.severity):<9}  {finding.level:<11}  {finding.code}")
            lines.append(f"             expected {finding.expected}; actual {finding.actual}")
            lines.append(f"             {finding.between}")
            if finding.remedy:
                lines.append(f"             remedy: {finding.remedy}")
        if self.unproven:
            lines.append(f"  {EQUAL_SHAPES} Measure the pair before relying on it.")
        return "\n".join(lines)


def display_severity(severity: str) -> str:
    """Return the word for display of a severity; JSON contains the stored word."""
    return DISPLAY_WORDS.get(severity, severity)


def codes_of(findings: Iterable[Finding]) -> Codes:
    """Return the distinct codes and severities of findings, in order."""
    return tuple(dict.fromkeys((finding.code, finding.severity) for finding in findings))


def requirement(level: str) -> Requirement:
    """Check that ``Report.satisfies`` accepts a level, and return it.

    Args:
        level: Such as ``"shared-head"``.

    Raises:
        UsageError: The level is unknown.
    """
    if level in REQUIREMENTS:
        return level
    hint = suggest(level, REQUIREMENTS)
    raise UsageError(
        f"Cannot require {level!r}; expected one of {', '.join(REQUIREMENTS)}.{hint}", subject=level
    )


@attrs.frozen
class PairSummary:
    """A report without its texts.

    Attributes:
        report: Wiring, promise and evidence, without findings.
        codes: Distinct codes and severities of all findings.
    """

    report: Report
    codes: Codes


@attrs.frozen
class Group:
    """A finding that several pairs share.

    Attributes:
        code: Code of the finding.
        severity: Severity of the finding.
        pairs: Number of pairs; their expected and actual values may differ.
        extractor: Extractor of the first of these pairs, by reference.
        head: Head of the first of these pairs, by reference.
        example: Finding of the first of these pairs.
    """

    code: str
    severity: Severity
    pairs: int
    extractor: str
    head: str
    example: Finding


@attrs.frozen(repr=False, eq=False)
class PairSummaries(Shown):
    """Result of checking every extractor with every head, without reading weights.

    Attributes:
        extractors: References of the rows.
        heads: References of the columns.
        summaries: PairSummary of each pair, row by row.
    """

    extractors: tuple[str, ...]
    heads: tuple[str, ...]
    summaries: tuple[tuple[PairSummary, ...], ...]
    _report: Callable[[str, str], Report]

    def report(self, extractor: str, head: str) -> Report:
        """Return the full report of one pair.

        Args:
            extractor: Reference of the extractor.
            head: Reference of the head.

        Raises:
            UnknownName: One of the references was not part of the check.
        """
        _check_known(extractor, self.extractors, "extractor")
        _check_known(head, self.heads, "head")
        return self._report(extractor, head)

    def pairs(self) -> Iterator[tuple[str, str, PairSummary]]:
        """Yield extractor, head and summary of every pair, row by row."""
        for extractor, row in zip(self.extractors, self.summaries, strict=True):
            for head, summary in zip(self.heads, row, strict=True):
                yield extractor, head, summary

    def counts(self) -> dict[Word, int]:
        """Return the number of pairs per word, the best word first; words without pairs are omitted."""
        counts = Counter(summary.report.word for row in self.summaries for summary in row)
        return {word: counts[word] for word in WORDS if word in counts}

    def summary(self) -> str:
        """Return the number of pairs per word as one line; measured own pairs (bounds) are counted separately."""
        own = Counter(summary.report.word for *_, summary in self.pairs() if _gives_bound(summary.report))
        parts = [_counted(own.total(), "own pair")] if own else []
        parts += [
            f"{count - own[word]:,} {word}" for word, count in self.counts().items() if count > own[word]
        ]
        pairs = _counted(len(self.extractors) * len(self.heads), "pair")
        return f"{pairs}: {', '.join(parts)}" if parts else pairs

    def groups(self) -> list[Group]:
        """Return the distinct findings by code and severity: the most severe first, then the most frequent."""
        counts: Counter[tuple[str, Severity]] = Counter()
        first: dict[tuple[str, Severity], tuple[str, str]] = {}
        for extractor, head, summary in self.pairs():
            counts.update(summary.codes)
            for code in summary.codes:
                if code not in first:
                    first[code] = extractor, head
        ranked = sorted(counts, key=lambda code: (SEVERITIES.index(code[1]), -counts[code]))
        return [
            Group(*code, counts[code], *first[code], self._example(code, *first[code])) for code in ranked
        ]

    def unsatisfied(self, level: str) -> list[tuple[str, str]]:
        """Return the pairs that do not reach ``level``; see ``Report.satisfies``.

        Args:
            level: Such as ``"shared-head"``.

        Raises:
            UsageError: The level is unknown.
        """
        required = requirement(level)
        return [
            (extractor, head)
            for extractor, head, summary in self.pairs()
            if not summary.report.satisfies(required)
        ]

    def _example(self, code: tuple[str, Severity], extractor: str, head: str) -> Finding:
        findings = self._report(extractor, head).findings
        return next(finding for finding in findings if (finding.code, finding.severity) == code)


def _gives_bound(report: Report) -> bool:
    """Return whether a pair was measured and the head was trained with this extractor."""
    return report.promise == "one-network" and report.word in ("perfect", "compatible", "weak")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _check_known(reference: str, known: tuple[str, ...], kind: str) -> None:
    if reference not in known:
        close = near(reference, known, 3, 0.4)
        hint = f"near names: {', '.join(close)}" if close else f"there are {len(known)}"
        raise UnknownName(f"no {kind} {reference!r} was checked; {hint}", subject=reference)
