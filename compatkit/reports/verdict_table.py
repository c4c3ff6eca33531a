"""Verdicts of many pairs for terminals: a table of words, of marks, or a list, whichever fits the width."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from compatkit.contracts.report import EQUAL_SHAPES, WORDS, Severity, Word
from compatkit.reports.terminal import STYLES
from compatkit.reports.wording import many, of_word, visible

if TYPE_CHECKING:
    from compatkit.contracts.report import Group, Outlines

PLAIN_WIDTH = 100
WORD_COLUMN = 18
"""Columns of the terminal for a mark, the longest word, and what separates it from the next."""
MARK_COLUMN = 5
NAMED = 6
"""Heads that the list names for one word of one extractor; the rest is counted."""
SEVERITY_STYLES: dict[Severity, str] = {
    "refuses": "red",
    "adaptable": "magenta",
    "warns": "yellow",
    "promises": "green",
    "informs": "default",
}


@attrs.frozen
class Fitting:
    """Chooses the form by the width of the console."""

    verdicts: Outlines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table that fits, what its marks mean, the counts, and the distinct findings."""
        verdicts, width, ascii_only = self.verdicts, options.max_width, options.ascii_only
        names = min(32, max(map(len, verdicts.extractors), default=0))
        if names + len(verdicts.heads) * WORD_COLUMN <= width:
            yield _table(verdicts, ascii_only, short=False)
        elif MARK_COLUMN * (1 + len(verdicts.heads)) <= width:
            yield _table(verdicts, ascii_only, short=True)
            yield from _numbers(verdicts)
            yield Text()
        else:
            yield from _list(verdicts, width, ascii_only)
            yield Text()
        yield from _legend(verdicts, width, ascii_only)
        yield from _findings(verdicts.groups(), width)


def render(verdicts: Outlines) -> Fitting:
    """Return what a rich console prints."""
    return Fitting(verdicts)


def plain(verdicts: Outlines) -> str:
    """Return the same as text without colours, at most 100 columns wide."""
    kept = io.StringIO()
    Console(file=kept, width=PLAIN_WIDTH, color_system=None, highlight=False).print(Fitting(verdicts))
    return "\n".join(line.rstrip() for line in kept.getvalue().splitlines())


def _table(verdicts: Outlines, ascii_only: bool, *, short: bool) -> Table:
    table = Table(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column(Text("extractor \\ head", "dim"), overflow="fold")
    for number, head in enumerate(verdicts.heads, 1):
        table.add_column(Text(f"H{number}") if short else _name(head), overflow="fold", no_wrap=short)
    for number, (extractor, row) in enumerate(zip(verdicts.extractors, verdicts.outlines, strict=True), 1):
        cells = (_cell(outline.answers.word, ascii_only, short=short) for outline in row)
        table.add_row(Text(f"E{number}") if short else _name(extractor), *cells)
    return table


def _name(reference: str) -> Text:
    name, at, version = visible(reference).rpartition("@")
    return Text.assemble((name, "bold"), "\n", (at + version, "dim")) if at else Text(version, "bold")


def _mark(word: Word, ascii_only: bool) -> str:
    said = of_word(word)
    return said.sign if ascii_only else said.mark


def _cell(word: Word, ascii_only: bool, *, short: bool) -> Text:
    mark = _mark(word, ascii_only)
    return Text(mark if short else f"{mark} {word}", STYLES[of_word(word).key])


def _numbers(verdicts: Outlines) -> Iterator[Text]:
    for letter, references in (("E", verdicts.extractors), ("H", verdicts.heads)):
        for number, reference in enumerate(references, 1):
            yield Text(f"{letter}{number}  {visible(reference)}", "dim", overflow="fold")


def _list(verdicts: Outlines, width: int, ascii_only: bool) -> Iterator[Text]:
    for extractor, row in zip(verdicts.extractors, verdicts.outlines, strict=True):
        yield Text(visible(extractor), "bold", overflow="fold")
        heads: dict[Word, list[str]] = {}
        for head, outline in zip(verdicts.heads, row, strict=True):
            heads.setdefault(outline.answers.word, []).append(visible(head))
        for word in filter(heads.__contains__, WORDS):
            named = ", ".join(heads[word][:NAMED])
            more = f" and {len(heads[word]) - NAMED:,} more" if len(heads[word]) > NAMED else ""
            front = f"  {_mark(word, ascii_only)} {word:<12} "
            yield Text(_folded(front, named + more, width), STYLES[of_word(word).key])


def _legend(verdicts: Outlines, width: int, ascii_only: bool) -> Iterator[Text]:
    counts = verdicts.counts()
    yield Text(_folded("", verdicts.summary(), width), "bold")
    for word in counts:
        said = of_word(word)
        front = f"  {_mark(word, ascii_only)} {word:<12} "
        yield Text(_folded(front, said.meaning, width), STYLES[said.key])
    if "unproven" in counts:
        text = f"{EQUAL_SHAPES} For {many(counts['unproven'])} nothing else speaks: measure before you rely on them."
        yield Text(_folded("", text, width), "yellow")


def _findings(groups: list[Group], width: int) -> Iterator[Text]:
    for group in groups:
        one = group.example
        yield Text()
        yield Text.assemble(
            (group.severity, SEVERITY_STYLES[group.severity]),
            f"  {group.code} ({one.level}): {many(group.pairs)}",
        )
        mends = group.severity in ("refuses", "adaptable", "warns")
        texts = {
            "expected": one.expected,
            "came": one.came,
            "remedy" if mends else "note": one.remedy,
            "example" if group.pairs > 1 else "pair": f"{group.extractor} with {group.head}",
        }
        for label, text in texts.items():
            if text:
                yield Text(_folded(f"  {label:<8}  ", visible(text), width))


def _folded(front: str, text: str, width: int) -> str:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=front,
        subsequent_indent=" " * len(front),
        break_on_hyphens=False,
    )
    return "\n".join(lines) or front
