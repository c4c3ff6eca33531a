"""The page of two compared matrices: the table of a matrix with differences in its cells."""

from __future__ import annotations

from compatkit.reports.changes import CHANGES, ComparedPairs, PairChange, accuracy_rows
from compatkit.reports.page import GAIN_LEVELS, Page, render_page
from compatkit.reports.sheets import Sheet, headings
from compatkit.reports.wording import (
    MINUS,
    VERDICTS,
    VerdictWord,
    setting_name,
    setting_text,
    signed,
    visible,
)

FULL_SHADE = 0.5
"""Difference with the darkest shade."""
WORDS = {
    word.key: word
    for word in (
        VerdictWord("better", "better", "▲", "+", "The 95 % interval of the difference lies above 0."),
        VerdictWord("worse", "worse", "▼", "-", "The 95 % interval of the difference lies below 0."),
        VerdictWord("same", "same", "=", "=", "The 95 % interval of the difference lies within one point."),
        VerdictWord(
            "unclear",
            "unclear",
            "?",
            "?",
            "Too few images to tell: the interval holds 0 and more than a point.",
        ),
        VerdictWord(
            "other-images", "other images", "≠", "!", "Measured on other images or classes; not compared."
        ),
        VerdictWord("added", "only after", "+", "a", "Measured only in the later matrix."),
        VerdictWord("removed", "only before", MINUS, "r", "Measured only in the earlier matrix."),
        VerdictWord("unmeasured", "not measured", "·", ".", "Measured in neither matrix, or stale."),
    )
}
LEAD = (
    "Each extractor (row) with each head (column): accuracy in the later matrix minus that in the earlier one. "
    "Intervals treat the two as independent, which on the same images is wider than need be."
)


def render(comparison: ComparedPairs) -> str:
    """Return the page.

    Args:
        comparison: ComparedPairs to write.
    """
    extractors, heads = headings(comparison.extractors, "Extractor"), headings(comparison.heads, "Head")
    width = len(heads)
    cells = [_sheet(pair, comparison) for pair in comparison.pairs]
    used = {pair.change for pair in comparison.pairs}
    own = [VERDICTS["own"]] if any(cell.own for cell in cells) else []
    return render_page(
        Page(
            headline="Comparison of two matrices",
            caption="Comparison of two matrices: extractors are rows, heads are columns",
            lead=LEAD,
            paragraphs=[comparison.conclusion()],
            extractors=extractors,
            heads=heads,
            rows=[cells[start : start + width] for start in range(0, len(cells), width)] if width else [],
            legend=[*(WORDS[change] for change in CHANGES if change in used), *own],
            value_name="difference",
            least=-1.0,
            data="null",
        )
    )


def _sheet(pair: PairChange, comparison: ComparedPairs) -> Sheet:
    word = WORDS[pair.change]
    extractor, head = visible(pair.extractor), visible(pair.head)
    spoken = f"{extractor} with {head}: {word.word}"
    earlier = [
        f"compared with {visible(comparison.versions[reference])}"
        for reference in (pair.extractor, pair.head)
        if reference in comparison.versions
    ]
    figure = span = shade = ""
    if pair.difference is not None and pair.interval is not None:
        low, high = map(signed, pair.interval)
        figure, span = signed(pair.difference), f"{low} to {high}"
        level = round(GAIN_LEVELS * min(1.0, abs(pair.difference) / FULL_SHADE))
        shade = f"s{'plus' if pair.difference >= 0 else 'minus'}{level}"
        spoken += f", difference {figure}, from {low} to {high}"
    return Sheet(
        extractor=extractor,
        head=head,
        verdict=word,
        value=pair.difference,
        figure=figure,
        span=span,
        sample="" if pair.difference is None else pair.accuracies(),
        shade=shade,
        own=pair.own,
        spoken=spoken,
        reason="; ".join(earlier),
        rows=accuracy_rows(pair),
        settings=[
            (setting_name(name), f"{setting_text(old)} before, {setting_text(new)} after")
            for name, old, new in pair.conditions
        ],
    )
