"""Jobs of a matrix for any process: an extractor with some heads, as one line of text.

A job is a row, or a block of one: the extractor is loaded and runs over its images once for all heads of the job, which
costs far more than a head. So a row is divided only where there are fewer rows than workers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import PartLoader
from compatkit.components.workers.adapters import received_adapters
from compatkit.components.workers.carrying import (
    Answer,
    Names,
    answered,
    component_of,
    heads_of,
    images_of,
    reference_of,
)
from compatkit.contracts.evidence import Cell
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.records import keep
from compatkit.foundation.codec import structure

if TYPE_CHECKING:
    from compatkit.evaluation.pair_metrics import PairMetric


@attrs.frozen
class RowJob:
    """An extractor with some heads; all values are JSON values.

    Attributes:
        registry: Root of the registry, the same on all machines.
        images: File with the test images; see ``handing``.
        extractor: The extractor.
        heads: Heads to measure.
        bound: Head that gives the upper bound, or None.
        conditions: Fields of ``Conditions``.
        record: Whether to record the cells as evidence.
        metrics: Name and settings of each metric of these pairs.
        standing: Heads of which the accuracy is recorded already.
        adapters: File with the adapters of the extractor; empty if there are none.
    """

    registry: str
    images: str
    extractor: Names
    heads: tuple[Names, ...]
    bound: Names | None
    conditions: Mapping[str, Any]
    record: bool
    metrics: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    standing: tuple[str, ...] = ()
    adapters: str = ""

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.heads)

    @property
    def label(self) -> str:
        """Reference of the extractor."""
        return reference_of(self.extractor)

    def halves(self) -> tuple[RowJob, RowJob]:
        """Return two jobs with half of the heads each."""
        middle = len(self.heads) // 2
        return attrs.evolve(self, heads=self.heads[:middle]), attrs.evolve(self, heads=self.heads[middle:])


@attrs.frozen(kw_only=True)
class RowAnswer(Answer):
    """What a worker answers.

    Attributes:
        cells: Measured cells, including that of a bound that is no column.
    """

    cells: tuple[Cell, ...] = ()


def blocks(heads: Sequence[Any], rows: int, workers: int) -> Iterator[Sequence[Any]]:
    """Yield the heads of a row in as many blocks as keep all workers busy: one where there are as many rows as workers.

    Args:
        heads: Heads of the row.
        rows: Number of rows.
        workers: Number of workers.
    """
    count = min(len(heads), math.ceil(workers / rows))
    for number in range(count):
        yield heads[number * len(heads) // count : (number + 1) * len(heads) // count]


def work(line: str) -> str:
    """Carry out a job in a launcher's process; components and images are cached for the next jobs.

    Args:
        line: ``RowJob`` as one line.

    Returns:
        ``RowAnswer`` as one line.
    """
    job: RowJob = structure(RowJob, json.loads(line), "job")
    return answered(RowAnswer, job.images, lambda: {"cells": _measured(job)})


def _measured(job: RowJob) -> tuple[Cell, ...]:
    from compatkit.evaluation.matrix import measure
    from compatkit.evaluation.metric_records import keep_metrics
    from compatkit.training.precision import Precision

    conditions = Conditions(**job.conditions)
    conditions = attrs.evolve(conditions, device=Precision.choose(conditions.device, "float32", None).device)
    heads = heads_of(job.registry)
    extractor = component_of(PartLoader(heads.store), job.extractor)  # its weights are dropped after the job
    rights = [component_of(heads, names) for names in job.heads]
    bounds = {} if job.bound is None else {extractor.reference: component_of(heads, job.bound)}
    parts = [extractor, *rights, *bounds.values()]
    for part in parts:
        _ = part.module  # find damaged parts before anything runs
    measured, images = list[Cell](), images_of(job.images)
    metrics = _metrics(job)
    by_pair = {(extractor.reference, right.reference): metrics for right in rights}
    own = bounds.get(extractor.reference)
    between = received_adapters(job.adapters) if job.adapters else {}
    described = {
        head: [(adapter.function, str(adapter)) for adapter in chain] for head, chain in between.items()
    }

    def each(row: list[Cell]) -> None:
        measured.extend(row)
        new = [cell for cell in row if cell.head not in job.standing]
        if not job.record or not keep(heads.store, parts, new) or not metrics:
            return
        facts = ImageFacts.of(images)
        for cell, right in zip(row, rights, strict=False):  # a bound that is no column comes last
            keyed = [
                (
                    metric,
                    metric.conditions(
                        conditions, facts, extractor, right, own, described.get(right.reference, ())
                    ),
                )
                for metric in metrics
            ]
            keep_metrics(heads.store, cell, (extractor, right), keyed)

    measure(
        [extractor],
        rights,
        {extractor.reference: images},
        conditions,
        adapters={(extractor.reference, head): chain for head, chain in between.items()},
        bounds=bounds,
        metrics=by_pair,
        each=each,
    )
    return tuple(measured)


def _metrics(job: RowJob) -> Sequence[PairMetric]:
    if not job.metrics:
        return ()
    from compatkit.evaluation.pair_metrics import PairMetric

    return [PairMetric.named(name, settings) for name, settings in job.metrics]
