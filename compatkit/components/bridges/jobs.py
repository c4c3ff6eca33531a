"""Bridge pairs in other processes: a job is a pair, as one line of text, and its bridge goes into the registry."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from compatkit.components.bridges.keeping import keep
from compatkit.components.bridges.pairs import LeftOut, Pair, bridged
from compatkit.components.loading import PartLoader
from compatkit.components.projecting import own_extractor
from compatkit.components.workers.carrying import (
    Answer,
    Names,
    answered,
    carry_out,
    component_of,
    heads_of,
    images_of,
    names_of,
    reference_of,
)
from compatkit.components.workers.handing import handed_over
from compatkit.contracts.manifest import Edge
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress, Settings
from compatkit.foundation.codec import structure
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store

REFUSALS = {kind.__name__: kind for kind in (DataError, UsageError)}
"""Errors of the request, which end the work in workers as in one process."""


@attrs.frozen
class PairJob:
    """An extractor and a head to bridge; all values are JSON values.

    Attributes:
        registry: Root of the registry, the same on all machines.
        images: File with the images of the extractor's domain; see ``handing``.
        test: File with the labeled test images; empty if there are none.
        extractor: The extractor.
        head: The head.
        rung: Name of the rung, or ``"best"``.
        rungs: Rungs to try.
        max_images: As for ``bridge``.
        seed: As for ``bridge``.
        settings: Everything that the bridge depends on beside the parts.
        record: Whether the bridge is recorded as evidence.
        threads: Computing threads, so that every bit is that of one process.
    """

    registry: str
    images: str
    test: str
    extractor: Names
    head: Names
    rung: str
    rungs: tuple[str, ...]
    max_images: int
    seed: int
    settings: Mapping[str, Any]
    record: bool
    threads: int

    @property
    def label(self) -> str:
        """Names of the pair."""
        return f"{self.extractor[0]} + {self.head[0]}"

    @property
    def pair(self) -> tuple[str, str]:
        """References of extractor and head."""
        return reference_of(self.extractor), reference_of(self.head)

    @property
    def size(self) -> int:
        """One pair."""
        return 1

    def halves(self) -> Sequence[PairJob]:
        """Return the job, which is not divided."""
        return [self]


@attrs.frozen(kw_only=True)
class PairAnswer(Answer):
    """What a worker answers.

    Attributes:
        blob: Blob of the bridge; empty if there is none.
        bytes: Size of the blob.
        left_out: Why the pair has no bridge; else empty.
        refused: Name of the error of a request that no pair can fulfill; else empty.
    """

    blob: str = ""
    bytes: int = 0
    left_out: str = ""
    refused: str = ""


def bridge_in_workers(
    store: Store,
    pairs: Sequence[Pair],
    rung: str,
    record: bool,
    launcher: Launcher,
    take: Callable[[Pair, Edge | LeftOut], None],
    progress: Progress | None,
    done: int,
) -> list[str]:
    """Bridge pairs in the processes of a launcher, which write each bridge to the registry when it is made.

    Args:
        store: Registry, which all processes see at the same path.
        pairs: The pairs.
        rung: Name of the rung, or ``"best"``.
        record: Whether the bridges are recorded as evidence.
        launcher: Where pairs are bridged.
        take: Called with each pair when it ends, and the blob of its bridge, or why there is none.
        progress: Called with pairs done, all pairs, and the last one.
        done: Number of pairs that were there before.

    Returns:
        Warnings of the processes.

    Raises:
        UsageError: The rung inserts no adapter.
        DataError: Images are unsuitable for a bridge.
        EnvironmentFailure: A process does not see the registry, or it cannot be written.
    """
    import torch

    root, by_pair = store.root.absolute(), {pair.references: pair for pair in pairs}
    splits = [
        split for pair in pairs for split in (pair.request.data, pair.request.test) if split is not None
    ]

    def answer_of(job: PairJob, answer: PairAnswer) -> None:
        if answer.refused:
            raise REFUSALS[answer.refused](answer.error)
        if answer.blob:
            take(by_pair[job.pair], Edge(answer.blob, answer.bytes))
        else:
            take(by_pair[job.pair], LeftOut(answer.left_out or answer.error, failed=not answer.left_out))

    with handed_over(root, splits) as files:
        jobs = [
            PairJob(
                registry=str(root),
                images=files[pair.request.data.digest],
                test="" if pair.request.test is None else files[pair.request.test.digest],
                extractor=names_of(pair.extractor),
                head=names_of(pair.head),
                rung=rung,
                rungs=tuple(pair.request.rungs or ()),
                max_images=pair.request.max_images,
                seed=pair.request.seed,
                settings=pair.settings,
                record=record,
                threads=torch.get_num_threads(),
            )
            for pair in pairs
        ]
        return carry_out(jobs, work, PairAnswer, launcher, answer_of, progress, done)


def work(line: str) -> str:
    """Bridge a pair in a launcher's process; components and images are cached for the next pairs.

    Args:
        line: ``PairJob`` as one line.

    Returns:
        ``PairAnswer`` as one line.
    """
    job: PairJob = structure(PairJob, json.loads(line), "job")
    return answered(PairAnswer, job.images, lambda: _bridged(job))


def _bridged(job: PairJob) -> dict[str, Any]:
    import torch

    from compatkit.components.bridges.inputs import BridgeRequest

    torch.set_num_threads(job.threads)
    parts = heads_of(job.registry)
    request = BridgeRequest(
        data=images_of(job.images),
        test=images_of(job.test) if job.test else None,
        rungs=job.rungs,
        until=None,
        max_images=job.max_images,
        seed=job.seed,
    )
    settings: Settings = dict(job.settings)
    pair = Pair(_extractor(job.registry, job.extractor), component_of(parts, job.head), request, settings)
    try:
        bridge = bridged(pair, lambda: _own(job.registry, job.head), job.rung)
    except (DataError, UsageError) as error:
        return {"refused": type(error).__name__, "error": str(error)}
    if isinstance(bridge, LeftOut):
        return {"left_out": bridge.reason}
    edge = keep(parts.store, bridge, (pair.extractor, pair.head), settings, record=job.record)
    return {"blob": edge.blob, "bytes": edge.bytes}


@functools.lru_cache(1)
def _extractor(registry: str, names: Names) -> Component:
    return component_of(PartLoader(heads_of(registry).store), names)


@functools.lru_cache(8)
def _own(registry: str, names: Names) -> Component:
    parts = heads_of(registry)
    return own_extractor(parts.store, component_of(parts, names))
