"""A matrix as one self-contained HTML page that makes no network requests and works without scripts.

All text is autoescaped; style and script are allowed only by hash, so injected markup would not run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compatkit.contracts.evidence import Cell, Figure, Part, Rung
from compatkit.reports import document
from compatkit.reports.conclusion import conclusion, scale_of
from compatkit.reports.ink import OWN_EDGE, STALE_EDGE, shade
from compatkit.reports.labels import shortened
from compatkit.reports.ladder import described
from compatkit.reports.wording import (
    VerdictWord,
    conditions,
    evidence,
    listed,
    setting_name,
    setting_text,
    share,
    through,
    verdict,
    visible,
)

if TYPE_CHECKING:
    from compatkit.reports.grid import CellGrid

LETTERS = 64
"""Letters of an abbreviated name beside the table, where names are wrapped; its sheet has all."""
LEVELS = 20  # steps of the shading, one CSS class each, because the page forbids style attributes
MANY = 12
_CLOSING = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


@attrs.frozen
class Square:
    """One cell for the template; positions on the scale are percentages of its length."""

    id: str
    extractor: str
    head: str
    verdict: VerdictWord
    own: bool
    level: int | None
    accuracy: str
    low: str
    high: str
    sample: str
    spoken: str
    reason: str
    rows: list[tuple[str, str]]
    settings: list[tuple[str, str]]
    findings: list[str]
    scale: dict[str, float]
    ladder: list[tuple[str, str, dict[str, float]]]
    through: str


@attrs.frozen
class Heading:
    """One row or column heading with its contract; ``label`` is its name where there is little room."""

    id: str
    what: str
    label: str
    name: str
    version: str
    rows: list[tuple[str, str]]

    @property
    def reference(self) -> str:
        """The reference as displayed."""
        return self.name + self.version


def render(matrix: CellGrid) -> str:
    """Return the page."""
    environment = templates()
    style = environment.get_template("matrix_style.html.j2").render(
        shades=[shade(level / LEVELS) for level in range(LEVELS + 1)], own=OWN_EDGE, stale=STALE_EDGE
    )
    script = environment.get_template("matrix_script.html.j2").render()
    rows = [
        [
            _square(matrix.find(part.reference, head.reference), part, head, f"cell-{i}-{j}")
            for j, head in enumerate(matrix.heads)
        ]
        for i, part in enumerate(matrix.extractors)
    ]
    counts = Counter(square.verdict.key for row in rows for square in row)
    own = ["own"] if any(square.own for row in rows for square in row) else []
    return environment.get_template("matrix.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, f"script-src 'sha256-{_hash(script)}'"),
        data=Markup(embedded(matrix)),
        settings=conditions(matrix.settings),
        extractors=_headings(matrix.extractors, "Extractor"),
        heads=_headings(matrix.heads, "Head"),
        rows=rows,
        counts=[(word, counts[word.key]) for word in listed(counts)],
        verdicts=listed({*counts, "perfect", "compatible", "weak", "chance", *own}),
        many=max(len(matrix.extractors), len(matrix.heads)) > MANY,
        few=sum(map(len, rows)) <= MANY,
        conclusion=conclusion(matrix),
        scale=scale_of(matrix),
    )


def embedded(matrix: CellGrid) -> str:
    """Return the matrix as JSON for a script element: without ``<``, ``>``, ``&``, U+2028 and U+2029.

    They are replaced by JSON escapes, so the extracted text is still the same matrix.
    """
    return document.render(matrix, indent=None).translate(_CLOSING)


@cache
def templates() -> Environment:
    """Return the templates of this folder."""
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


def policy(style: str, more: str) -> str:
    """Return a page's policy: nothing but the style and what else is named, and no requests.

    Args:
        style: Text of its style element, exactly as the browser sees it.
        more: A further directive.
    """
    return (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; {more}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _headings(parts: Sequence[Part], what: str) -> list[Heading]:
    labels = shortened([visible(part.reference).rpartition("@")[0] for part in parts], LETTERS)
    return [
        _heading(part, what, f"{what.lower()}-{number}", label)
        for number, (part, label) in enumerate(zip(parts, labels, strict=True))
    ]


def _heading(part: Part, what: str, place: str, label: str) -> Heading:
    shown = visible(part.reference)
    name, at, version = shown.rpartition("@")
    rows = [(visible(label), visible(text)) for label, text in part.summary.items()]
    if "kind" not in part.summary:
        rows.insert(0, ("kind", visible(part.kind.replace("_", " "))))
    rows += [("digest", visible(part.digest)), ("function digest", visible(part.function))]
    return Heading(place, what, label or shown, name if at else shown, at + version if at else "", rows)


def _square(cell: Cell | None, part: Part, head: Part, place: str) -> Square:
    word = verdict(cell)
    figure = cell.restricted if cell else None
    spoken = word.word + through(cell)
    if figure:
        low, high = share(figure.low), share(figure.high)
        spoken = f"{spoken}, accuracy {share(figure.accuracy)}, from {low} to {high}"
    return Square(
        id=place,
        extractor=visible(part.reference),
        head=visible(head.reference),
        verdict=word,
        own=bool(cell and cell.own),
        # stale figures are printed without shading, so that they do not look current
        level=round(min(1.0, max(0.0, figure.accuracy)) * LEVELS) if figure and word.key != "stale" else None,
        accuracy=share(figure.accuracy) if figure else "",
        low=share(figure.low) if figure else "",
        high=share(figure.high) if figure else "",
        sample=_sample(cell),
        spoken=f"{visible(part.reference)} with {visible(head.reference)}: {spoken}",
        reason=visible(cell.reason) if cell else "",
        rows=evidence(cell) if cell else [],
        settings=_pairs({name: value for name, value in cell.settings.items() if name != "own"})
        if cell
        else [],
        findings=[visible(line) for line in cell.findings] if cell else [],
        scale=_scale(cell) if cell else {},
        ladder=_ladder(cell.ladder) if cell else [],
        through=through(cell),
    )


def _sample(cell: Cell | None) -> str:
    """Return chance and number of images of a figure."""
    if cell is None or cell.restricted is None:
        return ""
    chance = "" if cell.chance is None else f"chance {share(cell.chance)}, "
    return f"{chance}n {cell.restricted.count:,}"


def _scale(cell: Cell) -> dict[str, float]:
    chance = {} if cell.chance is None else {"chance": cell.chance}
    bound = {} if cell.bound is None else {"bound": cell.bound.accuracy}
    return {} if cell.restricted is None else _places(cell.restricted, **chance, **bound)


def _ladder(rungs: Sequence[Rung]) -> list[tuple[str, str, dict[str, float]]]:
    """Return name, figures and places on the scale of each rung; its accuracy on test images is a cross there."""
    crosses = ({} if rung.accuracy is None else {"cross": rung.accuracy.accuracy} for rung in rungs)
    places = (_places(rung.agreement, **cross) for rung, cross in zip(rungs, crosses, strict=True))
    return [(*texts, place) for texts, place in zip(described(rungs), places, strict=True)]


def _places(figure: Figure, **others: float) -> dict[str, float]:
    """Return places on a scale as percentages of its length."""
    shares = {"accuracy": figure.accuracy, "low": figure.low, "high": figure.high, **others}
    return {name: round(100 * min(1.0, max(0.0, value)), 2) for name, value in shares.items()}


def _pairs(settings: Any) -> list[tuple[str, str]]:
    return [(setting_name(name), setting_text(value)) for name, value in settings.items()]
