"""Bringing many blobs, several at once: one that is refused stops no other, surroundings that fail stop all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.moved import Item, Progress
from compatkit.registry.copy.sources import Source
from compatkit.registry.copy.targets import Target

JOBS = 8
"""Blobs that move at once."""


class Stopped(Exception):
    """Another blob failed in a way that ends the whole."""


@attrs.define(eq=False)
class Bringing:
    """The blobs of one move.

    Attributes:
        source: Where they are.
        target: Where they shall be too.
        jobs: Blobs that move at once.
        progress: Told of blobs, and in words of bytes.
        items: Blobs that were moved.
        closure: What belongs to what.
    """

    source: Source
    target: Target
    jobs: int
    progress: Progress
    items: list[Item]
    closure: Closure = attrs.field(init=False)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _arrived: int = attrs.field(init=False, default=0)
    _total: int = attrs.field(init=False, default=0)
    _done: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    def __attrs_post_init__(self) -> None:
        """Join both sides."""
        if self.jobs < 1:
            raise UsageError(f"jobs is the number of blobs that move at once, from 1; got {self.jobs}.")
        self.closure = Closure(self.source, self.target.carrier(self.source, self._count))

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Return which blobs are not there."""
        return self.target.lacking({one: self.closure.parts[one].size for one in digests})

    def item(self, digest: str) -> Item:
        """Return what is told of a blob."""
        part = self.closure.parts[digest]
        size = part.size if part.size is not None else self.source.size(digest)
        return Item(digest, size or 0, part.whose)

    def bring(self, digests: Sequence[str]) -> dict[str, CompatkitError]:
        """Bring blobs; return why some were refused.

        Raises:
            EnvironmentFailure: The surroundings failed; the others were stopped.
        """
        items = {one: self.item(one) for one in self.lacking(digests)}
        self._arrived, self._total = 0, sum(one.bytes for one in items.values())
        failed: dict[str, CompatkitError] = {}
        with ThreadPoolExecutor(self.jobs) as pool:
            running = {pool.submit(self.closure.bring, one): one for one in digests}
            try:
                for place, one in enumerate(as_completed(running)):
                    digest, error = running[one], one.exception()
                    if isinstance(error, CompatkitError) and not isinstance(error, EnvironmentFailure):
                        failed[digest] = error
                    elif error is not None:
                        raise error
                    elif digest in items:
                        self.items.append(items[digest])
                    self._done = place, len(digests)
                    self._tell()
            except BaseException:
                self._stop.set()
                for other in running:
                    other.cancel()
                raise
        self.target.settle()
        return failed

    def _count(self, arrived: int) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._arrived += arrived
        self._tell()

    def _tell(self) -> None:
        self.progress(*self._done, f"{self._arrived / 1e6:.1f} of {self._total / 1e6:.1f} MB")
