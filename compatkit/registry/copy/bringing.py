"""Bringing many blobs, several at once: one that is refused stops no other, surroundings that fail stop all."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.places import Source, Target
from compatkit.registry.copy.report import Item


class Stopped(Exception):
    """Another blob failed in a way that ends the whole."""


@attrs.define(eq=False)
class Bringing:
    """The blobs of one move.

    Attributes:
        source: Where they are.
        target: Where they shall be too.
        choice: How many move at once, and who is told of it.
        items: Blobs that were moved.
        closure: What belongs to what.
    """

    source: Source
    target: Target
    choice: Choice
    items: list[Item]
    closure: Closure = attrs.field(init=False)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _arrived: int = attrs.field(init=False, default=0)
    _total: int = attrs.field(init=False, default=0)
    _done: tuple[int, int] = attrs.field(init=False, default=(0, 0))

    def __attrs_post_init__(self) -> None:
        """Join both sides."""
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
        self._arrived, self._total = 0, sum(self.item(one).bytes for one in self.lacking(digests))
        failed: dict[str, CompatkitError] = {}
        with closing(self._each(digests)) as each:
            for place, (digest, came) in enumerate(each):
                if isinstance(came, CompatkitError):
                    failed[digest] = came
                elif came:
                    self.items.append(self.item(digest))
                self._done = place, len(digests)
                self._tell()
        self.target.settle()
        return failed

    def _each(self, digests: Sequence[str]) -> Generator[tuple[str, bool | CompatkitError]]:
        """Yield each blob with whether it was copied, or why it was refused, in the order in which they end."""
        if self.choice.jobs == 1:
            yield from map(self._one, digests)
            return
        with ThreadPoolExecutor(self.choice.jobs) as pool:
            running = [pool.submit(self._one, one) for one in digests]
            try:
                for one in as_completed(running):
                    yield one.result()
            except BaseException:
                self._stop.set()
                for other in running:
                    other.cancel()
                raise

    def _one(self, digest: str) -> tuple[str, bool | CompatkitError]:
        try:
            return digest, self.closure.bring(digest)
        except CompatkitError as error:
            if self.choice.strict or isinstance(error, EnvironmentFailure):
                raise
            return digest, error

    def _count(self, arrived: int) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._arrived += arrived
        self._tell()

    def _tell(self) -> None:
        self.choice.progress(*self._done, f"{self._arrived / 1e6:.1f} of {self._total / 1e6:.1f} MB")
