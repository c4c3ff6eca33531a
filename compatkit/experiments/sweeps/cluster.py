"""Back end ``ray``: runs on the machines of a cluster, or on a local one. Only this module imports ray."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.data.threads import processors
from compatkit.errors import CompatkitError, EnvironmentFailure, MissingDependency
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.jobs import DataCache, Job, answer
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.foundation.codec import loads

VARIABLES = (
    "HF_HUB_OFFLINE",
    "COMPATKIT_DATA",
    "COMPATKIT_PLUGINS",
    "COMPATKIT_PLUGIN_FILES",
    "COMPATKIT_DISABLE_PLUGINS",
    "TORCH_HOME",
)
"""Environment variables that are passed to workers."""


def check_installed() -> None:
    """Raise before any work is done if ``ray`` is missing.

    Raises:
        MissingDependency: ``ray`` is not installed.
    """
    _ray()


def cluster(jobs: Sequence[Job], workers: int | None, each: Callable[[RunRecord], None]) -> None:
    """Carry out jobs on the cluster that this process is connected to, one thread and processor each.

    Without a connection, the cluster of RAY_ADDRESS is used, else one is started here and stopped afterwards. Registry,
    recipe, data sets and the sweep's folder must have the same paths on all machines.

    Args:
        jobs: Runs.
        workers: Runs at a time; None for as many as fit the cluster.
        each: Called with the record of each run as soon as it has ended.

    Raises:
        MissingDependency: ``ray`` is not installed.
        EnvironmentFailure: The cluster cannot be reached.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        given = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers or processors()}
        try:
            ray.init(include_dashboard=False, log_to_driver=False, **given)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise EnvironmentFailure(
                f"The cluster of RAY_ADDRESS={os.environ.get('RAY_ADDRESS', '')!r} cannot be reached: {error}"
            ) from error
    try:
        _collect(ray, jobs, workers, each)
    finally:
        if ours:
            ray.shutdown()


def _collect(ray: Any, jobs: Sequence[Job], workers: int | None, each: Callable[[RunRecord], None]) -> None:
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    # A run that fails is reported, not retried silently.
    task = ray.remote(num_cpus=1, max_retries=0)(_work)
    waiting, running = list(reversed(jobs)), dict[Any, Job]()
    try:
        while waiting or running:
            while waiting and (workers is None or len(running) < workers):
                job = waiting.pop()
                running[task.remote(job.dumps(), variables)] = job
            ready, _ = ray.wait(list(running), num_returns=1)
            for one in ready:
                each(_record(ray, one, running.pop(one)))
    finally:
        for one in running:
            ray.cancel(one, force=True)


def _record(ray: Any, one: Any, job: Job) -> RunRecord:
    """Return the record of a task, or of its failure; write it in case its worker could not."""
    try:
        record = RunRecord.from_json(loads(ray.get(one).encode(), what=job.run), job.run)
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[0]
        record = attrs.evolve(job.begun(), threads=1).failed(
            EnvironmentFailure(f"The worker of this run is gone ({type(error).__name__}: {first}).")
        )
    try:
        records.write(Path(job.folder), record)
    except CompatkitError as error:
        return record if record.state == "failed" else record.failed(error)
    return record


def _work(line: str, variables: Mapping[str, str]) -> str:
    """Carry out a job in a worker; input and output are text."""
    import torch

    os.environ.update(variables)  # before importing timm and plugins, which read them
    torch.set_num_threads(1)
    return answer(line, _cache())


@functools.cache
def _cache() -> DataCache:
    """Return this process's cache, shared by its runs."""
    return DataCache()


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependency(
            f"The back end ray needs the library ray, which is not installed. Run: pip install "
            f"'compatkit[ray]', or choose another back end (sequential, process). ({error})",
            subject="ray",
        ) from error
    return ray
