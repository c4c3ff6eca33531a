"""What several rungs stand on is made once, and the seconds that it took count for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define(eq=False)
class Once(Generic[T]):
    """A value that is made when it is first asked for.

    Attributes:
        make: Makes it.
    """

    make: Callable[[], T]
    _value: T | None = None
    _seconds: float = 0.0
    _asked: bool = False
    _made: bool = False

    def get(self) -> T:
        """Return the value."""
        self._asked = True
        if self._value is None:
            began = time.perf_counter()
            self._value = self.make()
            self._seconds, self._made = time.perf_counter() - began, True
        return self._value

    def lent(self) -> float:
        """Return what making it took if, since this was asked last, somebody got it who did not make it; else 0."""
        lent = self._asked and not self._made
        self._asked = self._made = False
        return self._seconds if lent else 0.0
