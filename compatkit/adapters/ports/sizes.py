"""Find how one size follows another, from runs at few sizes: ``(s + add) // floordiv + plus``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compatkit.contracts.contract import Scaled

LARGEST_STRIDE = 64

_DIVS = np.array([div for div in range(1, LARGEST_STRIDE + 1) for _ in range(div)])
_ADDS = np.array([add for div in range(1, LARGEST_STRIDE + 1) for add in range(div)])


class SizeRule:
    """All rules that agree with what was measured so far.

    A chain of convolutions and poolings always follows such a rule: nested floors of this kind are one floor,
    ``((s + a) // m + b) // n = (s + a + b m) // (m n)``. Rules are kept with ``0 <= add < floordiv``.

    Args:
        of: Symbol of the size that is followed, ``"H"`` or ``"W"``.
        step: Of the sizes that are taken. A rule divides it, or is divided by it: others agree by chance on the few
            sizes of a large step.
    """

    def __init__(self, of: str, step: int = 1) -> None:
        self.of = of
        self.seen: dict[int, int] = {}
        fits = (_DIVS % step == 0) | (step % _DIVS == 0)
        self._div, self._add = _DIVS[fits], _ADDS[fits]
        self._plus = np.zeros_like(self._div)

    def add(self, size: int, out: int) -> None:
        """Take in one measurement and drop the rules that disagree with it."""
        if not self.seen:
            self._plus = out - (size + self._add) // self._div
        self.seen[size] = out
        agree = self._at(size) == out
        self._div, self._add, self._plus = self._div[agree], self._add[agree], self._plus[agree]

    @property
    def rule(self) -> Scaled | None:
        """The simplest rule that agrees with all measurements; None where none does."""
        if not len(self._div):
            return None
        first = np.lexsort((self._add, self._div, self._plus != 0))[0]
        return Scaled(self.of, int(self._add[first]), int(self._div[first]), int(self._plus[first]))

    def next_size(self, sizes: Sequence[int]) -> int | None:
        """Return the size whose outcome tells most of the rules apart; None once all of them agree."""
        best, least = None, len(self._div)
        for size in sizes:
            if size in self.seen or least < 2:
                continue
            worst = int(np.unique(self._at(size), return_counts=True)[1].max())
            if worst < least:
                best, least = size, worst
        return best

    def _at(self, size: int) -> np.ndarray:
        return (size + self._add) // self._div + self._plus
