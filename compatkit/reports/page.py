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

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from compatkit.contracts.evidence import Cell, Figure, Part, Rung
from compatkit.reports import document, wording
from compatkit.reports.conclusion import conclusion, scale_of
from compatkit.reports.ink import OWN_EDGE, STALE_EDGE, shade
from compatkit.reports.labels import shortened
from compatkit.reports.ladder import described

if TYPE_CHECKING:
    from compatkit.reports.grid import CellGrid

LETTERS = 64
"""Letters of an abbreviated name beside the table, where names are wrapped; its sheet has all."""
LEVELS = 20  # steps of the shading, one CSS class each, because the page forbids style attributes
MANY = 12
_CLOSING = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def render(matrix: CellGrid, *, headline: str = "Compatibility matrix", finding: str = "") -> str:
    """Return the page.

    Args:
        matrix: The cells.
        headline: Headline and title of the page.
        finding: Sentences below the headline, before the conclusion from the cells.
    """
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
    counts = Counter(square["verdict"].key for row in rows for square in row)
    own = ["own"] if any(square["own"] for row in rows for square in row) else []
    return environment.get_template("matrix.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, f"script-src 'sha256-{_hash(script)}'"),
        data=Markup(embedded(matrix)),
        settings=wording.conditions(matrix.settings),
        extractors=_headings(matrix.extractors, "Extractor"),
        heads=_headings(matrix.heads, "Head"),
        rows=rows,
        counts=[(word, counts[word.key]) for word in wording.listed(counts)],
        verdicts=wording.listed({*counts, "perfect", "compatible", "weak", "chance", *own}),
        many=max(len(matrix.extractors), len(matrix.heads)) > MANY,
        few=sum(map(len, rows)) <= MANY,
        headline=headline,
        finding=finding,
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


def _headings(parts: Sequence[Part], what: str) -> list[dict[str, Any]]:
    """Return row or column headings with their contracts; a label is a name where there is little room."""
    labels = shortened([wording.visible(part.reference).rpartition("@")[0] for part in parts], LETTERS)
    headings = []
    for number, (part, label) in enumerate(zip(parts, labels, strict=True)):
        shown = wording.visible(part.reference)
        name, at, version = shown.rpartition("@")
        facts = {} if "kind" in part.summary else {"kind": part.kind.replace("_", " ")}
        facts |= {**part.summary, "digest": part.digest, "function digest": part.function}
        heading = {
            "id": f"{what.lower()}-{number}",
            "what": what,
            "reference": shown,
            "label": label or shown,
        }
        heading |= {"name": name, "version": at + version} if at else {"name": shown, "version": ""}
        headings.append(
            heading | {"rows": [(wording.visible(key), wording.visible(text)) for key, text in facts.items()]}
        )
    return headings


def _square(cell: Cell | None, part: Part, head: Part, place: str) -> dict[str, Any]:
    """Return what the template shows of one cell; places on a scale are percentages of its length."""
    word = wording.verdict(cell)
    extractor, head_name, spoken = (
        wording.visible(part.reference),
        wording.visible(head.reference),
        word.word + wording.own_pair(cell) + wording.through(cell),
    )
    square = {
        "id": place,
        "extractor": extractor,
        "head": head_name,
        "verdict": word,
        "through": wording.through(cell),
    }
    figures: dict[str, Any] = {"accuracy": "", "low": "", "high": "", "level": None}
    if cell and (figure := cell.restricted):
        figures = {name: wording.share(getattr(figure, name)) for name in ("accuracy", "low", "high")}
        spoken += f", accuracy {figures['accuracy']}, from {figures['low']} to {figures['high']}"
        # stale figures are printed without shading, so that they do not look current
        level = round(min(1.0, max(0.0, figure.accuracy)) * LEVELS)
        figures["level"] = None if word.key == "stale" else level
    settings = {name: value for name, value in cell.settings.items() if name != "own"} if cell else {}
    return {
        **square,
        **figures,
        "own": bool(cell and cell.own),
        "sample": _sample(cell),
        "spoken": f"{extractor} with {head_name}: {spoken}",
        "reason": wording.visible(cell.reason) if cell else "",
        "rows": wording.evidence(cell) if cell else [],
        "settings": [
            (wording.setting_name(name), wording.setting_text(value)) for name, value in settings.items()
        ],
        "findings": [wording.visible(line) for line in cell.findings] if cell else [],
        "scale": _scale(cell) if cell else {},
        "ladder": _ladder(cell.ladder) if cell else [],
    }


def _sample(cell: Cell | None) -> str:
    """Return chance and number of images of a figure."""
    if cell is None or cell.restricted is None:
        return ""
    chance = "" if cell.chance is None else f"chance {wording.share(cell.chance)}, "
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
