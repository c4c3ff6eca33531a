"""Look up the recorded results of each pair under the requested conditions: measured, stale, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.components.images import family_of, trained_on
from compatkit.components.matrices.bounds import OwnHead
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
from compatkit.evaluation.prospect import have_batch_norm, promise
from compatkit.evaluation.records import Cells, is_accuracy
from compatkit.registry.evidence import StoredResult
from compatkit.registry.store import Store

Pair = tuple[str, str]
"""References of extractor and head."""
Between = Mapping[Pair, Sequence[tuple[str, str]]]
"""Function digest and description of each adapter of a pair."""
UNKNOWN = "unknown"


@attrs.frozen(eq=False)
class PairQuery:
    """A query for pairs with the same settings: the exact key, and the question, which also matches stale results.

    Attributes:
        settings: Settings of a cell.
        cells: Reader of stored results.
        own: Head that gives the upper bound, if any.
    """

    settings: Settings
    cells: Cells
    own: OwnHead | None = None
    key: dict[str, Any] = attrs.field(
        init=False, default=attrs.Factory(lambda self: key_of(self.settings), takes_self=True)
    )
    question: tuple[Any, ...] = attrs.field(
        init=False, default=attrs.Factory(lambda self: question_of(self.settings), takes_self=True)
    )
    _reasons: dict[tuple[int, int], str | None] = attrs.field(init=False, factory=dict)

    def newest(self, results: Sequence[StoredResult], extractor: Component, head: Component) -> Cell | None:
        """Return the newest result for exactly these conditions, else for the same question, else None.

        Args:
            results: Results of one pair, oldest first.
            extractor: Extractor of the pair.
            head: Head of the pair.
        """
        stale: tuple[StoredResult, str] | None = None
        fresh: list[StoredResult] = []
        for result in reversed(results):
            try:
                reason = self.match(result)
            except FormatError as error:
                self.cells.leave_out(extractor.reference, head.reference, error)
                continue
            if reason == "":
                fresh.append(result)
            elif reason is not None and stale is None:
                stale = result, reason
        for result in fresh:
            cell = self._cell(result, extractor, head)
            if cell is not None:
                note = differing(fresh)
                return attrs.evolve(cell, findings=(*cell.findings, note)) if note else cell
        cell = None if stale is None else self._cell(stale[0], extractor, head)
        return None if cell is None or stale is None else attrs.evolve(cell, grade="stale", reason=stale[1])

    def _cell(self, result: StoredResult, extractor: Component, head: Component) -> Cell | None:
        own = head.is_own(extractor)
        pair = extractor.reference, head.reference
        promised = promise(extractor.anchors, head.anchors, own=own)
        try:
            cell = self.cells.of(result, *pair, promise=promised, own=own)
        except FormatError as error:
            self.cells.leave_out(*pair, error)
            return None
        return cell if self.own is None else self.own.checked(cell)

    def match(self, result: StoredResult) -> str | None:
        """Return ``""`` for a result under these conditions, the reason if it is stale, None for another question."""
        key = id(result.settings), id(result.conditions)
        if key not in self._reasons or result.error:
            settings = self.cells.settings(result)
            if is_kept(self.key, result.conditions):
                self._reasons[key] = ""
            elif question_of(settings) == self.question:
                self._reasons[key] = stale_reason(self.key, result.conditions, settings)
            else:
                self._reasons[key] = None
        return self._reasons[key]


@attrs.frozen(eq=False)
class RecordedCells:
    """Recorded cells by pair, and the query for each pair.

    Attributes:
        cells: Cells with figures; a stale one has its grade and the reason.
        queries: Queries by pair.
        images: Images by reference of the extractor; without counts if not available.
    """

    cells: dict[Pair, Cell] = attrs.field(factory=dict)
    queries: dict[Pair, PairQuery] = attrs.field(factory=dict)
    images: dict[str, ImageFacts] = attrs.field(factory=dict)


def recorded_cells(
    store: Store,
    extractors: Sequence[Component],
    heads: Sequence[Component],
    images: Mapping[str, ImageFacts] | None,
    conditions: Conditions,
    *,
    bounds: Mapping[str, Component],
    between: Between,
) -> RecordedCells:
    """Return the recorded cells of all pairs; damaged results are left out with a warning.

    Args:
        store: Store of the registry.
        extractors: Rows of the matrix.
        heads: Columns of the matrix.
        images: Images by reference of the extractor; None uses the images of each row's last measurement.
        conditions: Conditions of all cells.
        bounds: Head that gives the upper bound, by reference of the extractor.
        between: Adapters of the pairs that have any.

    Raises:
        DataError: ``images`` is None, and an extractor was measured on several data sets but trained on none of them.
        IntegrityError: A folder of the registry is a symbolic link.
    """
    rows: dict[str, dict[str, list[StoredResult]]] = {}
    for result in store.evidence.results(
        [part.function for part in extractors], [part.function for part in heads]
    ):
        rows.setdefault(result.extractor, {}).setdefault(result.head, []).append(result)
    recorded, cells = RecordedCells(), Cells()
    for extractor in extractors:
        row = rows.get(extractor.function, {})
        if images is not None:
            images_of_row = images[extractor.reference]
        else:
            images_of_row = _last_images(
                extractor, [result for head in heads for result in row.get(head.function, ())], cells
            )
        recorded.images[extractor.reference] = images_of_row
        head_of_bound = bounds.get(extractor.reference)
        bound = "" if head_of_bound is None else head_of_bound.function
        own = None if head_of_bound is None else OwnHead(head_of_bound)
        shared: dict[bool, PairQuery] = {}  # queries shared by the pairs of a row
        for head in heads:
            pair = extractor.reference, head.reference
            batch_norm, adapters = have_batch_norm(extractor.manifest, head.manifest), between.get(pair, ())
            query = None if adapters else shared.get(batch_norm)
            if query is None:
                settings = conditions.settings(
                    images=images_of_row, batch_norm=batch_norm, bound=bound, adapters=adapters
                )
                query = PairQuery(settings, cells, own)
                if not adapters:
                    shared[batch_norm] = query
            recorded.queries[pair] = query
            if results := row.get(head.function):
                cell = query.newest(results, extractor, head)
                if cell is not None:
                    recorded.cells[pair] = cell
    cells.warn(stacklevel=5)
    return recorded


def differing(results: Sequence[StoredResult]) -> str:
    """Describe how results under one key differ; empty if they do not.

    They may differ by machine: device, threads or version of torch.
    """
    if all(result.figures == results[0].figures for result in results[1:]):
        return ""
    accuracies = sorted(result.figures["restricted"][0] for result in results)
    return (
        f"{len(results)} results are stored under this key, and they differ: accuracy {accuracies[0]:.4f} to "
        f"{accuracies[-1]:.4f}; the newest is shown."
    )


def _last_images(extractor: Component, results: Sequence[StoredResult], cells: Cells) -> ImageFacts:
    """Return the images of an extractor's last measurement: of its training data set, or of the only data set.

    Raises:
        DataError: It was measured on several data sets and trained on none of them.
    """
    names: dict[str, ImageFacts] = {}
    for result in filter(is_accuracy, results):
        try:
            settings = cells.settings(result)
        except FormatError:
            continue  # reported when the pair itself is looked up
        if not settings.get(FUNCTIONS):
            name, sample = settings["data"], bool(settings.get(SAMPLE))
            if name not in names or not sample or names[name].sample:  # prefer all images to a sample
                names[name] = ImageFacts(name, settings["data_digest"], settings["images"], sample=sample)
    family = trained_on(extractor.manifest)
    matches = [images for name, images in names.items() if family_of(name) == family] or list(names.values())
    if len(matches) > 1:
        raise DataError(
            f"{extractor.reference} was measured on {', '.join(sorted(names))}, but trained on "
            f"{family or 'none of them'}: select the images (data=, or --data NAME).",
            subject=extractor.reference,
        )
    return matches[0] if matches else ImageFacts(family or UNKNOWN, "", 1)
