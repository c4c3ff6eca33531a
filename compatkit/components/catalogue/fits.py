"""Which parts fit a component, by kept results: a table, a small matrix, and the stage in one word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compatkit.components.catalogue.results import KeptResult
from compatkit.components.catalogue.snapshot import Snapshot
from compatkit.components.catalogue.texts import line, rows_of
from compatkit.contracts.evidence import METRIC, METRIC_VERSION
from compatkit.contracts.kinds import EXTRACTORS, HEADS
from compatkit.registry.index.search import SearchResult
from compatkit.reports import wording
from compatkit.reports.contracts import short_digest

STAGES = ("perfect", "compatible", "weak", "undecided", "chance", "own", "promised", "missing")
"""Stages of fit, the strongest evidence first: grades of ``wording``."""
MAX_ROWS, MAX_SIDE = 500, 12
"""Limits of the table, and of the sides of the small matrix."""
_WORDS = {"missing": "not measured", "own": "own network only"}


def stages() -> list[tuple[str, str, str]]:
    """Return word, mark and meaning of each stage, in order."""
    words = [wording.VERDICTS[key] for key in STAGES]
    return [(_WORDS.get(word.key, word.word), word.mark, word.meaning) for word in words]


def stage(snapshot: Snapshot, version: SearchResult) -> int:
    """Return the strongest stage of fit that kept results show of a component, as its number in ``STAGES``.

    A result with the extractor that a head was trained with counts only if there is no other; without results, a shared
    auxiliary head promises that the part fits those of the other kind.
    """
    facts = snapshot.readings.facts(version.digest)
    keys = {_key(kept) for kept in snapshot.results.of(facts.function)}
    others = [key for key in STAGES[:5] if key in keys]
    if others or "own" in keys:
        return STAGES.index(others[0] if others else "own")
    wanted = HEADS if version.kind in EXTRACTORS else EXTRACTORS if version.kind in HEADS else ()
    promised = any(snapshot.shared[anchor] & {*wanted} for anchor in facts.shared)
    return STAGES.index("promised" if promised else "missing")


def evidence(snapshot: Snapshot, version: SearchResult) -> dict[str, Any]:
    """Return the kept results of a component as a table and a small matrix.

    Args:
        snapshot: The registry.
        version: The component.

    Returns:
        ``rows``: partner, its address, and the texts of the figures, the best accuracy first; ``more``: number of rows
        left out; ``matrix``: the newest figures of its neighbors, or None.
    """
    function = snapshot.readings.facts(version.digest).function
    results = sorted(
        snapshot.results.of(function),
        key=lambda kept: (-_accuracy(kept), kept.extractor, kept.head, kept.digest),
    )
    rows = [_row(snapshot, kept, function) for kept in results[:MAX_ROWS]]
    return {"rows": rows, "more": len(results) - len(rows), "matrix": _matrix(snapshot, results, function)}


def _accuracy(kept: KeptResult) -> float:
    return kept.cell.restricted.accuracy if kept.cell.restricted is not None else 0.0


def _key(kept: KeptResult) -> str:
    """Return the verdict on a result: ``own`` for the extractor's own head, ``stale`` for another metric's version."""
    settings = kept.cell.settings
    if settings.get("metric") == METRIC and settings.get("metric_version") != METRIC_VERSION:
        return "stale"
    return wording.verdict(kept.cell).key


def _row(snapshot: Snapshot, kept: KeptResult, function: str) -> list[Any]:
    cell, word = kept.cell, wording.VERDICTS[_key(kept)]
    name, address = _name(snapshot, kept.partner(function))
    figure, bound = cell.restricted, cell.bound
    return [
        name,
        address,
        word.key,
        word.mark,
        word.word,
        "" if figure is None else wording.share(figure.accuracy),
        "" if figure is None else wording.interval(figure),
        "" if figure is None else f"{figure.count:,}",
        "" if cell.chance is None else wording.share(cell.chance),
        "" if bound is None else wording.share(bound.accuracy),
        "" if cell.recovered is None else wording.share(cell.recovered),
        line(str(cell.settings.get("data", ""))),
        line(str(cell.settings.get("policy", ""))),
        rows_of(_conditions(cell.settings) | {"result": kept.digest}),
    ]


def _conditions(settings: Mapping[str, Any]) -> dict[str, str]:
    left_out = ("data", "policy", "own", "metric_version")
    conditions = {key: value for key, value in settings.items() if key not in left_out}
    conditions["metric"] = f"{settings.get('metric')} {settings.get('metric_version')}"
    return {wording.setting_name(name): wording.setting_text(value) for name, value in conditions.items()}


def _name(snapshot: Snapshot, function: str) -> tuple[str, str]:
    """Return name and address of the part with a function; a short digest without one."""
    place = snapshot.of_function(function)
    return (short_digest(function), "") if place is None else (str(place), str(place))


def _matrix(snapshot: Snapshot, results: Sequence[KeptResult], function: str) -> dict[str, Any] | None:
    """Return the newest figures of a component with its partners, and of the parts measured with the same partners."""
    kept, side = snapshot.results, "extractor" if function in snapshot.results.by_extractor else "head"
    partners = list(dict.fromkeys(one.partner(function) for one in results))[:MAX_SIDE]
    if not partners:
        return None
    others = kept.by_head if side == "extractor" else kept.by_extractor
    counts = Counter(
        one.partner(partner)
        for partner in partners
        for one in {one.partner(partner): one for one in others.get(partner, ())}.values()
    )
    neighbors = sorted((one for one in counts if one != function), key=lambda one: (-counts[one], one))
    mine = [function, *neighbors[: MAX_SIDE - 1]]
    extractors, heads = (mine, partners) if side == "extractor" else (partners, mine)
    cells = [[_cell(kept.newest.get((row, column))) for column in heads] for row in extractors]
    names = [[_name(snapshot, part) for part in parts] for parts in (extractors, heads)]
    return {"extractors": names[0], "heads": names[1], "cells": cells, "side": side}


def _cell(kept: KeptResult | None) -> list[Any] | None:
    """Return accuracy, mark, word and shade of a cell."""
    if kept is None or kept.cell.restricted is None:
        return None
    word, accuracy = wording.VERDICTS[_key(kept)], kept.cell.restricted.accuracy
    return [
        wording.short_share(accuracy),
        word.mark,
        word.word,
        round(10 * min(1.0, max(0.0, accuracy))),
        word.key,
    ]
