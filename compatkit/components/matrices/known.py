"""Look up evidence of every pair under given conditions: measured, stale, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.components.images import family_of, trained_on
from compatkit.contracts.evidence import Cell
from compatkit.errors import DataError, FormatError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import (
    FUNCTIONS,
    SAMPLE,
    Conditions,
    ImageFacts,
    Settings,
    is_kept,
    key_of,
    question_of,
    stale_reason,
)
from compatkit.evaluation.planning import is_normalised, promise
from compatkit.evaluation.records import Cells
from compatkit.registry.evidence import StoredResult
from compatkit.registry.store import Store

Pair = tuple[str, str]
"""References of extractor and head."""
Between = Mapping[Pair, Sequence[tuple[str, str]]]
"""Function digest and words of each adapter that stands between a pair."""
UNKNOWN = "unknown"


@attrs.frozen(eq=False)
class PairQuery:
    """What is asked of pairs with these settings: their key, and the question without what may change.

    Attributes:
        settings: That a cell would have.
        cells: Reads results.
    """

    settings: Settings
    cells: Cells
    key: dict[str, Any] = attrs.field(
        init=False, default=attrs.Factory(lambda self: key_of(self.settings), takes_self=True)
    )
    question: tuple[Any, ...] = attrs.field(
        init=False, default=attrs.Factory(lambda self: question_of(self.settings), takes_self=True)
    )
    _said: dict[tuple[int, int], str | None] = attrs.field(init=False, factory=dict)

    def newest(self, results: Sequence[StoredResult], extractor: Component, head: Component) -> Cell | None:
        """Return the newest result of exactly these conditions, else the newest of the same question, else None.

        Args:
            results: Of one pair, oldest first.
            extractor: Of the pair.
            head: The same.
        """
        stale: tuple[StoredResult, str] | None = None
        fresh: list[StoredResult] = []
        for result in reversed(results):
            try:
                said = self._say(result)
            except FormatError as error:
                self.cells.leave_out(extractor.reference, head.reference, error)
                continue
            if said == "":
                fresh.append(result)
            elif said is not None and stale is None:
                stale = result, said
        for result in fresh:
            cell = self._cell(result, extractor, head)
            if cell is not None:
                note = differing(fresh)
                return attrs.evolve(cell, findings=(note,)) if note else cell
        cell = None if stale is None else self._cell(stale[0], extractor, head)
        return None if cell is None or stale is None else attrs.evolve(cell, grade="stale", reason=stale[1])

    def _cell(self, result: StoredResult, extractor: Component, head: Component) -> Cell | None:
        own = head.is_own(extractor)
        pair, promised = (
            (extractor.reference, head.reference),
            promise(extractor.anchors, head.anchors, own=own),
        )
        try:
            return self.cells.of(result, *pair, promise=promised, own=own)
        except FormatError as error:
            self.cells.leave_out(*pair, error)
            return None

    def _say(self, result: StoredResult) -> str | None:
        """Return ``""`` for a result of these conditions, why one of this question is stale, None for any other."""
        place = id(result.settings), id(result.conditions)
        if place not in self._said or result.error:
            settings = self.cells.settings(result)
            if is_kept(self.key, result.conditions):
                self._said[place] = ""
            elif question_of(settings) == self.question:
                self._said[place] = stale_reason(self.key, result.conditions, settings)
            else:
                self._said[place] = None
        return self._said[place]


@attrs.frozen(eq=False)
class Known:
    """Cells by pair, as far as results tell, and what was asked of every pair.

    Attributes:
        cells: With figures; a stale one has its grade and the reason.
        asked: By pair.
        images: By the extractor's reference; without counts where they are not at hand.
    """

    cells: dict[Pair, Cell] = attrs.field(factory=dict)
    asked: dict[Pair, PairQuery] = attrs.field(factory=dict)
    images: dict[str, ImageFacts] = attrs.field(factory=dict)


def look(
    store: Store,
    extractors: Sequence[Component],
    heads: Sequence[Component],
    images: Mapping[str, ImageFacts] | None,
    conditions: Conditions,
    *,
    bounds: Mapping[str, Component],
    between: Between,
) -> Known:
    """Return what is kept of every pair; damaged results are left out, with a warning.

    Args:
        store: Where it is kept.
        extractors: Rows.
        heads: Columns.
        images: By the extractor's reference; None takes those that a row was last measured on.
        conditions: Of all cells.
        bounds: Head that gives the bound, by the extractor's reference.
        between: Adapters of pairs that have some.

    Raises:
        DataError: Without ``images``, an extractor was measured on several data sets and trained on none of them.
        IntegrityError: A folder of the registry is a symbolic link.
    """
    rows: dict[str, dict[str, list[StoredResult]]] = {}
    for result in store.evidence.kept([one.function for one in extractors], [one.function for one in heads]):
        rows.setdefault(result.extractor, {}).setdefault(result.head, []).append(result)
    known, cells = Known(), Cells()
    for extractor in extractors:
        row = rows.get(extractor.function, {})
        if images is not None:
            seen = images[extractor.reference]
        else:
            seen = _last_seen(extractor, [one for head in heads for one in row.get(head.function, ())], cells)
        known.images[extractor.reference] = seen
        bound = bounds[extractor.reference].function if extractor.reference in bounds else ""
        shared: dict[bool, PairQuery] = {}  # what all pairs of a row have in common is worked out once
        for head in heads:
            pair = extractor.reference, head.reference
            normalised, adapters = is_normalised(extractor.manifest, head.manifest), between.get(pair, ())
            asked = None if adapters else shared.get(normalised)
            if asked is None:
                settings = conditions.settings(
                    images=seen, normalised=normalised, bound=bound, adapters=adapters
                )
                asked = PairQuery(settings, cells)
                if not adapters:
                    shared[normalised] = asked
            known.asked[pair] = asked
            if results := row.get(head.function):
                cell = asked.newest(results, extractor, head)
                if cell is not None:
                    known.cells[pair] = cell
    cells.warn(stacklevel=5)
    return known


def differing(results: Sequence[StoredResult]) -> str:
    """Return in words how results under one key differ; empty where they do not.

    Figures under one key may differ with the machine: its device, threads or version of torch.
    """
    if all(one.figures == results[0].figures for one in results[1:]):
        return ""
    told = sorted(one.figures["restricted"][0] for one in results)
    return (
        f"{len(results)} results are kept under this key, and they differ: accuracy {told[0]:.4f} to {told[-1]:.4f}; "
        "the newest is shown."
    )


def _last_seen(extractor: Component, results: Sequence[StoredResult], cells: Cells) -> ImageFacts:
    """Return the images that an extractor was last measured on: of its own data set, or of the only one.

    Raises:
        DataError: There are several, and it was trained on none of them.
    """
    names: dict[str, ImageFacts] = {}
    for result in results:
        try:
            settings = cells.settings(result)
        except FormatError:
            continue  # reported where the pair itself is looked at
        if not settings.get(FUNCTIONS):
            name, some = settings["data"], bool(settings.get(SAMPLE))
            if name not in names or not some or names[name].sample:  # all images before any sample
                names[name] = ImageFacts(name, settings["data_digest"], settings["images"], sample=some)
    family = trained_on(extractor.manifest)
    mine = [one for name, one in names.items() if family_of(name) == family] or list(names.values())
    if len(mine) > 1:
        raise DataError(
            f"{extractor.reference} was measured on {', '.join(sorted(names))}, and it was trained on "
            f"{family or 'none of them'}: say on which images it is asked for (data=, or --data NAME).",
            subject=extractor.reference,
        )
    return mine[0] if mine else ImageFacts(family or UNKNOWN, "", 1)
