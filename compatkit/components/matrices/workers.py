"""Measure the cells of a matrix in other processes; one that dies costs at most the cell that killed it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import check_signature
from compatkit.components.matrices.handing import handed_over
from compatkit.components.matrices.jobs import RowAnswer, RowJob, blocks, names_of, reference_of, work
from compatkit.contracts.evidence import Cell
from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, Progress
from compatkit.foundation.cache import mirrored
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.matrices.recorded import Pair
    from compatkit.data.split import Split
    from compatkit.evaluation.pair_metrics import PairMetric

ATTEMPTS = 2
"""Processes that a single cell may kill."""


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
    if (address := mirrored(store.root)) is not None:
        raise UsageError(
            f"{address} is a remote, which workers cannot record results in. Clone it into a folder that they all see, "
            "or measure without workers.",
            subject=address,
        )
    parts = {part.reference: part for part in (*lefts, *rights, *bounds.values())}
    for part in parts.values():
        check_signature(store, part.resolved, False, "auto")
    root = store.root.absolute()
    with handed_over(root, [tests[left.reference] for left in lefts]) as files:
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
            )
            for left in lefts
            for block in blocks(
                [right for right in rights if (left.reference, right.reference) in todo],
                len(lefts),
                launcher.workers or 1,
            )
        ]
        return _carry_out(jobs, launcher, take, progress)


def _metrics_of(metrics: Sequence[PairMetric]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return names and settings of metrics, each once."""
    distinct = {metric.key: metric for metric in metrics}
    return tuple((metric.name, dict(metric.settings)) for metric in distinct.values())


def _carry_out(
    jobs: list[RowJob],
    launcher: Launcher,
    take: Callable[[Sequence[Cell]], None],
    progress: Progress | None,
) -> tuple[list[Lost], list[str]]:
    """Carry out jobs; those with a dead process are divided and carried out again."""
    lost, notes = list[Lost](), list[str]()
    done, total = 0, sum(len(job.heads) for job in jobs)
    waiting = [(job, 1) for job in jobs]
    while waiting:
        again = list[tuple[RowJob, int]]()
        labels = [job.label for job, _ in waiting]
        for position, answer in launcher.answers(work, [job.dumps() for job, _ in waiting], labels):
            job, attempt = waiting[position]
            if isinstance(answer, Exception):
                if len(job.heads) > 1:
                    again += [(half, 1) for half in job.halves()]
                    continue
                if attempt < ATTEMPTS:
                    again.append((job, attempt + 1))
                    continue
                row = RowAnswer(error=str(answer))
            else:
                row = RowAnswer.loads(answer)
            if row.unseen:
                raise EnvironmentFailure(
                    f"A worker does not see the registry: {row.unseen}. Workers need a folder that all machines mount "
                    "at the same path.",
                    subject=job.registry,
                )
            if row.error:
                lost.append(Lost(job.label, tuple(map(reference_of, job.heads)), row.error))
            notes += [note for note in row.notes if note not in notes]
            take(row.cells)
            done += len(job.heads)
            if progress is not None:
                progress(done, total, job.label)
        waiting = again
    return lost, notes
