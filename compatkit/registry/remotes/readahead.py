"""Reading a large blob in ranges, some of which are asked for before they are needed: far stores answer late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from compatkit.registry import disk as durable

AHEAD = 4
"""Ranges that are asked for at once; each is held in memory."""
Ask = Callable[[int, int], bytes]
"""Returns at most so many bytes (second) from a place on (first)."""


@contextmanager
def reading(ask: Ask, size: int) -> Iterator[Callable[[int], bytes]]:
    """Give a function that returns at most so many of the bytes that follow, none at the end.

    Args:
        ask: Reads a range.
        size: Bytes in all; no range reaches beyond.
    """
    if size <= durable.CHUNK:
        yield _plain(ask, size)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[bytes]] = deque()
        starts = iter(range(0, size, durable.CHUNK))
        rest = b""

        def read(count: int) -> bytes:
            nonlocal rest
            while len(waiting) < AHEAD and (at := next(starts, None)) is not None:
                waiting.append(pool.submit(ask, at, min(durable.CHUNK, size - at)))
            data = rest or (waiting.popleft().result() if waiting else b"")
            rest = data[count:]
            return data[:count]

        try:
            yield read
        finally:
            for one in waiting:
                one.cancel()


def _plain(ask: Ask, size: int) -> Callable[[int], bytes]:
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        data = ask(at, min(count, size - at)) if at < size else b""
        at += len(data)
        return data

    return read
