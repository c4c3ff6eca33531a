"""What the contracts say of many pairs, as a value: extractors are rows, heads are columns."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.display import Shown
from compatkit.contracts.report import SEVERITIES, WORDS, Codes, Finding, Report, Severity, Word, requirement
from compatkit.errors import UnknownName
from compatkit.reports.wording import many
from compatkit.reports.writing import kept

if TYPE_CHECKING:
    from rich.console import RenderableType


@attrs.frozen
class Outline:
    """A report without its texts.

    Attributes:
        answers: Wiring, promise and evidence.
        codes: Of all findings, each once.
    """

    answers: Report
    codes: Codes


@attrs.frozen
class Group:
    """A finding that pairs have in common.

    Attributes:
        pairs: How many have it; what is expected and came may differ between them.
        extractor: Reference, of the first such pair.
        head: Reference, of the same pair.
        example: The finding as it is said of that pair.
    """

    code: str
    severity: Severity
    pairs: int
    extractor: str
    head: str
    example: Finding


@attrs.frozen(repr=False, eq=False)
class Verdicts(Shown):
    """What is known of every extractor with every head before a weight is read.

    Attributes:
        extractors: References of the rows.
        heads: References of the columns.
        outlines: One a pair, row by row.
    """

    extractors: tuple[str, ...]
    heads: tuple[str, ...]
    outlines: tuple[tuple[Outline, ...], ...]
    _report: Callable[[str, str], Report]

    def report(self, extractor: str, head: str) -> Report:
        """Return the report of a pair, with all its findings.

        Raises:
            UnknownName: One of the two references is not among those that were checked.
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
        """Return how many pairs each word is said of, the best word first; those said of none are left out."""
        outlines = Counter(id(outline) for row in self.outlines for outline in row)
        said: Counter[Word] = Counter()
        for outline in {id(one): one for row in self.outlines for one in row}.values():
            said[outline.answers.word] += outlines[id(outline)]
        return {word: said[word] for word in WORDS if word in said}

    def summary(self) -> str:
        """Return how many pairs each word is said of, in one line."""
        said = ", ".join(f"{count:,} {word}" for word, count in self.counts().items())
        return many(len(self.extractors) * len(self.heads)) + (f": {said}" if said else "")

    def groups(self) -> list[Group]:
        """Return the distinct findings by code and severity: the gravest severity first, then the most frequent."""
        count: Counter[tuple[str, Severity]] = Counter()
        first: dict[tuple[str, Severity], tuple[str, str]] = {}
        for extractor, head, outline in self.pairs():
            count.update(outline.codes)
            for code in outline.codes:
                if code not in first:
                    first[code] = extractor, head
        ranked = sorted(count, key=lambda one: (SEVERITIES.index(one[1]), -count[one]))
        return [Group(*code, count[code], *first[code], self._example(code, *first[code])) for code in ranked]

    def unsatisfied(self, level: str) -> list[tuple[str, str]]:
        """Return the pairs that are less than ``level``, as ``Report.satisfies`` has it.

        Raises:
            UsageError: There is no such level.
        """
        wanted = requirement(level)
        return [(one, head) for one, head, outline in self.pairs() if not outline.answers.satisfies(wanted)]

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

    def _example(self, code: tuple[str, Severity], extractor: str, head: str) -> Finding:
        findings = self._report(extractor, head).findings
        return next(one for one in findings if (one.code, one.severity) == code)

    def __str__(self) -> str:
        from compatkit.reports.verdict_table import plain

        return plain(self)

    def __rich__(self) -> RenderableType:
        from compatkit.reports.verdict_table import render

        return render(self)


def _check_known(reference: str, known: tuple[str, ...], what: str) -> None:
    if reference not in known:
        near = difflib.get_close_matches(reference, known, n=3, cutoff=0.4)
        hint = f"near names: {', '.join(near)}" if near else f"there are {len(known)}"
        raise UnknownName(f"no {what} {reference!r} was checked; {hint}", subject=reference)
