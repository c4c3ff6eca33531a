"""Write a matrix as one self-contained HTML page without network requests; it works without scripts, too.

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
from compatkit.reports.drawing import OWN_OUTLINE, STALE_OUTLINE, shade
from compatkit.reports.labels import shorten_names
from compatkit.reports.ladder import rung_texts

if TYPE_CHECKING:
    from compatkit.reports.grid import CellGrid

MAX_LABEL = 64
"""Maximal length of a name in the table, where names are wrapped; its sheet has the full name."""
SHADE_LEVELS = 20  # one CSS class each, because the page forbids style attributes
MAX_LARGE = 12
_CLOSING = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def render(matrix: CellGrid, *, headline: str = "Compatibility matrix", finding: str = "") -> str:
    """Return the page.

    Args:
        matrix: Matrix to write.
        headline: Headline and title of the page.
        finding: Sentences below the headline, before the conclusion from the cells.
    """
    environment = templates()
    style = environment.get_template("matrix_style.html.j2").render(
        shades=[shade(level / SHADE_LEVELS) for level in range(SHADE_LEVELS + 1)],
        own=OWN_OUTLINE,
        stale=STALE_OUTLINE,
    )
    script = environment.get_template("matrix_script.html.j2").render()
    rows = [
        [
            _cell_values(matrix.find(part.reference, head.reference), part, head, f"cell-{i}-{j}")
            for j, head in enumerate(matrix.heads)
        ]
        for i, part in enumerate(matrix.extractors)
    ]
    counts = Counter(cell["verdict"].key for row in rows for cell in row)
    own = ["own"] if any(cell["own"] for row in rows for cell in row) else []
    return environment.get_template("matrix.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, f"script-src 'sha256-{_hash(script)}'"),
        data=Markup(script_json(matrix)),
        settings=wording.conditions(matrix.settings),
        extractors=_headings(matrix.extractors, "Extractor"),
        heads=_headings(matrix.heads, "Head"),
        rows=rows,
        counts=[(word, counts[word.key]) for word in wording.legend(counts)],
        verdicts=wording.legend({*counts, "perfect", "compatible", "weak", "chance", *own}),
        many=max(len(matrix.extractors), len(matrix.heads)) > MAX_LARGE,
        few=sum(map(len, rows)) <= MAX_LARGE,
        headline=headline,
        finding=finding,
        conclusion=conclusion(matrix),
        scale=scale_of(matrix),
    )


def script_json(matrix: CellGrid) -> str:
    """Return the matrix as JSON for a script element.

    ``<``, ``>``, ``&``, U+2028 and U+2029 are replaced by JSON escapes, so the text still contains the same matrix.

    Args:
        matrix: Matrix to write.
    """
    return document.render(matrix, indent=None).translate(_CLOSING)


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


def _headings(parts: Sequence[Part], kind: str) -> list[dict[str, Any]]:
    """Return row or column headings with shortened names and the summary of the contracts."""
    labels = shorten_names([wording.visible(part.reference).rpartition("@")[0] for part in parts], MAX_LABEL)
    headings = []
    for number, (part, label) in enumerate(zip(parts, labels, strict=True)):
        reference = wording.visible(part.reference)
        name, at, version = reference.rpartition("@")
        summary = {} if "kind" in part.summary else {"kind": part.kind.replace("_", " ")}
        summary |= {**part.summary, "digest": part.digest, "function digest": part.function}
        heading = {
            "id": f"{kind.lower()}-{number}",
            "kind": kind,
            "reference": reference,
            "label": label or reference,
        }
        heading |= {"name": name, "version": at + version} if at else {"name": reference, "version": ""}
        rows = [(wording.visible(key), wording.visible(text)) for key, text in summary.items()]
        headings.append(heading | {"rows": rows})
    return headings


def _cell_values(cell: Cell | None, part: Part, head: Part, element: str) -> dict[str, Any]:
    """Return the template's values for a cell."""
    word = wording.verdict(cell)
    extractor, head_name, spoken = (
        wording.visible(part.reference),
        wording.visible(head.reference),
        word.word + wording.own_pair_suffix(cell) + wording.bridge_suffix(cell),
    )
    values = {
        "id": element,
        "extractor": extractor,
        "head": head_name,
        "verdict": word,
        "through": wording.bridge_suffix(cell),
    }
    figures: dict[str, Any] = {"accuracy": "", "low": "", "high": "", "level": None}
    if cell and (figure := cell.restricted):
        figures = {name: wording.share(getattr(figure, name)) for name in ("accuracy", "low", "high")}
        spoken += f", accuracy {figures['accuracy']}, from {figures['low']} to {figures['high']}"
        # stale accuracies are printed without shading, so that they do not look current
        level = round(min(1.0, max(0.0, figure.accuracy)) * SHADE_LEVELS)
        figures["level"] = None if word.key == "stale" else level
    settings = {name: value for name, value in cell.settings.items() if name != "own"} if cell else {}
    return {
        **values,
        **figures,
        "own": bool(cell and cell.own),
        "sample": _sample(cell),
        "spoken": f"{extractor} with {head_name}: {spoken}",
        "reason": wording.visible(cell.reason) if cell else "",
        "rows": wording.evidence_rows(cell) if cell else [],
        "settings": [
            (wording.setting_name(name), wording.setting_text(value)) for name, value in settings.items()
        ],
        "findings": [wording.visible(line) for line in cell.findings] if cell else [],
        "scale": _scale(cell) if cell else {},
        "ladder": _ladder(cell.ladder) if cell else [],
    }


def _sample(cell: Cell | None) -> str:
    """Return chance and number of images of a measured cell as text."""
    if cell is None or cell.restricted is None:
        return ""
    chance = "" if cell.chance is None else f"chance {wording.share(cell.chance)}, "
    return f"{chance}n {cell.restricted.count:,}"


def _scale(cell: Cell) -> dict[str, float]:
    chance = {} if cell.chance is None else {"chance": cell.chance}
    bound = {} if cell.bound is None else {"bound": cell.bound.accuracy}
    return {} if cell.restricted is None else _positions(cell.restricted, **chance, **bound)


def _ladder(rungs: Sequence[Rung]) -> list[tuple[str, str, dict[str, float]]]:
    """Return name, results and positions on the scale of each rung; a cross is its accuracy on test images."""
    crosses = ({} if rung.accuracy is None else {"cross": rung.accuracy.accuracy} for rung in rungs)
    positions = (_positions(rung.agreement, **cross) for rung, cross in zip(rungs, crosses, strict=True))
    return [(*texts, position) for texts, position in zip(rung_texts(rungs), positions, strict=True)]


def _positions(figure: Figure, **others: float) -> dict[str, float]:
    """Return positions on a scale from 0 to 1, as percentages of its length."""
    shares = {"accuracy": figure.accuracy, "low": figure.low, "high": figure.high, **others}
    return {name: round(100 * min(1.0, max(0.0, value)), 2) for name, value in shares.items()}
