"""Fill a matrix from evidence, and measure what is missing.

A cell is taken from evidence if there is a result under exactly the requested conditions; this needs no network. The
rest is measured as ``fill`` allows, and recorded extractor by extractor, so that an interrupted run loses at most the
current one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.images import OR_SET, check_tests, held_out, images_again
from compatkit.components.loading import PartLoader
from compatkit.components.matrices.bounds import bounds_of
from compatkit.components.matrices.cells import STATES, Pairs
from compatkit.components.matrices.filters import parse
from compatkit.components.matrices.metrics import MatrixMetrics
from compatkit.components.matrices.recorded import Pair, recorded_cells
from compatkit.contracts.evidence import Cell
from compatkit.contracts.kinds import HEADS
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Progress
from compatkit.evaluation.records import keep
from compatkit.foundation.limits import OneOf
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

if TYPE_CHECKING:
    from compatkit.data.split import Split
    from compatkit.evaluation.matrix import Adapters
    from compatkit.evaluation.pair_metrics import PairMetric

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
    metrics: Any = (),
) -> Matrix:
    """Return the accuracy of every extractor with every head; see ``Registry.matrix``."""
    if data is not None:
        check_tests(data)
    filters = parse(where)
    OneOf(STATES).check("matrix", fill=fill)
    asked = _asked(metrics)
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
    plugins = MatrixMetrics.recorded(
        store, asked, lefts, rights, recorded.images, conditions, bounds=bounds, between=adapter_descriptions
    )
    pairs = Pairs(lefts, rights, recorded, filters, plugins)
    if tests and (todo := pairs.wanted(fill)):
        if launcher.here:
            _measure(store, pairs, todo, bounds, tests, conditions, adapters, record, progress)
        else:
            _launch(store, pairs, todo, bounds, tests, conditions, adapters, record, progress, launcher)
    plugins.warn(stacklevel=4)
    return pairs.matrix(conditions, fill)


def _asked(metrics: Any) -> Sequence[PairMetric]:
    """Return the metrics that were asked for; without any, nothing is imported."""
    if isinstance(metrics, tuple | list | Mapping) and not metrics:
        return ()
    from compatkit.evaluation.pair_metrics import pair_metrics

    return pair_metrics(metrics)


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
        store,
        lefts,
        rights,
        pairs.todo,
        pairs.standing,
        own,
        tests,
        conditions,
        adapters,
        record,
        launcher,
        take,
        progress,
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
            recording = keep(store, parts.values(), pairs.new(row)) and all(
                pairs.metrics.keep(store, cell, pairs.todo.get((cell.extractor, cell.head), ()))
                for cell in row
            )

    measure(
        lefts,
        rights,
        {component.reference: tests[component.reference] for component in lefts},
        attrs.evolve(conditions, device=device),
        adapters=adapters,
        only=set(todo),
        bounds=own,
        metrics=pairs.todo,
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
