"""Fill a matrix from evidence, and measure what is missing.

A cell is taken from evidence if there is a result under exactly the requested conditions; this needs no network. The
rest is measured as ``fill`` allows, and recorded extractor by extractor, so that an interrupted run loses at most the
current one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.images import OR_SET, check_tests, held_out, images_again
from compatkit.components.loading import PartLoader
from compatkit.components.matrices.bounds import bounds_of
from compatkit.components.matrices.filters import Filter, first_mismatch, parse
from compatkit.components.matrices.recorded import Pair, PairQuery, RecordedCells, recorded_cells
from compatkit.contracts import evidence as metric
from compatkit.contracts.contract import HEADS
from compatkit.contracts.evidence import ADAPTED, STATE, Cell
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Progress
from compatkit.evaluation.prospect import Prospect, notes_of, prospect
from compatkit.evaluation.records import keep
from compatkit.foundation.limits import OneOf
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

if TYPE_CHECKING:
    from compatkit.data.split import Split
    from compatkit.evaluation.matrix import Adapters

STATES = {
    "missing": ("missing",),
    "stale": ("missing", "stale"),
    "all": ("missing", "stale", "measured"),
    "none": (),
}
"""States of cells to measure, by ``fill``."""
DETAILED = 2500
"""Maximum number of pairs for which cells list the findings of their check."""
FIGURES = ("grade", "restricted", "unrestricted", "chance", "bound", "recovered", "difference")
MISSING = "nothing is recorded under these conditions; use fill to measure it"
MAX_NAMED = 3
"""Maximum number of pairs with differing figures that a warning names."""


def matrix(
    store: Store,
    extractors: str | Sequence[str],
    heads: str | Sequence[str],
    data: Sequence[Split] | Mapping[str, Split] | None,
    conditions: Conditions,
    where: str | Sequence[str],
    fill: str,
    adapters: Adapters,
    record: bool,
    progress: Progress | None,
    launcher: Launcher,
) -> Matrix:
    """Return the accuracy of every extractor with every head; see ``Registry.matrix``."""
    if data is not None:
        check_tests(data)
    filters = parse(where)
    OneOf(STATES).check("matrix", fill=fill)
    parts = PartLoader(store)
    lefts = chosen(parts, extractors, "extractor")
    rights = chosen(parts, heads, "head")
    bounds = bounds_of(parts, lefts, rights)
    tests: dict[str, Split] = {}
    if data is not None:
        tests = {extractor.reference: held_out(extractor, data) for extractor in lefts}
    elif fill != "none":
        again = images_again(store, [extractor.resolved for extractor in lefts], f"Pass data=, {OR_SET}")
        tests = {reference: data_set.test for reference, data_set in again.items()}
    images = {reference: ImageFacts.of(split) for reference, split in tests.items()} if tests else None
    adapter_descriptions = {
        pair: [(adapter.function, str(adapter)) for adapter in steps] for pair, steps in adapters.items()
    }
    recorded = recorded_cells(
        store, lefts, rights, images, conditions, bounds=bounds, between=adapter_descriptions
    )
    pairs = Pairs(lefts, rights, recorded, filters)
    if tests and (todo := pairs.wanted(fill)):
        if launcher.here:
            _measure(store, pairs, todo, bounds, tests, conditions, adapters, record, progress)
        else:
            _launch(store, pairs, todo, bounds, tests, conditions, adapters, record, progress, launcher)
    return pairs.matrix(conditions, fill)


def chosen(parts: PartLoader, wanted: str | Sequence[str], kind: str) -> list[Component]:
    """Return the components that patterns match, each once.

    Args:
        parts: Components of the registry.
        wanted: Pattern, or patterns; patterns skip components of other kinds. An auxiliary head counts as a head only
            if named without a pattern: a pattern would also match heads that classify rotations.
        kind: ``"extractor"`` or ``"head"``.

    Raises:
        NotFound: A pattern matches nothing of this kind.
        UsageError: A reference that is not a pattern has another kind.
    """
    components: dict[str, Component] = {}
    for component in parts.choose(wanted, (kind,), HEADS if kind == "head" else (kind,)):
        components.setdefault(component.digest, component)
    return list(components.values())


def _launch(
    store: Store,
    pairs: Pairs,
    todo: Sequence[Pair],
    bounds: Mapping[str, Component],
    tests: Mapping[str, Split],
    conditions: Conditions,
    adapters: Adapters,
    record: bool,
    progress: Progress | None,
    launcher: Launcher,
) -> None:
    """Measure pairs in other processes, which record the results; warn of cells that could not be measured."""
    from compatkit.components.matrices.workers import measure_in_workers

    lefts, rights, own = pairs.parts_of(todo, bounds)
    differing = list[str]()

    def take(cells: Sequence[Cell]) -> None:
        differing.extend(filter(None, map(pairs.take, cells)))

    lost, notes = measure_in_workers(
        store, lefts, rights, todo, own, tests, conditions, record, launcher, take, progress
    )
    for note in notes:
        warnings.warn(note, stacklevel=4)
    for row in lost:
        pairs.lose(row.extractor, row.heads, row.reason)
        warnings.warn(
            f"{row.extractor} was not measured with {', '.join(row.heads)}: {row.reason}", stacklevel=4
        )
    if differing:
        _warn(differing)


def _measure(
    store: Store,
    pairs: Pairs,
    todo: Sequence[Pair],
    bounds: Mapping[str, Component],
    tests: Mapping[str, Split],
    conditions: Conditions,
    adapters: Adapters,
    record: bool,
    progress: Progress | None,
) -> None:
    """Measure pairs and record the results, extractor by extractor."""
    from compatkit.evaluation.matrix import measure
    from compatkit.training.precision import Precision

    device = Precision.choose(conditions.device, "float32", None).device
    lefts, rights, own = pairs.parts_of(todo, bounds)
    parts = {component.reference: component for component in (*lefts, *rights, *own.values())}
    for component in parts.values():
        _ = component.module  # find damaged parts before anything runs
    recording, differing = record, list[str]()

    def each(row: list[Cell]) -> None:
        nonlocal recording
        differing.extend(filter(None, map(pairs.take, row)))
        if recording:
            recording = keep(store, parts.values(), row)

    measure(
        lefts,
        rights,
        {component.reference: tests[component.reference] for component in lefts},
        attrs.evolve(conditions, device=device),
        adapters=adapters,
        only=set(todo),
        bounds=own,
        each=each,
        progress=progress,
    )
    if differing:
        _warn(differing)


def _warn(differing: Sequence[str]) -> None:
    more = len(differing) - MAX_NAMED
    listed = [*differing[:MAX_NAMED], *([f"and {more:,} more"] if more > 0 else [])]
    warnings.warn(
        "New figures differ from those recorded under the same key: "
        + "; ".join(listed)
        + ". Device, threads and torch version are not part of the key. Both results are stored; the newer one is "
        "shown.",
        stacklevel=5,
    )


@attrs.define(eq=False)
class Pairs:
    """All pairs of a matrix with their cells: from evidence, just measured, or without a figure.

    Attributes:
        lefts: Extractors, the rows.
        rights: Heads, the columns.
        recorded: Cells recorded before.
        filters: Filters of cells.
        cells: Cells by pair.
        done: Pairs measured by this call.
        failed: Pairs that this call could not measure.
    """

    lefts: Sequence[Component]
    rights: Sequence[Component]
    recorded: RecordedCells
    filters: Sequence[Filter]
    cells: dict[Pair, Cell] = attrs.field(init=False, factory=dict)
    done: set[Pair] = attrs.field(init=False, factory=set)
    failed: set[Pair] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        detailed = len(self.lefts) * len(self.rights) <= DETAILED
        for left in self.lefts:
            for right in self.rights:
                pair = left.reference, right.reference
                cell = self.recorded.cells.get(pair)
                if cell is None:
                    cell = _without_figure(
                        left, right, self.recorded.images[left.reference], self.recorded.queries[pair]
                    )
                elif detailed:
                    cell = self._with_findings(cell, left, right)
                self.cells[pair] = self._filtered(cell, before=True)

    def wanted(self, fill: str) -> list[Pair]:
        """Return the pairs to measure."""
        return [pair for pair, cell in self.cells.items() if cell.state in STATES[fill]]

    def parts_of(
        self, todo: Sequence[Pair], bounds: Mapping[str, Component]
    ) -> tuple[list[Component], list[Component], dict[str, Component]]:
        """Return the extractors and heads of some pairs, and the heads that give the bounds of these extractors."""
        rows, columns = {left for left, _ in todo}, {right for _, right in todo}
        lefts = [component for component in self.lefts if component.reference in rows]
        rights = [component for component in self.rights if component.reference in columns]
        names = [component.reference for component in lefts]
        return lefts, rights, {name: bounds[name] for name in names if name in bounds}

    def lose(self, extractor: str, heads: Sequence[str], reason: str) -> None:
        """Note why missing cells could not be measured; stale ones keep their figures."""
        for head in heads:
            cell = self.cells[extractor, head]
            self.failed.add((extractor, head))
            if cell.state == "missing":
                self.cells[extractor, head] = attrs.evolve(cell, reason=reason)

    def take(self, cell: Cell) -> str:
        """Store a new cell; return how it differs from one recorded under the same key, or empty."""
        pair = cell.extractor, cell.head
        before = self.recorded.cells.get(pair)
        if pair in self.cells:
            self.cells[pair] = cell
            if cell.restricted is not None:
                self.done.add(pair)
        if before is None or before.grade == "stale" or before.restricted is None or cell.restricted is None:
            return ""
        if all(getattr(before, name) == getattr(cell, name) for name in FIGURES):
            return ""
        return (
            f"{cell.extractor} with {cell.head} was {before.restricted.accuracy:.4f} and is "
            f"{cell.restricted.accuracy:.4f}"
        )

    def matrix(self, conditions: Conditions, fill: str) -> Matrix:
        """Return the matrix without rows and columns whose cells are all left out."""
        shown = {
            pair: cell if cell.state == "left-out" else self._filtered(cell, before=False)
            for pair, cell in self.cells.items()
        }
        lefts, rights = self.lefts, self.rights
        if self.filters:
            remaining = [pair for pair, cell in shown.items() if cell.state != "left-out"]
            rows, columns = {left for left, _ in remaining}, {right for _, right in remaining}
            lefts = [component for component in lefts if component.reference in rows]
            rights = [component for component in rights if component.reference in columns]
        pairs = [(left.reference, right.reference) for left in lefts for right in rights]
        first, second = (tuple(component.described() for component in side) for side in (lefts, rights))
        chosen = {pair: shown[pair] for pair in pairs}
        return Matrix(first, second, tuple(chosen.values()), self._settings(conditions, fill, chosen))

    def _filtered(self, cell: Cell, *, before: bool) -> Cell:
        text = first_mismatch(self.filters, cell, before=before)
        return cell.left_out(f"does not fit {text}") if text else cell

    def _settings(self, conditions: Conditions, fill: str, cells: Mapping[Pair, Cell]) -> dict[str, Any]:
        """Return the settings shared by all cells, and the numbers of cells by state."""
        states = Counter(cell.state for cell in cells.values())
        now = sum(cells[pair].state == "measured" for pair in self.done if pair in cells)
        counts = {"taken": states["measured"] - now, "measured": now}
        counts |= {name: states[name] for name in ("stale", "missing", "barred", "left-out") if states[name]}
        counts |= {"failed": len(self.failed & cells.keys())} if self.failed else {}
        settings: dict[str, Any] = {
            "metric": f"{metric.METRIC} {metric.METRIC_VERSION}",
            "normalisation": conditions.bn_policy,
            "batch_size": conditions.batch_size,
            "seed": conditions.seed,
            "precision": conditions.precision,
            "fill": fill,
            "cells": counts,
        }
        return settings | ({"where": [item.text for item in self.filters]} if self.filters else {})

    def _with_findings(self, cell: Cell, left: Component, right: Component) -> Cell:
        images = self.recorded.images[left.reference]
        forecast = _prospect(left, right, images, cell.settings)
        return attrs.evolve(
            cell,
            findings=(*notes_of(forecast, cell.settings, figures=cell.state == "measured"), *cell.findings),
        )


def _prospect(left: Component, right: Component, images: ImageFacts, settings: Mapping[str, Any]) -> Prospect:
    own, adapted = right.is_own(left), ADAPTED in settings
    return prospect(left.manifest, right.manifest, images, own=own, adapted=adapted)


def _without_figure(left: Component, right: Component, images: ImageFacts, query: PairQuery) -> Cell:
    """Return the cell of a pair without results: missing, or barred with the reason."""
    forecast = _prospect(left, right, images, query.settings)
    settings: dict[str, Any] = query.settings | {"own": right.is_own(left)}
    return Cell(
        left.reference,
        right.reference,
        forecast.report.wiring,
        forecast.report.promise,
        "none",
        common=forecast.common,
        settings=settings if forecast.reason else settings | {STATE: "missing"},
        findings=notes_of(forecast, settings, figures=False),
        reason=forecast.reason or MISSING,
    )
