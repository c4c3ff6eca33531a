"""Jobs of a matrix for any process: an extractor with some heads, as one line of text.

A job is a row, or a block of one: the extractor is loaded and runs over its images once for all heads of the job, which
costs far more than a head. So a row is divided only where there are fewer rows than workers.
"""

from __future__ import annotations

import functools
import json
import math
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import PartLoader
from compatkit.components.matrices.handing import received
from compatkit.contracts.evidence import Cell
from compatkit.errors import CompatkitError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.records import keep
from compatkit.foundation.codec import structure
from compatkit.registry.names import Reference, Version
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.data.split import Split
    from compatkit.evaluation.pair_metrics import PairMetric

Names = tuple[str, str, str]
"""Name, version and digest of a component."""


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

    def dumps(self) -> str:
        """Return the job as one line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def loads(cls, line: str) -> RowJob:
        """Read the output of ``dumps``."""
        return structure(cls, json.loads(line), "job")

    @property
    def label(self) -> str:
        """Reference of the extractor."""
        return reference_of(self.extractor)

    def halves(self) -> tuple[RowJob, RowJob]:
        """Return two jobs with half of the heads each."""
        middle = len(self.heads) // 2
        return attrs.evolve(self, heads=self.heads[:middle]), attrs.evolve(self, heads=self.heads[middle:])


@attrs.frozen
class RowAnswer:
    """What a worker answers.

    Attributes:
        cells: Measured cells, including that of a bound that is no column.
        error: Why nothing was measured; else empty.
        unseen: The machine and the file that it does not see; else empty.
        notes: Warnings.
    """

    cells: tuple[Cell, ...] = ()
    error: str = ""
    unseen: str = ""
    notes: tuple[str, ...] = ()

    def dumps(self) -> str:
        """Return the answer as one line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def loads(cls, line: str) -> RowAnswer:
        """Read the output of ``dumps``."""
        return structure(cls, json.loads(line), "answer")


def names_of(component: Component) -> Names:
    """Return what finds a component in any process; the version may be empty."""
    resolved = component.resolved
    return resolved.name, str(resolved.version or ""), str(resolved.digest)


def reference_of(names: Names) -> str:
    """Return the pinned reference of a component."""
    name, version, digest = names
    return f"{name}@{version}" if version else digest


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
    job = RowJob.loads(line)
    if not Path(job.images).is_file():
        return RowAnswer(unseen=f"{socket.gethostname()} does not see {job.images}").dumps()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cells, error = _measured(job), ""
        except CompatkitError as failure:
            cells, error = (), str(failure)
        except Exception as failure:  # a module of a plugin may raise anything; other rows continue
            cells, error = (), f"{type(failure).__name__}: {failure}"
    notes = tuple(dict.fromkeys(str(item.message) for item in caught if item.category is UserWarning))
    return RowAnswer(cells, error, notes=notes).dumps()


def _measured(job: RowJob) -> tuple[Cell, ...]:
    from compatkit.evaluation.matrix import measure
    from compatkit.evaluation.metric_records import keep_metrics
    from compatkit.training.precision import Precision

    conditions = Conditions(**job.conditions)
    conditions = attrs.evolve(conditions, device=Precision.choose(conditions.device, "float32", None).device)
    heads = _heads(job.registry)
    extractor = _component(PartLoader(heads.store), job.extractor)  # its weights are dropped after the job
    rights = [_component(heads, names) for names in job.heads]
    bounds = {} if job.bound is None else {extractor.reference: _component(heads, job.bound)}
    parts = [extractor, *rights, *bounds.values()]
    for part in parts:
        _ = part.module  # find damaged parts before anything runs
    measured, images = list[Cell](), _images(job.images)
    metrics = _metrics(job)
    by_pair = {(extractor.reference, right.reference): metrics for right in rights}
    own = bounds.get(extractor.reference)

    def each(row: list[Cell]) -> None:
        measured.extend(row)
        new = [cell for cell in row if cell.head not in job.standing]
        if not job.record or not keep(heads.store, parts, new) or not metrics:
            return
        facts = ImageFacts.of(images)
        for cell, right in zip(row, rights, strict=False):  # a bound that is no column comes last
            keyed = [
                (metric, metric.conditions(conditions, facts, extractor, right, own)) for metric in metrics
            ]
            keep_metrics(heads.store, cell, (extractor, right), keyed)

    measure(
        [extractor],
        rights,
        {extractor.reference: images},
        conditions,
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


def _component(parts: PartLoader, names: Names) -> Component:
    name, version, digest = names
    return parts.component(Reference(name, Version.parse(version) if version else None, digest=digest))


@functools.lru_cache(1)
def _heads(registry: str) -> PartLoader:
    return PartLoader(Store.open(registry), admitted=True)


@functools.lru_cache(2)
def _images(file: str) -> Split:
    return received(Path(file))
