"""Which back end carries out which runs: what was asked for, what a trial says, and why."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import torch

from compatkit.errors import UsageError
from compatkit.sweeps.orders import Bench, Order
from compatkit.sweeps.processes import processes
from compatkit.sweeps.records import Record
from compatkit.sweeps.sequential import sequential

Backend = Literal["auto", "sequential", "process", "vmap", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
WITH_WORKERS = ("auto", "process", "ray")


@attrs.frozen
class Part:
    """Orders that one back end carries out; those of ``vmap`` are trained at once."""

    backend: Backend
    orders: tuple[Order, ...]


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
        from compatkit.sweeps.cluster import check_installed

        check_installed()


def choose(
    orders: Sequence[Order],
    bench: Bench,
    asked: str,
    workers: int | None,
    known: Mapping[str, Any] | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, Any], list[Part]]:
    """Return what is to be recorded of the choice, and who carries out what.

    Args:
        orders: Runs to make.
        bench: With their data sets.
        asked: A back end.
        workers: Runs at a time, or None.
        known: What an earlier call chose for this sweep; its trials are not made again.
        tell: Told of every trial.
    """
    rest: Backend = "process" if workers is not None else "sequential"
    chosen = next((one for one in BACKENDS if one == asked and one != "auto"), rest)
    return {"asked": asked, "backend": chosen}, [_part(chosen, orders)]


def _part(backend: Backend, orders: Sequence[Order]) -> Part:
    return Part(backend, tuple(attrs.evolve(one, backend=backend) for one in orders))


def dispatch(
    parts: Sequence[Part], bench: Bench, workers: int | None, each: Callable[[Record], None]
) -> None:
    """Let every part be carried out; ``each`` is given the record of every run as soon as it has ended."""
    for part in parts:
        if not part.orders:
            continue
        if part.backend == "process":
            count = min(workers or os.cpu_count() or 1, len(part.orders))
            processes(part.orders, count, max(1, torch.get_num_threads() // count), each)
        elif part.backend == "ray":
            from compatkit.sweeps.cluster import cluster

            cluster(part.orders, workers, 1, each)
        else:
            sequential(part.orders, bench, each)
