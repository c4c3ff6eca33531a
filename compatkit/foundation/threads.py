"""Threads that read and decode image files: one shared pool per process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8
"""Largest number of threads; Pillow, file reads and digests release the GIL."""
AHEAD = 4
"""Chunks per thread that are submitted before the first result is taken."""


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(work: Callable[[Item], Result], items: Iterable[Item], chunk: int = 1) -> Iterator[Result]:
    """Yield the results of ``work`` in the order of the items, with few of them in memory at a time.

    Args:
        work: Called in several threads at once; it must not call ``each`` itself.
        items: Inputs of ``work``.
        chunk: Items that a thread takes at a time; larger for quick work.
    """
    remaining, pending = iter(items), deque[Future[list[Result]]]()
    try:
        while True:
            while len(pending) < AHEAD * MAX_THREADS and (taken := list(islice(remaining, chunk))):
                pending.append(_pool().submit(_run_chunk, work, taken))
            if not pending:
                return
            yield from pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def _run_chunk(work: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [work(item) for item in items]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_THREADS, processors()), thread_name_prefix="images")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has no threads
