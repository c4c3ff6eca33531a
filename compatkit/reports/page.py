"""Write a matrix as one self-contained HTML page without network requests; small ones work without scripts, too.

All text is autoescaped; style and script are allowed only by hash, so injected markup would not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compatkit.reports import compact, document, wording
from compatkit.reports.conclusion import conclusion, scale_of
from compatkit.reports.drawing import OWN_OUTLINE, STALE_OUTLINE, gain_shade, shade
from compatkit.reports.sheets import SHADE_LEVELS, Heading, Sheet, headings, sheets
from compatkit.reports.wording import MINUS

if TYPE_CHECKING:
    from compatkit.reports.grid import CellGrid
    from compatkit.reports.wording import VerdictWord

MAX_LARGE = 12
"""Maximal number of rows and columns with large cells."""
MAX_STATIC = 900
"""Maximal number of pairs with elements of their own; the script of larger pages draws what is in sight."""
GAIN_LEVELS = 10
_CLOSING = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
ACCURACIES = (
    "Each extractor (row) with each head (column): accuracy on their common classes, measured on the extractor's own "
    "test images. Open a cell for its evidence, a name for its contract. Accuracies from a registry are as trustworthy "
    "as everyone who can write to it, unless signatures are required."
)
RECOVERED = (
    "recovered",
    f"(accuracy {MINUS} chance) ÷ (bound {MINUS} chance): 0 is chance, 1 is as good as the own head.",
)


@attrs.frozen(kw_only=True)
class Page:
    """Content of a page with a table of pairs.

    Attributes:
        headline: Headline and title.
        caption: Name of the table for screen readers.
        lead: What a cell shows, and how to read on.
        paragraphs: Conclusions below the headline.
        sample: Ranges of chance and images; empty without measurements.
        settings: Conditions that all cells share.
        extractors: Headings of the rows.
        heads: Headings of the columns.
        rows: Cells, row by row.
        legend: Words of the legend.
        terms: Further terms of the legend with their meanings.
        value_name: Name of the number in a cell, by which the page sorts and filters.
        least: Smallest such number that a filter may ask for.
        data: JSON for the script element ``matrix-data`` of small pages.
    """

    headline: str
    caption: str
    lead: str
    paragraphs: Sequence[str]
    sample: str = ""
    settings: Sequence[tuple[str, str]] = ()
    extractors: Sequence[Heading]
    heads: Sequence[Heading]
    rows: Sequence[Sequence[Sheet]]
    legend: Sequence[VerdictWord]
    terms: Sequence[tuple[str, str]] = ()
    value_name: str = "accuracy"
    least: float = 0.0
    data: str


def render(matrix: CellGrid, *, headline: str = "Compatibility matrix", finding: str = "") -> str:
    """Return the page of a matrix.

    Args:
        matrix: Matrix to write.
        headline: Headline and title of the page.
        finding: Sentences below the headline, before the conclusion from the cells.
    """
    rows = sheets(matrix)
    keys = {cell.verdict.key for row in rows for cell in row}
    own = ["own"] if any(cell.own for row in rows for cell in row) else []
    page = Page(
        headline=headline,
        caption="Compatibility matrix: extractors are rows, heads are columns",
        lead=ACCURACIES,
        paragraphs=[*filter(None, [finding]), conclusion(matrix)],
        sample=scale_of(matrix),
        settings=wording.conditions(matrix.settings),
        extractors=headings(matrix.extractors, "Extractor"),
        heads=headings(matrix.heads, "Head"),
        rows=rows,
        legend=wording.legend({*keys, "perfect", "compatible", "weak", "chance", *own}),
        terms=[RECOVERED],
        data=script_json(matrix) if len(matrix.cells) <= MAX_STATIC else "null",
    )
    return render_page(page)


def render_page(page: Page) -> str:
    """Return a page as HTML.

    Args:
        page: Content.
    """
    environment = templates()
    style = environment.get_template("matrix_style.html.j2").render(
        shades=[shade(level / SHADE_LEVELS) for level in range(SHADE_LEVELS + 1)],
        gains=[(level, gain_shade(level / GAIN_LEVELS)) for level in range(-GAIN_LEVELS, GAIN_LEVELS + 1)],
        own=OWN_OUTLINE,
        stale=STALE_OUTLINE,
    )
    script = environment.get_template("matrix_script.html.j2").render()
    pairs = sum(map(len, page.rows))
    dense = pairs > MAX_STATIC
    counts = Counter(cell.verdict.key for row in page.rows for cell in row)
    words = {cell.verdict.key: cell.verdict for row in page.rows for cell in row}
    sides = (page.extractors, page.heads)
    return environment.get_template("matrix.html.j2").render(
        page=page,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, f"script-src 'sha256-{_hash(script)}'"),
        data=Markup(page.data),
        grid=Markup(_script_value(compact.grid(page.rows, *sides, complete=dense))),
        sheets=Markup(_script_value(compact.sheets(page.rows, *sides))) if dense else None,
        counts=[(words[key], counts[key]) for key in sorted(words, key=_place) if words[key].mark.strip()],
        many=max(map(len, sides)) > MAX_LARGE,
        few=pairs <= MAX_LARGE,
    )


def _place(key: str) -> int:
    return wording.PLACES.get(key, len(wording.PLACES))


def script_json(matrix: CellGrid) -> str:
    """Return the matrix as JSON for a script element.

    ``<``, ``>``, ``&``, U+2028 and U+2029 are replaced by JSON escapes, so the text still contains the same matrix.

    Args:
        matrix: Matrix to write.
    """
    return document.render(matrix, indent=None).translate(_CLOSING)


def _script_value(value: Any) -> str:
    """Return JSON values for a script element, as ``script_json`` does."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode("utf-8").translate(_CLOSING)


@cache
def templates() -> Environment:
    """Return the Jinja environment with the templates of this folder."""
    environment = Environment(
        loader=PackageLoader("compatkit.reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(name: str) -> Markup:
    """Escape a name and allow line breaks after its separators, without changing the copied text."""
    return Markup("<wbr>").join(re.findall(r"[^/._@-]*[/._@-]+|[^/._@-]+", name))


def content_policy(style: str, more: str) -> str:
    """Return the content security policy of a page: no requests, and only the given style and directive.

    Args:
        style: Text of the style element, exactly as in the page.
        more: Further directive.
    """
    return (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; {more}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
