"""Reports of a check: findings, and three answers that are deliberately not combined into one score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast, get_args

import attrs

from compatkit.contracts.evidence import Grade
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
SHOWN = {"informs": "info"}
"""Severities that people read by another word than the stored one."""
EQUAL_SHAPES = "Equal shapes are not compatibility."

_PROMISED: dict[Requirement, tuple[Promise, ...]] = {
    "shared-init": ("shared-init", "shared-head", "one-network"),
    "shared-head": ("shared-head", "one-network"),
}
MEASURED: dict[Requirement, tuple[Grade, ...]] = {
    "compatible": ("compatible", "perfect"),
    "perfect": ("perfect",),
}
"""Levels that only a measurement reaches, with the grades that do."""


@attrs.frozen
class Finding:
    """One agreement or difference of two contracts.

    Attributes:
        code: Stable identifier, such as ``"channels-differ"``.
        level: Level of the contract.
        severity: ``refuses``: no adapter resolves it; ``adaptable``: an adapter does; ``warns``, ``informs``: the
            parts can be wired nevertheless; ``promises``: a reason to expect that they work together.
        expected: What one side requires.
        actual: What the other side provides.
        between: Which side requires and which provides.
        remedy: Adapter or command that resolves it; empty if there is nothing to do.
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
            f"{self.code} ({self.level}, {shown_severity(self.severity)}): expected {self.expected}; "
            f"actual {self.actual} [{self.between}].{remedy}"
        )


