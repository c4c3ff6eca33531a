"""Measure the cells of a matrix in other processes; one that dies costs at most the cell that killed it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.matrices.jobs import RowAnswer, RowJob, blocks, work
from compatkit.components.workers.adapters import handed_adapters
from compatkit.components.workers.carrying import carry_out, check_shared, names_of, reference_of
from compatkit.components.workers.handing import handed_over
from compatkit.contracts.evidence import Cell
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, Progress
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.matrices.recorded import Pair
    from compatkit.data.split import Split
    from compatkit.evaluation.matrix import Adapters
    from compatkit.evaluation.pair_metrics import PairMetric


@attrs.frozen
class Lost:
    """Cells that no process could measure.

    Attributes:
        extractor: Reference.
        heads: References.
        reason: Error of the measurement, or how the process ended.
    """

    extractor: str
    heads: tuple[str, ...]
    reason: str


def measure_in_workers(
    store: Store,
    lefts: Sequence[Component],
    rights: Sequence[Component],
    todo: Mapping[Pair, Sequence[PairMetric]],
    standing: Collection[Pair],
    bounds: Mapping[str, Component],
    tests: Mapping[str, Split],
    conditions: Conditions,
    adapters: Adapters,
    record: bool,
    launcher: Launcher,
    take: Callable[[Sequence[Cell]], None],
    progress: Progress | None,
) -> tuple[list[Lost], list[str]]:
    """Measure pairs in the processes of a launcher, a row or a block of one at a time.

    Args:
        store: Registry, which all processes see at the same path.
        lefts: Extractors.
        rights: Heads.
        todo: Metrics to measure, by pair to measure.
        standing: Pairs of which the accuracy is recorded already, and is not recorded again.
        bounds: Head that gives the upper bound, by reference of the extractor.
        tests: Test images by reference of the extractor.
        conditions: Conditions of all cells.
        adapters: Adapters by pair.
        record: Whether the processes record cells as evidence.
        launcher: Where jobs are carried out.
        take: Called with the cells of a job when it ends.
        progress: Called with cells done, all cells, and the extractor.

    Returns:
        Cells that could not be measured, and warnings of the processes.

    Raises:
        UsageError: The registry is a remote.
        SignatureError: A part lacks a required signature.
        EnvironmentFailure: A process does not see the registry.
    """
    parts = {part.reference: part for part in (*lefts, *rights, *bounds.values())}
    check_shared(store, parts.values())
    lost = list[Lost]()

    def answered(job: RowJob, answer: RowAnswer) -> None:
        if answer.error:
            lost.append(Lost(job.label, tuple(map(reference_of, job.heads)), answer.error))
        take(answer.cells)

    root = store.root.absolute()
    with (
        handed_over(root, [tests[left.reference] for left in lefts]) as files,
        handed_adapters(root, {pair: adapters[pair] for pair in todo if pair in adapters}) as between,
    ):
        jobs = [
            RowJob(
                registry=str(root),
                images=files[tests[left.reference].digest],
                extractor=names_of(left),
                heads=tuple(map(names_of, block)),
                bound=None if left.reference not in bounds else names_of(bounds[left.reference]),
                conditions=attrs.asdict(conditions),
                record=record,
                metrics=_metrics_of(
                    [metric for head in block for metric in todo[left.reference, head.reference]]
                ),
                standing=tuple(
                    head.reference for head in block if (left.reference, head.reference) in standing
                ),
                adapters=between.get(left.reference, ""),
            )
            for left in lefts
            for block in blocks(
                [right for right in rights if (left.reference, right.reference) in todo],
                len(lefts),
                launcher.workers or 1,
            )
        ]
        notes = carry_out(jobs, work, RowAnswer, launcher, answered, progress)
    return lost, notes


def _metrics_of(metrics: Sequence[PairMetric]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return names and settings of metrics, each once."""
    distinct = {metric.key: metric for metric in metrics}
    return tuple((metric.name, dict(metric.settings)) for metric in distinct.values())
