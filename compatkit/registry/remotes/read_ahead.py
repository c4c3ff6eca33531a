"""Ranges of a large blob, requested before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO

from compatkit.registry import disk as durable

READ_AHEAD = 4
"""Number of ranges of a large blob requested ahead to hide latency; each is in memory."""


@contextmanager
def read_ahead(read_range: Callable[[int, int], bytes], size: int) -> Iterator[Callable[[int], bytes]]:
    """Yield a function that returns up to the given number of further bytes of a blob; empty at the end.

    Args:
        read_range: Function of start and length that returns a range.
        size: Size of the blob in bytes.
    """
    if size <= durable.CHUNK:
        yield BytesIO(read_range(0, size) if size else b"").read
        return
    waiting: deque[Future[bytes]] = deque()
    starts = iter(range(0, size, durable.CHUNK))
    rest = b""

    def read(count: int) -> bytes:
        nonlocal rest
        while len(waiting) < READ_AHEAD and (at := next(starts, None)) is not None:
            waiting.append(pool.submit(read_range, at, min(durable.CHUNK, size - at)))
        data = rest or (waiting.popleft().result() if waiting else b"")
        rest = data[count:]
        return data[:count]

    with ThreadPoolExecutor(READ_AHEAD) as pool:
        try:
            yield read
        finally:
            for future in waiting:
                future.cancel()
