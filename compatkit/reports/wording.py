"""Words, marks and number formats shared by all reports."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.foundation.display import visible

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell, Figure
    from compatkit.contracts.metric_figures import MetricFigure
    from compatkit.contracts.report import Finding, Word

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
SHORT_DIGEST = 12
COUNT_SETTINGS = ("fill", "cells")
"""Settings of a matrix with counts of stored and newly measured cells."""
STORED_NAMES = {"normalisation": "bn_policy", "policy": "bn_policy", "normalised": "batch normalization"}
"""Names for display of stored settings, by key."""
SEVERITIES = {
    "refuses": "red",
    "adaptable": "magenta",
    "warns": "yellow",
    "promises": "green",
    "informs": None,
}
"""Color of a finding by its severity; None for the color of the text."""


@attrs.frozen
class VerdictWord:
    """Verdict on a cell of a matrix, or on a checked pair.

    Attributes:
        key: Stable name, also the CSS class of a cell on the page.
        word: Displayed word, at most 15 characters.
        mark: Character that is distinguishable without color.
        sign: ASCII character, for plain text.
        meaning: Explanation for the legend.
    """

    key: str
    word: str
    mark: str
    sign: str
    meaning: str


_ALL = (
    VerdictWord(
        "own",
        "own pair",
        "◆",
        "=",
        "The head was trained with this extractor. Its accuracy is the bound, the upper limit for this row; "
        "if a row has several such pairs, one of them gives the bound of the row.",
    ),
    VerdictWord(
        "perfect",
        "perfect",
        "★",
        "*",
        "As good as the bound: the paired 95 % interval of the difference to it lies above minus one point.",
    ),
    VerdictWord(
        "compatible",
        "compatible",
        "✓",
        "+",
        "Above chance (p < .01) and at least half of the way from chance to the bound.",
    ),
    VerdictWord(
        "weak",
        "weak",
        "◔",
        "w",
        "Above chance (p < .01), but only a tenth to a half of the way from chance to the bound.",
    ),
    VerdictWord(
        "undecided",
        "undecided",
        "?",
        "?",
        "Too few images to distinguish the grades. Measure on a few hundred.",
    ),
    VerdictWord(
        "chance",
        "incompatible",
        "○",
        "-",
        "Measured at chance, no better than always guessing the most frequent common class, "
        "as defined by Gygli, Uijlings and Ferrari (2021).",
    ),
    VerdictWord(
        "promised",
        "promised",
        "◇",
        "p",
        "Not measured. Both were trained against the same auxiliary head, or are the parts of one network: a reason to "
        "expect that they fit.",
    ),
    VerdictWord(
        "unproven",
        "unproven",
        "≟",
        "u",
        "Wired directly, but not measured, and neither with a shared auxiliary head nor parts of one network.",
    ),
    VerdictWord(
        "stale",
        "stale",
        "◌",
        "~",
        "Measured under another version of the metric, on other images of the same name, or with another bound; the "
        "cell gives the reason. Measure again.",
    ),
    VerdictWord("ungraded", "not graded", "▫", " ", "Measured, but not graded."),
    VerdictWord(
        "adapter", "adaptable", "⇄", "a", "The parts cannot be wired as they are. An adapter would fit them."
    ),
    VerdictWord("refused", "refused", "✕", "x", "The parts cannot be wired, and no adapter helps."),
    VerdictWord(
        "disjoint",
        "no common class",
        "∅",
        "0",
        "The images and the head share no class: accuracy means nothing.",
    ),
    VerdictWord(
        "missing",
        "not measured",
        "·",
        ".",
        "This pair was not measured; the cell gives the reason if it is known.",
    ),
    VerdictWord("left-out", "left out", " ", "", "The pair was not requested."),
)
VERDICTS: dict[str, VerdictWord] = {word.key: word for word in _ALL}
_BY_WORD = {word.word: word for word in _ALL}
PLACES = {word.key: place for place, word in enumerate(_ALL)}
"""Order of the verdicts in a legend, by key."""


def verdict(cell: Cell | None) -> VerdictWord:
    """Return the verdict on a cell.

    Args:
        cell: Cell of a pair; None if the pair was never measured.
    """
    if cell is None:
        return VERDICTS["missing"]
    if cell.state == "left-out":
        return VERDICTS["left-out"]
    if cell.restricted is not None:
        if cell.own and cell.grade in ("none", "perfect", "compatible", "weak"):
            # An own pair may be compatible: a row may have several, but only one gives its bound.
            return VERDICTS["own"]
        return VERDICTS["ungraded" if cell.grade == "none" else cell.grade]
    if cell.wiring == "refused":
        return VERDICTS["refused"]
    if cell.wiring == "needs-adapter" and (cell.common or "in common" not in cell.reason):
        return VERDICTS["adapter"]
    notes = " ".join((cell.reason, *cell.findings)).lower()
    disjoint = not cell.common and ("common" in cell.reason or "labels-disjoint" in notes)
    return VERDICTS["disjoint" if disjoint else "missing"]


def own_pair_suffix(cell: Cell | None) -> str:
    """Return ``", own pair"`` for a measured own pair with another verdict, such as undecided; else empty."""
    own = cell is not None and cell.own and cell.restricted is not None and verdict(cell).key != "own"
    return ", own pair" if own else ""


def chosen_rung(cell: Cell | None) -> str:
    """Return the rung of the bridge that a cell was measured with; empty without measurement or bridge."""
    if cell is None or cell.restricted is None:
        return ""
    return next((rung.name for rung in cell.ladder if rung.chosen), "")


def bridge_suffix(cell: Cell | None) -> str:
    """Return ``" through ridge"`` for a cell measured with a bridge; else empty."""
    rung = chosen_rung(cell)
    return f" through {visible(rung)}" if rung else ""


def legend_of_cells(cells: Iterable[Cell | None]) -> list[VerdictWord]:
    """Return the verdicts for the legend of some cells, with that of own pairs if there are any."""
    keys: set[str] = set()
    for cell in cells:
        keys |= {verdict(cell).key, *(["own"] if cell is not None and cell.own else [])}
    return legend(keys)


def legend(keys: Collection[str]) -> list[VerdictWord]:
    """Return the verdicts with some keys for a legend, without left-out cells."""
    return [word for word in _ALL if word.key in keys and word.mark.strip()]


def short_meaning(word: VerdictWord) -> str:
    """Return the meaning of a mark in a few words, for the legend of a picture."""
    meanings = {"own": "own pair (outlined)", "chance": "incompatible (at chance)", "stale": "stale (dashed)"}
    return meanings.get(word.key, word.word)


def verdict_of_word(word: Word) -> VerdictWord:
    """Return the verdict with this word."""
    return _BY_WORD[word]


def is_note(finding: Finding) -> bool:
    """Return whether a finding only informs: it neither decides the verdict nor is it a measurement."""
    return finding.severity == "informs" and finding.level != "empirical"


def finding_sentence(finding: Finding) -> str:
    """Return a finding as one sentence: ``channels-differ (structural): expected 64 channels, got 32 channels``."""
    front = f"{finding.code} ({finding.level})"
    if finding.severity in ("promises", "informs"):
        return f"{front}: {finding.expected}: {finding.actual}"
    remedy = f"; remedy: {finding.remedy}" if finding.remedy and finding.severity != "warns" else ""
    return f"{front}: expected {finding.expected}, got {finding.actual}{remedy}"


def finding_texts(finding: Finding) -> dict[str, str]:
    """Return the texts of a finding by label; the remedy of a finding without difference is a note."""
    label = "remedy" if finding.severity in ("refuses", "adaptable", "warns") else "note"
    texts = {"expected": finding.expected, "actual": finding.actual, label: finding.remedy}
    return {label: text for label, text in texts.items() if text}


def clip(text: str, width: int, gap: str = "…") -> str:
    """Shorten ``text`` to ``width`` characters in the middle, as both ends of a reference matter.

    Args:
        text: Text to shorten.
        width: Maximal length in characters, at least that of ``gap``.
        gap: Replacement of the removed part.
    """
    if len(text) <= width:
        return text
    left = (width - len(gap) + 1) // 2
    return text[:left] + gap + text[len(text) - (width - len(gap) - left) :]


def pair_count(pairs: int) -> str:
    """Return ``1 pair`` or ``12,000 pairs``."""
    return f"{pairs:,} pair" + ("" if pairs == 1 else "s")


def share(value: float, digits: int = 3) -> str:
    """Return a share in [0, 1] with a leading zero: ``0.880``.

    Args:
        value: Share in [0, 1].
        digits: Digits after the point.
    """
    return f"{value:.{digits}f}"


def two_digits(value: float) -> str:
    """Return a similarity with two digits, ``-`` for NaN; never ``-0.00``."""
    return "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"


def short_share(value: float) -> str:
    """Return a share in at most three characters, as papers do: ``.88``, ``1.0``."""
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0") else text[:3]


def signed(value: float, digits: int = 3) -> str:
    """Return a difference with its sign, using a real minus: ``+0.012``.

    Args:
        value: Difference of two shares.
        digits: Digits after the point.
    """
    text = f"{value:+.{digits}f}"
    return text.replace("-", MINUS)


def interval(figure: Figure, digits: int = 3) -> str:
    """Return the bounds of the Wilson interval: ``0.863`` to ``0.895``.

    Args:
        figure: Accuracy with its interval.
        digits: Digits after the point.
    """
    return f"{share(figure.low, digits)}{DASH}{share(figure.high, digits)}"


def figure_text(figure: Figure) -> str:
    """Return accuracy, interval and count in one line."""
    return f"{share(figure.accuracy)} ({interval(figure)}), {figure.correct:,} of {figure.count:,} right"


def metric_text(figure: MetricFigure) -> str:
    """Return a figure of a metric in one line: ``0.8123, higher is better, of 500 images; metric confidence``."""
    texts = (
        []
        if figure.value is None
        else [f"{figure.value:.4g}" + (f" {figure.unit}" if figure.unit != "1" else "")]
    )
    texts += [f"{figure.direction} is better"] if figure.direction != "none" and texts else []
    texts += [f"of {figure.count:,} images"] if texts else []
    texts += [] if figure.status == "ok" else [f"{figure.status}: {figure.reason}"]
    return visible(f"{', '.join(texts)}; metric {figure.metric} of {figure.plugin}")


def setting_text(value: Any) -> str:
    """Return a setting for display: short digests, rounded floats, mappings on one line."""
    if isinstance(value, str):
        front, colon, last = value.rpartition(":")
        if colon and len(last) == 64 and all(digit in "0123456789abcdef" for digit in last):
            value = f"{front}:{last[:SHORT_DIGEST]}…"
        return visible(value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{setting_name(str(key))} {setting_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(setting_text(item) for item in value)
    return str(value)


def setting_name(name: str) -> str:
    """Return a setting's name for display: ``batch size`` for ``batch_size``; stored keys by today's names."""
    return STORED_NAMES.get(name) or visible(name.replace("_", " "))


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return all conditions on one line: ``bn_policy batch, batch size 256, seed 0``."""
    return ", ".join(f"{name} {text}" for name, text in conditions(settings))