@attrs.frozen(repr=False)
class Report(Shown):
    """What is known about an extractor and a head without reading weights.

    Attributes:
        wiring: Whether the parts can be connected: ``refused``, ``needs-adapter`` or ``direct``.
        promise: What the contracts give reason to expect: ``none``, ``shared-init``, ``shared-head`` (trained against
            the same head) or ``one-network`` (the head was cut from or trained with this extractor).
        evidence: Grade of measurements: ``none``, ``stale``, ``undecided``, ``chance``, ``weak``, ``compatible`` or
            ``perfect``.
        findings: In the order of the levels.
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
        """True if only shapes support the pair: wired directly, no promise, no measurement."""
        return self.word == "unproven"

    def satisfies(self, level: str) -> bool:
        """Return whether the pair reaches ``level``; a pair measured at chance reaches none.

        Args:
            level: ``"direct"``, ``"shared-init"``, ``"shared-head"`` (promises), ``"compatible"``,
                ``"perfect"`` (measured). All require direct wiring.

        Raises:
            UsageError: The level is unknown.
        """
        wanted = requirement(level)
        if self.wiring != "direct" or self.evidence == "chance":
            return False
        if wanted in _PROMISED:
            return self.promise in _PROMISED[wanted]
        return wanted == "direct" or self.evidence in MEASURED[wanted]

    def with_findings(self, added: Iterable[Finding]) -> Report:
        """Return a copy with further findings at the end."""
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
            lines.append(f"  {shown_severity(finding.severity):<9}  {finding.level:<11}  {finding.code}")
            lines.append(f"             expected {finding.expected}; actual {finding.actual}")
            lines.append(f"             {finding.between}")
            if finding.remedy:
                lines.append(f"             remedy: {finding.remedy}")
        if self.unproven:
            lines.append(f"  {EQUAL_SHAPES} Measure the pair before relying on it.")
        return "\n".join(lines)


def shown_severity(severity: str) -> str:
    """Return a severity as people read it; JSON keeps the stored word."""
    return SHOWN.get(severity, severity)


def codes_of(findings: Iterable[Finding]) -> Codes:
    """Return the distinct codes and severities of findings, in order."""
    return tuple(dict.fromkeys((finding.code, finding.severity) for finding in findings))


def requirement(level: str) -> Requirement:
    """Return ``level`` if ``Report.satisfies`` accepts it.

    Raises:
        UsageError: The level is unknown.
    """
    if level in REQUIREMENTS:
        return cast("Requirement", level)
    hint = suggest(level, REQUIREMENTS)
    raise UsageError(
        f"Cannot require {level!r}; expected one of {', '.join(REQUIREMENTS)}.{hint}", subject=level
    )


@attrs.frozen
class Outline:
    """A report without its texts.

    Attributes:
        answers: Wiring, promise and evidence.
        codes: Distinct codes and severities of all findings.
    """

    answers: Report
    codes: Codes


@attrs.frozen
class Group:
    """A finding that several pairs share.

    Attributes:
        pairs: Number of pairs; their expected and actual values may differ.
        extractor: Reference of the first such pair's extractor.
        head: Reference of its head.
        example: The finding for that pair.
    """

    code: str
    severity: Severity
    pairs: int
    extractor: str
    head: str
    example: Finding


@attrs.frozen(repr=False, eq=False)
class Outlines(Shown):
    """What is known about every extractor with every head without reading weights.

    Attributes:
        extractors: References of the rows.
        heads: References of the columns.
        outlines: One per pair, row by row.
    """

    extractors: tuple[str, ...]
    heads: tuple[str, ...]
    outlines: tuple[tuple[Outline, ...], ...]
    _report: Callable[[str, str], Report]

    def report(self, extractor: str, head: str) -> Report:
        """Return the full report of one pair.

        Args:
            extractor: Its reference.
            head: Its reference.

        Raises:
            UnknownName: One of the references was not part of the check.
        """
        _check_known(extractor, self.extractors, "extractor")
        _check_known(head, self.heads, "head")
        return self._report(extractor, head)

    def pairs(self) -> Iterator[tuple[str, str, Outline]]:
        """Yield extractor, head and outline of every pair, row by row."""
        for extractor, row in zip(self.extractors, self.outlines, strict=True):
            for head, outline in zip(self.heads, row, strict=True):
                yield extractor, head, outline

    def counts(self) -> dict[Word, int]:
        """Return the number of pairs per word, the best word first; words without pairs are omitted."""
        counts = Counter(outline.answers.word for row in self.outlines for outline in row)
        return {word: counts[word] for word in WORDS if word in counts}

    def summary(self) -> str:
        """Return the number of pairs per word as one line; measured own pairs, which give the bound, count apart."""
        own = Counter(outline.answers.word for *_, outline in self.pairs() if _gives_bound(outline.answers))
        parts = [_many(own.total(), "own pair")] if own else []
        parts += [
            f"{count - own[word]:,} {word}" for word, count in self.counts().items() if count > own[word]
        ]
        pairs = _many(len(self.extractors) * len(self.heads), "pair")
        return f"{pairs}: {', '.join(parts)}" if parts else pairs

    def groups(self) -> list[Group]:
        """Return the distinct findings by code and severity: the most severe first, then the most frequent."""
        count: Counter[tuple[str, Severity]] = Counter()
        first: dict[tuple[str, Severity], tuple[str, str]] = {}
        for extractor, head, outline in self.pairs():
            count.update(outline.codes)
            for code in outline.codes:
                if code not in first:
                    first[code] = extractor, head
        ranked = sorted(count, key=lambda code: (SEVERITIES.index(code[1]), -count[code]))
        return [Group(*code, count[code], *first[code], self._example(code, *first[code])) for code in ranked]

    def unsatisfied(self, level: str) -> list[tuple[str, str]]:
        """Return the pairs that do not reach ``level``; see ``Report.satisfies``.

        Raises:
            UsageError: The level is unknown.
        """
        wanted = requirement(level)
        return [
            (extractor, head)
            for extractor, head, outline in self.pairs()
            if not outline.answers.satisfies(wanted)
        ]

    def _example(self, code: tuple[str, Severity], extractor: str, head: str) -> Finding:
        findings = self._report(extractor, head).findings
        return next(finding for finding in findings if (finding.code, finding.severity) == code)


def _gives_bound(answers: Report) -> bool:
    """Return whether a head was measured with the extractor that it was trained with."""
    return answers.promise == "one-network" and answers.word in ("perfect", "compatible", "weak")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _check_known(reference: str, known: tuple[str, ...], what: str) -> None:
    if reference not in known:
        close = near(reference, known, 3, 0.4)
        hint = f"near names: {', '.join(close)}" if close else f"there are {len(known)}"
        raise UnknownName(f"no {what} {reference!r} was checked; {hint}", subject=reference)
