"""Processes of a run: joining, shares of a batch, and communication.

Processes are started by torchrun, or have a process group already; otherwise ``torch.distributed`` is not used. Each
process takes an equal share of every batch.
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
import torch.distributed as dist
from torch import Tensor

from compatkit.errors import EnvironmentFailure, TrainingError, UsageError
from compatkit.training.failures import Failures, ProcessLost, detect_lost_processes


@attrs.define(eq=False)
class World:
    """Processes of a run, as seen by one of them.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        device: Requested device, or the GPU of this process.
    """

    rank: int = 0
    size: int = 1
    device: str = "auto"
    _control: Any = None
    _devices: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the first process, which writes, prints and publishes."""
        return self.rank == 0

    @property
    def key(self) -> tuple[str | int, ...]:
        """Part of the key of this process's random numbers; empty for the first process."""
        return () if self.first else ("process", self.rank)

    def device_name(self, device: str) -> str:
        """Return a device's name for the plan: its type alone if there are several processes."""
        return device if self.size == 1 else torch.device(device).type

    def check_batch(self, batch_size: int, pieces: int = 1) -> None:
        """Check that a batch can be divided among the processes, and each share into micro-batches.

        Args:
            batch_size: Images of a step, on all processes.
            pieces: Micro-batches of a step.

        Raises:
            UsageError: The batch cannot be divided, or a share has a single image.
        """
        min_size = self.size * pieces
        if self.size > 1 and (batch_size % min_size or batch_size < 2 * min_size):
            parts = f" and {pieces} micro-batches (accumulate)" if pieces > 1 else ""
            raise UsageError(
                f"batch_size={batch_size}, the images of a step on all processes, cannot be divided among {self.size} "
                f"processes{parts} in equal parts of 2 or more. Use a multiple of {min_size} from {2 * min_size} on."
            )

    def share(self, count: int) -> slice:
        """Return the slice of this process among ``count`` examples."""
        part = count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes by rank; all processes must call it."""
        if self.size == 1:
            return [value]
        return [json.loads(text) for text in self._gather(json.dumps(value).encode())]

    def broadcast_bytes(self, data: bytes | None) -> bytes | None:
        """Return the bytes of the first process; the others pass None."""
        if self.size == 1:
            return data
        received = self._gather(b"" if data is None else b"=" + data)[0]
        return received[1:] if received else None

    @detect_lost_processes()
    def _gather(self, data: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self._control)
        max_size = max(int(size) for size in sizes)
        padded = torch.zeros(max_size, dtype=torch.uint8)
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else padded[:0]
        texts = [torch.zeros(max_size, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, padded, group=self._control)
        return [text[: int(size)].numpy().tobytes() for text, size in zip(texts, sizes, strict=True)]

    @detect_lost_processes()
    def all_reduce_max(self, flags: Tensor) -> None:
        """Set flags (uint8, on the CPU) in place to their maximum over the processes, without waiting for a device."""
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._control)

    @detect_lost_processes()
    def all_reduce_sum(self, values: Tensor) -> None:
        """Sum values over the processes in place; on a GPU the stream waits, not this process."""
        dist.all_reduce(values, group=self._devices)

    def broadcast(self, value: Tensor) -> None:
        """Overwrite a tensor in place with that of the first process."""
        contiguous = value.contiguous()
        with detect_lost_processes():
            dist.broadcast(contiguous.view(-1).view(torch.uint8), 0, group=self._devices)
        if contiguous.data_ptr() != value.data_ptr():
            value.copy_(contiguous)

    def check_same(self, values: Mapping[str, Any], what: str, remedy: str) -> None:
        """Check that all processes have equal JSON values.

        Args:
            values: Values of this process.
            what: Noun for the values, for the message.
            remedy: Advice, for the message.

        Raises:
            TrainingError: Values differ; raised on all processes, with the first difference.
        """
        by_rank = self.gather(values)
        for rank, other in enumerate(by_rank):
            if other != by_rank[0]:
                key, first, value = differences(by_rank[0], other)[0]
                raise TrainingError(
                    f"The processes of this run have different {what}: {key} is {first:.200} in process 0 and "
                    f"{value:.200} in process {rank}. {remedy}"
                )


ALONE = World()
"""World of a run on one process."""


def differences(left: Any, right: Any) -> list[tuple[str, str, str]]:
    """Return the differences of two JSON values: path, and the value on each side or ``"nothing"``.

    Args:
        left: JSON value.
        right: JSON value to compare with.
    """
    lefts, rights = ({path: repr(value) for path, value in _leaves(side)} for side in (left, right))
    paths = dict.fromkeys((*rights, *lefts))
    values = [(path, lefts.get(path, "nothing"), rights.get(path, "nothing")) for path in paths]
    return [value for value in values if value[1] != value[2]]


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, list(value) if isinstance(value, tuple) else value


TIMEOUT = timedelta(minutes=10)
"""Time to wait for other processes, as compiling may take minutes in some of them."""
_runs = itertools.count()


@contextmanager
def join_processes(device: str, checkpoint: str | os.PathLike[str] | None = None) -> Iterator[World]:
    """Join the other processes of this run, if there are any, and leave them on exit.

    Args:
        device: Device in the settings of the trainer.
        checkpoint: Checkpoint of the run, for the message if a process is lost.

    Raises:
        EnvironmentFailure: Other processes cannot be reached.
        UsageError: There is no GPU for this process.
        TrainingError: Another process failed or is gone.
    """
    rank, size = _rank_and_size()
    if size == 1:
        yield World(device=device)
        return
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    created = not dist.is_initialized()
    try:
        control, store = _join(rank, size, cuda)
        devices = dist.group.WORLD if cuda else control
        world = World(rank, size, device, control, devices)
        address = [socket.gethostname(), os.getpid()]
        failures = Failures(rank, size, store, world.gather(address), checkpoint)
    except (RuntimeError, ValueError, ProcessLost) as error:
        raise EnvironmentFailure(
            f"Process {rank} of {size} cannot reach the others ({error}). Start all with torchrun, which sets "
            "MASTER_ADDR and MASTER_PORT to those of process 0."
        ) from error
    finished = False
    try:
        with failures.reported():
            world.device = _device_of_process(device, cuda)
            yield world
            world.gather(None)  # no process leaves while another waits for it
            finished = True
    finally:
        _leave(world, created, finished)


def _rank_and_size() -> tuple[int, int]:
    """Return rank and number of processes; 0 and 1 for a single process."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if all(os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def _join(rank: int, size: int, cuda: bool) -> tuple[Any, Any]:
    """Return a group for values on the CPU, and a store that survives the end of a process."""
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    prefix = f"compatkit/{next(_runs)}"  # a store keeps the keys of earlier runs of the same processes
    if dist.is_initialized():
        store = PrefixStore(prefix, _get_default_store())
    else:
        store = PrefixStore(prefix, _store())
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    return dist.new_group(backend="gloo", timeout=TIMEOUT), store


@functools.cache
def _store() -> Any:
    """Return torchrun's store, or one of process 0."""
    from torch.distributed.rendezvous import rendezvous

    return next(iter(rendezvous("env://")))[0]


def _leave(world: World, created: bool, finished: bool) -> None:
    """Close the groups; after a failure those of GPUs stay open, as closing them would wait for lost processes."""
    cuda = world._devices is not world._control
    if created and (finished or not cuda):
        dist.destroy_process_group()
    else:
        dist.destroy_process_group(world._control)
    world._control = world._devices = None


def _device_of_process(device: str, cuda: bool) -> str:
    """Return the device of this process."""
    if device.startswith("cuda:"):
        raise UsageError(
            f"Several processes cannot share {device!r}; use 'cuda' or 'auto', so that each takes its own GPU."
        )
    if not cuda:
        return device
    count, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
    if local >= count:
        raise UsageError(
            f"This machine has {count} GPUs and this is its process {local}, counted from 0. Start {count} processes "
            f"or fewer (torchrun --nproc-per-node {count}), or set device='cpu'."
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"
