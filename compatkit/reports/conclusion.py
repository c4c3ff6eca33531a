"""What the figures of a matrix show, in a few plain sentences; what they do not show is said too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compatkit.contracts.evidence import CHANCE_P
from compatkit.reports.wording import interval, many, share, visible

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.reports.grid import CellGrid

GRADES = {
    "perfect": "as good as the extractor's own head",
    "compatible": "compatible (at least half of the way from chance to the bound)",
    "weak": "weak",
    "undecided": "undecided, for want of images",
    "chance": "incompatible (at chance)",
    "none": "not graded",
}
ABOVE = ("perfect", "compatible", "weak")
"""Grades above chance."""


def conclusion(matrix: CellGrid) -> str:
    """Return what was found of extractors with heads that they were not trained with, and how sure it is."""
    current = [cell for cell in matrix if cell.restricted is not None and cell.state != "stale"]
    others = [cell for cell in current if not cell.own]
    stale = sum(cell.state == "stale" for cell in matrix)
    rest = f" Figures of {many(stale)} are stale and not counted." if stale else ""
    if not others:
        what = "Only networks as trained were measured" if current else "No pair was measured"
        return f"{what}, so nothing is shown of which parts work together.{rest}"
    counts = Counter(str(cell.grade) for cell in others)
    above = sum(counts[grade] for grade in ABOVE)
    grades = ", ".join(f"{counts[grade]:,} {words}" for grade, words in GRADES.items() if counts[grade])
    text = f"Of {many(len(others))} recombined and measured: {grades}."
    if not above:
        text += " No recombination is shown to work."
    elif len(others) * CHANCE_P > above / 3:
        text += f" Of so many, about {len(others) * CHANCE_P:.0f} would seem above chance by accident."
    return f"{text} {_best(others)} Intervals are over images; other seeds may give other figures.{rest}"


def _best(others: Sequence[Cell]) -> str:
    """Return the highest accuracy relative to chance and bound, with its interval."""
    cell = max(
        others, key=lambda cell: (_recovered(cell), cell.restricted.accuracy if cell.restricted else 0)
    )
    if cell.restricted is None:
        return ""
    beside = [f"chance {share(cell.chance)}"] if cell.chance is not None else []
    beside += [f"bound {share(cell.bound.accuracy)}"] if cell.bound is not None else []
    return (
        f"Highest: {visible(cell.extractor)} with {visible(cell.head)}, accuracy {share(cell.restricted.accuracy)} "
        f"(95 % interval {interval(cell.restricted)}{''.join(f', {text}' for text in beside)})."
    )


def _recovered(cell: Cell) -> float:
    if cell.recovered is not None:
        return cell.recovered
    return (cell.restricted.accuracy if cell.restricted else 0.0) - (cell.chance or 0.0)


def scale_of(matrix: CellGrid) -> str:
    """Return chance and number of images of all figures: ``chance 0.114; 2,007 to 10,000 images``; else empty."""
    cells = [cell for cell in matrix if cell.restricted is not None]
    chances = sorted({share(cell.chance) for cell in cells if cell.chance is not None})
    images = sorted({cell.restricted.count for cell in cells if cell.restricted is not None})
    parts = [f"chance {_range(chances)}"] if chances else []
    parts += (
        [f"{_range([f'{count:,}' for count in images])} images of common classes a figure"] if images else []
    )
    return "; ".join(parts)


def _range(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
