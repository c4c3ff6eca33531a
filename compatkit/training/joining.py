"""How the processes of a run find one another, and leave.

Processes are started by torchrun, or have a process group already; without either nothing is asked of
``torch.distributed``.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.training.distributed import World
from compatkit.training.failures import Failures, Lost

PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others; compiling may take minutes, and not the same on all."""
_runs = itertools.count()


@contextmanager
def spread(device: str, checkpoint: str | os.PathLike[str] | None = None) -> Iterator[World]:
    """Join the other processes of this run, if there are any, and leave them afterwards.

    Args:
        device: What the trainer was asked for.
        checkpoint: Named in the message where a process is lost.

    Raises:
        EnvironmentFailure: The others cannot be reached.
        UsageError: There is no GPU for this process.
        TrainingError: Another process failed or is gone.
    """
    place = _place()
    if place is None:
        yield World(device=device)
        return
    rank, size = place
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    made = not torch.distributed.is_initialized()
    try:
        control, store = _join(rank, size, cuda)
        devices = torch.distributed.group.WORLD if cuda else control
        world = World(rank, size, device, control, devices)
        here = [socket.gethostname(), os.getpid()]
        failures = Failures(rank, size, store, world.gather(here), checkpoint)
    except (RuntimeError, ValueError, Lost) as error:
        raise EnvironmentFailure(
            f"Process {rank} of {size} cannot reach the others ({error}). Start all of them with torchrun, which sets "
            "MASTER_ADDR and MASTER_PORT to where process 0 listens."
        ) from error
    whole = False
    try:
        with failures.reported():
            world.device = _own(device, cuda)
            yield world
            world.gather(None)  # nobody leaves while another still listens
            whole = True
    finally:
        _leave(world, made, whole)


def _place() -> tuple[int, int] | None:
    """Return rank and count of processes, None where there is one."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
    elif all(os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        return None
    return (rank, size) if size > 1 else None


def _join(rank: int, size: int, cuda: bool) -> tuple[Any, Any]:
    """Return a group for values on the CPU, and the store that outlives a process."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    prefix = f"compatkit/{next(_runs)}"  # a store keeps the keys of earlier runs of the same processes
    if dist.is_initialized():
        store = PrefixStore(prefix, _get_default_store())
    else:
        store = PrefixStore(prefix, _store())
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return dist.new_group(backend="gloo", timeout=PATIENCE), store


@functools.cache
def _store() -> Any:
    """Return the store of the surroundings: torchrun's, or one that process 0 opens for as long as it lives."""
    from torch.distributed.rendezvous import rendezvous

    return next(iter(rendezvous("env://")))[0]


def _leave(world: World, made: bool, whole: bool) -> None:
    """Close the groups; after a failure those of GPUs stay, whose end would wait for lost processes."""
    import torch.distributed as dist

    cuda = world._devices is not world._control
    if made and (whole or not cuda):
        dist.destroy_process_group()
    else:
        dist.destroy_process_group(world._control)
    world._control = world._devices = None


def _own(device: str, cuda: bool) -> str:
    """Return the device of this process."""
    if device.startswith("cuda:"):
        raise UsageError(
            f"Several processes cannot share {device!r}; ask for 'cuda' or 'auto': each takes its own."
        )
    if not cuda:
        return device
    count, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    if local >= count:
        raise UsageError(
            f"This process is number {local} of its machine, counted from 0, and there are {count} GPUs: start no more "
            f"than {count} here (torchrun --nproc-per-node {count}), or set device='cpu'."
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"
