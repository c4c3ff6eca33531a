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
from compatkit.experiments.sweeps.orders import Bench, Order
from compatkit.experiments.sweeps.processes import processes
from compatkit.experiments.sweeps.records import Record
from compatkit.experiments.sweeps.results import SEED
from compatkit.experiments.sweeps.sequential import sequential
from compatkit.experiments.sweeps.together import attempted, together

Backend = Literal["auto", "sequential", "process", "vmap", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
GAIN = 1.1
"""How many times as fast runs must be at once: a trial is short, and what it says is not exact."""
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
        from compatkit.experiments.sweeps.cluster import check_installed

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

    Raises:
        UsageError: ``"vmap"`` was asked for, and some of the runs cannot be trained at once.
    """
    chosen: Backend = next(one for one in BACKENDS if one == asked)
    if chosen not in ("auto", "vmap"):
        return _told(asked, {}, [_part(chosen, orders)]), [_part(chosen, orders)]
    rest: Backend = "process" if workers is not None else "sequential"
    least = GAIN if rest == "sequential" else max(GAIN, min(workers or 1, os.cpu_count() or 1))
    trials = dict((known or {}).get("trials", {})) if known and known.get("asked") == asked else {}
    parts: list[Part] = []
    left: list[Order] = []
    for group in _groups(orders):
        # A run with a checkpoint goes on from it, which is that of a run alone.
        fresh = [one for one in group if not records.checkpoint(Path(one.folder), one.run).exists()]
        key = _label(group[0])
        if asked == "auto" and (len(fresh) < 2 or group[0].tables["trainer"].get("deterministic")):
            left += group
            continue
        if key not in trials:
            found = attempted(fresh, bench)
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


def _told(asked: str, trials: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, Any]:
    backends = list(dict.fromkeys(part.backend for part in parts))
    return {"asked": asked, "backend": "+".join(backends), "trials": dict(trials)}


def _groups(orders: Sequence[Order]) -> list[list[Order]]:
    """Return the runs that differ in the seed only, together; a recipe without seeds gives groups of one."""
    groups: dict[str, list[Order]] = {}
    for order in orders:
        groups.setdefault(_label(order), []).append(order)
    return list(groups.values())


def _label(order: Order) -> str:
    said = {path: value for path, value in order.values.items() if path != SEED}
    return ", ".join(f"{path} = {json.dumps(value)}" for path, value in said.items()) or "all runs"


def _part(backend: Backend, orders: Sequence[Order]) -> Part:
    return Part(backend, tuple(attrs.evolve(one, backend=backend) for one in orders))


def dispatch(
    parts: Sequence[Part],
    bench: Bench,
    workers: int | None,
    each: Callable[[Record], None],
    tell: Callable[[str], None],
) -> None:
    """Let every part be carried out; ``each`` is given the record of every run as soon as it has ended."""
    for part in parts:
        if part.backend == "process":
            count = min(workers or os.cpu_count() or 1, len(part.orders))
            processes(part.orders, count, max(1, torch.get_num_threads() // count), each)
        elif part.backend == "ray":
            from compatkit.experiments.sweeps.cluster import cluster

            cluster(part.orders, workers, 1, each)
        elif part.backend == "vmap":
            try:
                together(part.orders, bench, each)
            except Unsuited as error:
                tell(f"{_label(part.orders[0])}: trained one after the other after all, as {error}")
                sequential(_part("sequential", part.orders).orders, bench, each)
        else:
            sequential(part.orders, bench, each)
