"""Which back end carries out which runs: what was asked for, what a trial says, and why."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import torch

from compatkit.errors import UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.ensembles import Unsuited
from compatkit.experiments.sweeps.jobs import DataCache, Job, carry_out
from compatkit.experiments.sweeps.processes import processes
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.experiments.sweeps.results import SEED
from compatkit.experiments.sweeps.together import attempted, together

Backend = Literal["auto", "sequential", "process", "vmap", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
GAIN = 1.1
"""How many times as fast runs must be at once: a trial is short, and what it says is not exact."""
WITH_WORKERS = ("auto", "process", "ray")


@attrs.frozen
class Share:
    """Jobs that one back end carries out; those of ``vmap`` are trained at once."""

    backend: Backend
    jobs: tuple[Job, ...]


def check_backend(name: str, workers: int | None) -> None:
    """Refuse a back end that there is not, or whose library is missing, before any work is done.

    Raises:
        UsageError: There is none of that name, or ``workers`` is no use to it.
        MissingDependency: Its library is not installed.
    """
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"There is no back end {name!r:.80}.{hint} There are {', '.join(BACKENDS)}.")
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if workers is not None and name not in WITH_WORKERS:
        raise UsageError(f"The back end {name} has no workers; they are for {', '.join(WITH_WORKERS)}.")
    if name == "ray":
        from compatkit.experiments.sweeps.cluster import check_installed

        check_installed()


def choose(
    jobs: Sequence[Job],
    cache: DataCache,
    asked: str,
    workers: int | None,
    known: Mapping[str, Any] | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], list[Share]]:
    """Return what is to be recorded of the choice, and who carries out what.

    Args:
        jobs: Runs to make.
        cache: With their data sets.
        asked: A back end.
        workers: Runs at a time, or None.
        known: What an earlier call chose for this sweep; its trials are not made again.
        tell: Told of every trial.

    Raises:
        UsageError: ``"vmap"`` was asked for, and some of the runs cannot be trained at once.
    """
    chosen: Backend = next(one for one in BACKENDS if one == asked)
    if chosen not in ("auto", "vmap"):
        return _told(asked, {}, [_part(chosen, jobs)]), [_part(chosen, jobs)]
    rest: Backend = "process" if workers is not None else "sequential"
    least = GAIN if rest == "sequential" else max(GAIN, min(workers or 1, os.cpu_count() or 1))
    trials = dict((known or {}).get("trials", {})) if known and known.get("asked") == asked else {}
    parts: list[Share] = []
    left: list[Job] = []
    for group in _groups(jobs):
        # A run with a checkpoint goes on from it, which is that of a run alone.
        fresh = [one for one in group if not records.checkpoint(Path(one.folder), one.run).exists()]
        key = _label(group[0])
        if asked == "auto" and (len(fresh) < 2 or group[0].tables["trainer"].get("deterministic")):
            left += group
            continue
        if key not in trials:
            found = attempted(fresh, cache)
            trials[key] = found.to_json() | {"vmap": found.gain > least}
            tell(
                f"{key}: {found}, so {'at once' if found.gain > least else rest}"
                if asked == "auto"
                else str(found)
            )
        if asked == "vmap" and trials[key]["together"] is None:
            raise UsageError(f"The back end vmap cannot do these runs ({key}): {trials[key]['reason']}.")
        if asked == "vmap" or trials[key]["vmap"]:
            parts.append(_part("vmap", fresh))
            left += [one for one in group if one not in fresh]
        else:
            left += group
    parts += [_part(rest, left)] if left else []
    return _told(asked, trials, parts), parts


def _told(asked: str, trials: Mapping[str, Any], parts: Sequence[Share]) -> dict[str, Any]:
    backends = list(dict.fromkeys(part.backend for part in parts))
    return {"asked": asked, "backend": "+".join(backends), "trials": dict(trials)}


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the runs that differ in the seed only, together; a recipe without seeds gives groups of one."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(_label(job), []).append(job)
    return list(groups.values())


def _label(job: Job) -> str:
    said = {path: value for path, value in job.values.items() if path != SEED}
    return ", ".join(f"{path} = {json.dumps(value)}" for path, value in said.items()) or "all runs"


def _part(backend: Backend, jobs: Sequence[Job]) -> Share:
    return Share(backend, tuple(attrs.evolve(one, backend=backend) for one in jobs))


def dispatch(
    parts: Sequence[Share],
    cache: DataCache,
    workers: int | None,
    each: Callable[[RunRecord], None],
    tell: Callable[[str], None],
) -> None:
    """Let every part be carried out; ``each`` is given the record of every run as soon as it has ended."""
    for part in parts:
        if part.backend == "process":
            count = min(workers or os.cpu_count() or 1, len(part.jobs))
            processes(part.jobs, count, max(1, torch.get_num_threads() // count), each)
        elif part.backend == "ray":
            from compatkit.experiments.sweeps.cluster import cluster

            cluster(part.jobs, workers, 1, each)
        elif part.backend == "vmap":
            try:
                together(part.jobs, cache, each)
            except Unsuited as error:
                tell(f"{_label(part.jobs[0])}: trained one after the other after all, as {error}")
                sequential(_part("sequential", part.jobs).jobs, cache, each)
        else:
            sequential(part.jobs, cache, each)


def sequential(jobs: Sequence[Job], cache: DataCache, each: Callable[[RunRecord], None]) -> None:
    """Carry out runs one after the other, in this process."""
    for job in jobs:
        each(carry_out(job, cache))
