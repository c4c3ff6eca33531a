"""The processes of a run as one of them sees them: which share it takes, and how they speak to one another.

Each takes an equal share of every batch. A world of one process speaks to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import TrainingError, UsageError
from compatkit.training.failures import losing


@attrs.define(eq=False)
class World:
    """The processes of a run, as one of them sees them.

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
        """What sets the random numbers of this process's examples apart: nothing for the first."""
        return () if self.first else ("process", self.rank)

    def named(self, device: str) -> str:
        """Return what the plan says of a device: several processes have one kind, each its own."""
        return device if self.size == 1 else torch.device(device).type

    def check_batch(self, batch_size: int, pieces: int = 1) -> None:
        """Check that a batch can be shared, and each share worked through in ``pieces``.

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
        """Return which of ``count`` examples are this process's."""
        part = count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON value that each process gives, by rank; all must ask."""
        if self.size == 1:
            return [value]
        texts = self._gather(json.dumps(value).encode())
        return [json.loads(text) for text in texts]

    def from_first(self, data: bytes | None) -> bytes | None:
        """Return what the first process gives; the others give None."""
        if self.size == 1:
            return data
        given = self._gather(b"" if data is None else b"=" + data)[0]
        return given[1:] if given else None

    def _gather(self, data: bytes) -> list[bytes]:
        import torch.distributed as dist

        with losing():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self._control)
            most = max(int(one) for one in sizes)
            own = torch.zeros(most, dtype=torch.uint8)
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
            texts = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(texts, own, group=self._control)
        return [text[: int(size)].numpy().tobytes() for text, size in zip(texts, sizes, strict=True)]

    def union(self, flags: Tensor) -> None:
        """Make ``flags`` (uint8, on the CPU) in place those that any process sets; no device waits for it."""
        import torch.distributed as dist

        with losing():
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._control)

    def add_up(self, values: Tensor) -> None:
        """Sum ``values`` over the processes in place; on a GPU its stream waits, not this process."""
        import torch.distributed as dist

        with losing():
            dist.all_reduce(values, group=self._devices)

    def copy_first(self, value: Tensor) -> None:
        """Give ``value`` in place what it is in the first process."""
        import torch.distributed as dist

        laid = value.contiguous()
        with losing():
            dist.broadcast(laid.view(-1).view(torch.uint8), 0, group=self._devices)
        if laid.data_ptr() != value.data_ptr():
            value.copy_(laid)

    def check_same(self, facts: Mapping[str, Any], what: str, remedy: str) -> None:
        """Check that all processes have equal JSON values.

        Raises:
            TrainingError: They differ; the first difference is named, on all processes.
        """
        everyone = self.gather(facts)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                place, here, there = next(_differences(everyone[0], other))
                raise TrainingError(
                    f"The processes of this run have different {what}: {place} is {here!r:.200} in process 0 and "
                    f"{there!r:.200} in process {rank}. {remedy}"
                )


ALONE = World()
"""A run on one process."""


def _differences(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            yield from _differences(left.get(key), right.get(key), f"{place}.{key}" if place else key)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _differences(one, other, f"{place}[{number}]")
    elif left != right:
        yield place, left, right