def conditions(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each setting, without counts of stored and newly measured cells."""
    return [
        (setting_name(name), setting_text(value))
        for name, value in settings.items()
        if name not in COUNT_SETTINGS
    ]


def evidence_rows(cell: Cell) -> list[tuple[str, str]]:
    """Return label and text of every result of a cell, the most important first."""
    rows: list[tuple[str, str]] = []
    if cell.restricted is not None:
        rows.append(("Accuracy, common classes", figure_text(cell.restricted)))
    if cell.unrestricted is not None:
        rows.append(("Accuracy, all outputs", figure_text(cell.unrestricted)))
    if cell.chance is not None:
        rows.append(("Chance", f"{share(cell.chance)}, the most frequent common class"))
    if cell.bound is not None:
        rows.append(("Bound", f"{figure_text(cell.bound)}, with the extractor's own head"))
    if cell.recovered is not None:
        rows.append(("Recovered", f"{share(cell.recovered)} of the way from chance to the bound"))
    if cell.difference is not None:
        low, high = cell.difference
        rows.append(("Difference to the bound", f"{signed(low)} to {signed(high)}, paired 95 % interval"))
    if cell.common:
        rows.append((f"Common classes ({len(cell.common)})", visible(", ".join(cell.common))))
    rows += [(visible(figure.name), metric_text(figure)) for figure in cell.metrics]
    rows.append(("Wiring", visible(cell.wiring.replace("-", " "))))
    rows.append(("Promise", visible(cell.promise.replace("-", " "))))
    return rows
