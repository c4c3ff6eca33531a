"""Summarize the measurements of a matrix in a few plain sentences, with their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compatkit.contracts.evidence import CHANCE_P
from compatkit.reports.wording import interval, pair_count, share, visible

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
    """Return a summary of the pairs that were not trained together, with its uncertainty.

    Args:
        matrix: Matrix to summarize.
    """
    current = [cell for cell in matrix if cell.restricted is not None and cell.state != "stale"]
    others = [cell for cell in current if not cell.own]
    stale = sum(cell.state == "stale" for cell in matrix)
    rest = f" The accuracies of {pair_count(stale)} are stale and not counted." if stale else ""
    if not others:
        measured = "Only networks as trained were measured" if current else "No pair was measured"
        return f"{measured}, so it is unknown which parts work together.{rest}"
    counts = Counter(str(cell.grade) for cell in others)
    above = sum(counts[grade] for grade in ABOVE)
    grades = ", ".join(f"{counts[grade]:,} {words}" for grade, words in GRADES.items() if counts[grade])
    text = f"Of {pair_count(len(others))} recombined and measured: {grades}."
    if not above:
        text += " No recombination is shown to work."
    elif len(others) * CHANCE_P > above / 3:
        text += f" About {len(others) * CHANCE_P:.0f} of so many would be graded above chance by accident."
    return f"{text} {_best(others)} Intervals are over images; other seeds may give other accuracies.{rest}"


def _best(others: Sequence[Cell]) -> str:
    """Return a sentence on the pair that recovers most of the way from chance to its bound."""
    cell = max(
        others, key=lambda cell: (_recovered(cell), cell.restricted.accuracy if cell.restricted else 0)
    )
    if cell.restricted is None:
        return ""
    references = [f"chance {share(cell.chance)}"] if cell.chance is not None else []
    references += [f"bound {share(cell.bound.accuracy)}"] if cell.bound is not None else []
    closest = (
        "Highest"
        if cell.recovered is None
        else f"Closest to its bound ({100 * cell.recovered:.0f} % of the way)"
    )
    return (
        f"{closest}: {visible(cell.extractor)} with {visible(cell.head)}, accuracy {share(cell.restricted.accuracy)} "
        f"(95 % interval {interval(cell.restricted)}{''.join(f', {text}' for text in references)})."
    )


def _recovered(cell: Cell) -> float:
    if cell.recovered is not None:
        return cell.recovered
    return (cell.restricted.accuracy if cell.restricted else 0.0) - (cell.chance or 0.0)


def scale_of(matrix: CellGrid) -> str:
    """Return the ranges of chance and images: ``chance 0.114; 2,007 to 10,000 images ...``; empty without measurements.

    Args:
        matrix: Matrix to describe.
    """
    cells = [cell for cell in matrix if cell.restricted is not None]
    chances = sorted({share(cell.chance) for cell in cells if cell.chance is not None})
    images = sorted({cell.restricted.count for cell in cells if cell.restricted is not None})
    parts = [f"chance {_range(chances)}"] if chances else []
    counts = [f"{count:,}" for count in images]
    parts += [f"{_range(counts)} images of common classes per accuracy"] if counts else []
    return "; ".join(parts)


def _range(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
