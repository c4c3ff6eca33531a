"""The processes of a run: how they join, which share of a batch each takes, and how they communicate.

Processes are started by torchrun, or have a process group already; without either, ``torch.distributed`` is not used.
Each process takes an equal share of every batch.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import EnvironmentFailure, TrainingError, UsageError
from compatkit.training.failures import Failures, ProcessLost, detect_lost_processes


@attrs.define(eq=False)
class World:
    """The processes of a run, from the point of view of one of them.

    Attributes:
        rank: Number of this process, from 0.
        size: Count of processes.
        device: Where this process computes: the device asked for, or its own GPU.
    """

    rank: int = 0
    size: int = 1
    device: str = "auto"
    _control: Any = None
    _devices: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, prints and publishes."""
        return self.rank == 0

    @property
    def key(self) -> tuple[str | int, ...]:
        """Part of the key of this process's random numbers; empty for the first process."""
        return () if self.first else ("process", self.rank)

    def device_name(self, device: str) -> str:
        """Return a device as the plan states it: only its kind where each of several processes has its own."""
        return device if self.size == 1 else torch.device(device).type

    def check_batch(self, batch_size: int, pieces: int = 1) -> None:
        """Check that a batch can be shared, and each share worked through in ``pieces``.

        Args:
            batch_size: Images of a step, on all processes.
            pieces: Micro-batches of a step.

        Raises:
            UsageError: It does not divide, or leaves a process with a single image.
        """
        if self.size > 1 and (batch_size % (self.size * pieces) or batch_size < 2 * self.size * pieces):
            least = self.size * pieces
            parts = f" and {pieces} pieces (accumulate)" if pieces > 1 else ""
            raise UsageError(
                f"batch_size counts the images of a step on all processes together: {batch_size} cannot be shared by "
                f"{self.size} processes{parts} in equal parts of 2 or more. Take a multiple of "
                f"{least} from {2 * least} on, or start another number of processes."
            )

    def share(self, count: int) -> slice:
        """Return the slice of ``count`` examples that this process takes."""
        part = count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes by rank; all processes must call it."""
        if self.size == 1:
            return [value]
        texts = self._gather(json.dumps(value).encode())
        return [json.loads(text) for text in texts]

    def broadcast_bytes(self, data: bytes | None) -> bytes | None:
        """Return the bytes that the first process gives; the others give None."""
        if self.size == 1:
            return data
        received = self._gather(b"" if data is None else b"=" + data)[0]
        return received[1:] if received else None

    def _gather(self, data: bytes) -> list[bytes]:
        import torch.distributed as dist

        with detect_lost_processes():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self._control)
            most = max(int(size) for size in sizes)
            own = torch.zeros(most, dtype=torch.uint8)
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
            texts = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(texts, own, group=self._control)
        return [text[: int(size)].numpy().tobytes() for text, size in zip(texts, sizes, strict=True)]

    def all_reduce_max(self, flags: Tensor) -> None:
        """Set each of ``flags`` (uint8, on the CPU) in place that any process sets; no device waits for it."""
        import torch.distributed as dist

        with detect_lost_processes():
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._control)

    def all_reduce_sum(self, values: Tensor) -> None:
        """Sum ``values`` over the processes in place; on a GPU its stream waits, not this process."""
        import torch.distributed as dist

        with detect_lost_processes():
            dist.all_reduce(values, group=self._devices)

    def broadcast(self, value: Tensor) -> None:
        """Overwrite ``value`` in place with that of the first process."""
        import torch.distributed as dist

        laid = value.contiguous()
        with detect_lost_processes():
            dist.broadcast(laid.view(-1).view(torch.uint8), 0, group=self._devices)
        if laid.data_ptr() != value.data_ptr():
            value.copy_(laid)

    def check_same(self, facts: Mapping[str, Any], what: str, remedy: str) -> None:
        """Check that all processes have equal JSON values.

        Args:
            facts: Values of this process.
            what: What they are, for the message.
            remedy: What to do, for the message.

        Raises:
            TrainingError: They differ; the first difference is named, on all processes.
        """
        everyone = self.gather(facts)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                place, first, value = differences(everyone[0], other)[0]
                raise TrainingError(
                    f"The processes of this run have different {what}: {place} is {first:.200} in process 0 and "
                    f"{value:.200} in process {rank}. {remedy}"
                )


ALONE = World()
"""A run on one process."""


def differences(left: Any, right: Any) -> list[tuple[str, str, str]]:
    """Return where two JSON values differ: the place, and the value on each side, ``"nothing"`` where one lacks it.

    Args:
        left: A JSON value.
        right: Another.
    """
    lefts, rights = dict(_leaves(left)), dict(_leaves(right))

    def shown(leaves: Mapping[str, object], place: str) -> str:
        return repr(leaves[place]) if place in leaves else "nothing"

    places = dict.fromkeys((*rights, *lefts))
    values = [(place, shown(lefts, place), shown(rights, place)) for place in places]
    return [value for value in values if value[1] != value[2]]


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}[{number}]")
    else:
        yield place, list(value) if isinstance(value, tuple) else value


PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others; compiling may take minutes, and differs between them."""
_runs = itertools.count()


@contextmanager
def join_processes(device: str, checkpoint: str | os.PathLike[str] | None = None) -> Iterator[World]:
    """Join the other processes of this run, if there are any, and leave them afterwards.

    Args:
        device: As the trainer was asked for it.
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
        address = [socket.gethostname(), os.getpid()]
        failures = Failures(rank, size, store, world.gather(address), checkpoint)
    except (RuntimeError, ValueError, ProcessLost) as error:
        raise EnvironmentFailure(
            f"Process {rank} of {size} cannot reach the others ({error}). Start all of them with torchrun, which sets "
            "MASTER_ADDR and MASTER_PORT to where process 0 listens."
        ) from error
    whole = False
    try:
        with failures.reported():
            world.device = _own(device, cuda)
            yield world
            world.gather(None)  # no process leaves while another still waits for it
            whole = True
    finally:
        _leave(world, made, whole)


def _place() -> tuple[int, int] | None:
    """Return rank and count of processes; None for a single process."""
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
    """Return torchrun's store, or one that process 0 opens for as long as it lives."""
    from torch.distributed.rendezvous import rendezvous

    return next(iter(rendezvous("env://")))[0]


def _leave(world: World, made: bool, whole: bool) -> None:
    """Close the groups; after a failure those of GPUs stay open, since closing them would wait for lost processes."""
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
