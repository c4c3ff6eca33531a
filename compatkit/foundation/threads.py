"""Threads that read and decode image files: one pool a process, whatever asks for it."""

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

MOST = 8
"""Threads at most; Pillow, files and digests work without Python's lock."""
AHEAD = 4
"""Pieces a thread that are begun before the first result is taken."""


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(work: Callable[[Item], Result], items: Iterable[Item], piece: int = 1) -> Iterator[Result]:
    """Yield the results of ``work`` in the order of the items; few of them are held at a time.

    Args:
        work: Called in several threads at once; it must not call ``each`` itself.
        items: Any number.
        piece: Items that a thread takes at a time; more where each is quick.
    """
    left, coming = iter(items), deque[Future[list[Result]]]()
    try:
        while True:
            while len(coming) < AHEAD * MOST and (some := list(islice(left, piece))):
                coming.append(_pool().submit(_piece, work, some))
            if not coming:
                return
            yield from coming.popleft().result()
    finally:
        for future in coming:
            future.cancel()


def _piece(work: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [work(item) for item in items]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST, processors()), thread_name_prefix="images")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not come along
