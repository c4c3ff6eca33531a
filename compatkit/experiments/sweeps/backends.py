"""Back ends that carry out the runs of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch

from compatkit.data.threads import processors
from compatkit.errors import UsageError
from compatkit.experiments.sweeps.jobs import DataCache, Job, carry_out
from compatkit.experiments.sweeps.processes import processes
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.plugins.isolation import suggestion

Backend = Literal["auto", "sequential", "process", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
WITH_WORKERS = ("auto", "process", "ray")


def choose(asked: str, workers: int | None) -> str:
    """Return the back end for ``asked``; ``"auto"`` means processes if a number of workers is given.

    Args:
        asked: One of BACKENDS.
        workers: Runs at a time, or None.

    Raises:
        UsageError: The name is unknown, or the back end takes no ``workers``.
        MissingDependency: Its library is not installed.
    """
    if asked not in BACKENDS:
        raise UsageError(
            f"Unknown back end {asked!r:.80}.{suggestion(asked, BACKENDS)} Known are {', '.join(BACKENDS)}."
        )
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if workers is not None and asked not in WITH_WORKERS:
        raise UsageError(f"The back end {asked} takes no workers; {', '.join(WITH_WORKERS)} do.")
    if asked == "ray":
        from compatkit.experiments.sweeps.cluster import check_installed

        check_installed()
    if asked == "auto":
        return "sequential" if workers is None else "process"
    return asked


def dispatch(
    backend: str,
    jobs: Sequence[Job],
    cache: DataCache,
    workers: int | None,
    each: Callable[[RunRecord], None],
) -> None:
    """Carry out runs on a back end that ``choose`` returned.

    Args:
        backend: Its name.
        jobs: Runs; nothing is done if there are none.
        cache: Data sets for runs in this process.
        workers: Runs at a time, or None.
        each: Called with the record of every run as soon as it has ended.
    """
    if not jobs:
        return
    if backend == "process":
        count = min(workers or processors(), len(jobs))
        processes(jobs, count, max(1, torch.get_num_threads() // count), each)
    elif backend == "ray":
        from compatkit.experiments.sweeps.cluster import cluster

        cluster(jobs, workers, each)
    else:
        for job in jobs:
            each(carry_out(job, cache))
