"""The cells of a large page as compact JSON: columns of numbers, and every text once.

A page of 300 by 300 cells has no element for a cell that is not in sight; its script makes cells and sheets from this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from compatkit.reports.sheets import Heading, Sheet


@attrs.define
class Texts:
    """Texts by number, each once.

    Attributes:
        numbers: Number of each text, in order.
    """

    numbers: dict[str, int] = attrs.field(factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))


def grid(
    rows: Sequence[Sequence[Sheet]],
    extractors: Sequence[Heading],
    heads: Sequence[Heading],
    *,
    complete: bool,
) -> dict[str, Any]:
    """Return what a script needs to sort, filter and draw the table: one list per field, row by row.

    Args:
        rows: Cells of the table.
        extractors: Headings of the rows.
        heads: Headings of the columns.
        complete: Whether the page has no table of its own, so that texts are needed too.
    """
    cells = list(chain.from_iterable(rows))
    words = list({cell.verdict.key: cell.verdict for cell in cells}.values())
    places = {word.key: place for place, word in enumerate(words)}
    value: dict[str, Any] = {
        "rows": [heading.reference for heading in extractors],
        "columns": [heading.reference for heading in heads],
        "words": [[word.key, word.mark, word.word] for word in words],
        "word": [places[cell.verdict.key] for cell in cells],
        "value": [None if cell.value is None else round(cell.value, 6) for cell in cells],
        "own": [int(cell.own) for cell in cells],
    }
    if complete:
        texts = Texts()
        for name in ("figure", "span", "suffix", "shade"):
            value[name] = [texts.number(getattr(cell, name)) for cell in cells]
        value["labels"] = [
            [[heading.label, heading.version] for heading in side] for side in (extractors, heads)
        ]
        value["texts"] = list(texts.numbers)
    return value


def sheets(
    rows: Sequence[Sequence[Sheet]], extractors: Sequence[Heading], heads: Sequence[Heading]
) -> dict[str, Any]:
    """Return the content of all sheets of a page: numbers of texts, and lists of settings once.

    Args:
        rows: Cells of the table.
        extractors: Headings of the rows.
        heads: Headings of the columns.
    """
    texts, settings = Texts(), dict[tuple[tuple[str, str], ...], int]()
    meanings: dict[str, str] = {}

    def pairs(items: Sequence[tuple[str, str]]) -> list[int]:
        return [texts.number(text) for item in items for text in item]

    cells: list[list[Any]] = []
    for cell in chain.from_iterable(rows):
        meanings[cell.verdict.key] = cell.verdict.meaning
        common = settings.setdefault(tuple(map(tuple, cell.settings)), len(settings))  # type: ignore[arg-type]
        cells.append(
            [
                texts.number(cell.reason),
                pairs(cell.rows),
                common,
                [texts.number(line) for line in cell.findings],
                cell.scale or 0,
                [[texts.number(name), texts.number(text), scale] for name, text, scale in cell.ladder],
            ]
        )
    return {
        "cells": cells,
        "settings": [pairs(items) for items in settings],
        "parts": [[pairs(heading.rows) for heading in side] for side in (extractors, heads)],
        "meanings": meanings,
        "texts": list(texts.numbers),
    }
