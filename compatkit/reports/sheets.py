"""What a page shows of a matrix: texts, shades and positions of each cell and heading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.reports import wording
from compatkit.reports.labels import shorten_names
from compatkit.reports.ladder import rung_texts

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell, Figure, Part, Rung
    from compatkit.reports.grid import CellGrid
    from compatkit.reports.wording import VerdictWord

MAX_LABEL = 64
"""Maximal length of a name in the table, where names are wrapped; its sheet has the full name."""
SHADE_LEVELS = 20
"""Number of steps between the shades of accuracy 0 and 1; one CSS class each, as a page forbids style attributes."""
Texts = Sequence[tuple[str, str]]
"""Labels with their texts."""


@attrs.frozen(kw_only=True)
class Sheet:
    """A cell of the table, and the sheet that opens from it.

    Attributes:
        extractor: Reference of the row, for display.
        head: Reference of the column, for display.
        verdict: Word of the cell.
        value: Number that rows and columns are sorted by; None without one.
        figure: The number as text; empty without one.
        span: Its interval as text.
        sample: Chance and number of images, as text.
        shade: CSS class of the fill; empty for a hatched cell.
        own: Whether the parts were trained together.
        suffix: Words after the verdict: the rung of a bridge.
        spoken: Description for screen readers.
        reason: Reason for a missing figure.
        rows: Results.
        settings: Conditions.
        findings: Findings of the check.
        scale: Positions on a scale from 0 to 1, in percent of its length.
        ladder: Name, results and positions of each rung.
    """

    extractor: str
    head: str
    verdict: VerdictWord
    value: float | None = None
    figure: str = ""
    span: str = ""
    sample: str = ""
    shade: str = ""
    own: bool = False
    suffix: str = ""
    spoken: str
    reason: str = ""
    rows: Texts = ()
    settings: Texts = ()
    findings: Sequence[str] = ()
    scale: dict[str, float] = attrs.field(factory=dict)
    ladder: Sequence[tuple[str, str, dict[str, float]]] = ()


@attrs.frozen
class Heading:
    """Heading of a row or column, and the sheet with the summary of its contract.

    Attributes:
        kind: ``Extractor`` or ``Head``.
        reference: Full reference, for display.
        name: Name without version.
        version: ``@version``, or empty.
        label: Shortened name; distinct from all others of its side.
        rows: Summary of the contract.
    """

    kind: str
    reference: str
    name: str
    version: str
    label: str
    rows: Texts


def headings(parts: Sequence[Part], kind: str) -> list[Heading]:
    """Return row or column headings with shortened names and the summary of the contracts.

    Args:
        parts: Rows or columns of a matrix.
        kind: ``Extractor`` or ``Head``.
    """
    labels = shorten_names([wording.visible(part.reference).rpartition("@")[0] for part in parts], MAX_LABEL)
    result: list[Heading] = []
    for part, label in zip(parts, labels, strict=True):
        reference = wording.visible(part.reference)
        name, at, version = reference.rpartition("@")
        summary = {} if "kind" in part.summary else {"kind": part.kind.replace("_", " ")}
        summary |= {**part.summary, "digest": part.digest, "function digest": part.function}
        rows = [(wording.visible(key), wording.visible(text)) for key, text in summary.items()]
        names = (name, at + version) if at else (reference, "")
        result.append(Heading(kind, reference, *names, label or reference, rows))
    return result


def sheets(matrix: CellGrid) -> list[list[Sheet]]:
    """Return the cells of a matrix, row by row.

    Args:
        matrix: Matrix to write.
    """
    return [
        [_sheet(matrix.find(part.reference, head.reference), part, head) for head in matrix.heads]
        for part in matrix.extractors
    ]


def _sheet(cell: Cell | None, part: Part, head: Part) -> Sheet:
    word = wording.verdict(cell)
    extractor, head_name = wording.visible(part.reference), wording.visible(head.reference)
    spoken = word.word + wording.own_pair_suffix(cell) + wording.bridge_suffix(cell)
    names = {"extractor": extractor, "head": head_name, "verdict": word}
    if cell is None:
        return Sheet(**names, spoken=f"{extractor} with {head_name}: {spoken}")
    figures: dict[str, Any] = {}
    if (measured := cell.restricted) is not None:
        accuracy, low, high = (wording.share(getattr(measured, name)) for name in ("accuracy", "low", "high"))
        spoken += f", accuracy {accuracy}, from {low} to {high}"
        # stale accuracies are printed without shading, so that they do not look current
        shade = (
            "" if word.key == "stale" else f"s{round(min(1.0, max(0.0, measured.accuracy)) * SHADE_LEVELS)}"
        )
        figures = {
            "value": None if word.key == "stale" else measured.accuracy,
            "figure": accuracy,
            "span": wording.interval(measured),
            "sample": _sample(cell, measured),
            "shade": shade,
            "scale": _scale(cell, measured),
        }
    return Sheet(
        **names,
        **figures,
        own=cell.own,
        suffix=wording.bridge_suffix(cell),
        spoken=f"{extractor} with {head_name}: {spoken}",
        reason=wording.visible(cell.reason),
        rows=wording.evidence_rows(cell),
        settings=settings_of(cell),
        findings=[wording.visible(line) for line in cell.findings],
        ladder=_ladder(cell.ladder),
    )


def settings_of(cell: Cell) -> Texts:
    """Return the conditions of a cell for display, without the mark of own pairs."""
    settings = {name: value for name, value in cell.settings.items() if name != "own"}
    return [(wording.setting_name(name), wording.setting_text(value)) for name, value in settings.items()]


def _sample(cell: Cell, measured: Figure) -> str:
    """Return chance and number of images of a measured cell as text."""
    chance = "" if cell.chance is None else f"chance {wording.share(cell.chance)}, "
    return f"{chance}n {measured.count:,}"


def _scale(cell: Cell, measured: Figure) -> dict[str, float]:
    chance = {} if cell.chance is None else {"chance": cell.chance}
    bound = {} if cell.bound is None else {"bound": cell.bound.accuracy}
    return _positions(measured, **chance, **bound)


def _ladder(rungs: Sequence[Rung]) -> list[tuple[str, str, dict[str, float]]]:
    """Return name, results and positions on the scale of each rung; a cross is its accuracy on test images."""
    crosses = ({} if rung.accuracy is None else {"cross": rung.accuracy.accuracy} for rung in rungs)
    positions = (_positions(rung.agreement, **cross) for rung, cross in zip(rungs, crosses, strict=True))
    return [(*texts, position) for texts, position in zip(rung_texts(rungs), positions, strict=True)]


def _positions(figure: Figure, **others: float) -> dict[str, float]:
    """Return positions on a scale from 0 to 1, as percentages of its length."""
    shares = {"accuracy": figure.accuracy, "low": figure.low, "high": figure.high, **others}
    return {name: round(100 * min(1.0, max(0.0, value)), 2) for name, value in shares.items()}
