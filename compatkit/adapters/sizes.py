"""Find how one size follows another, from runs at few sizes: ``(s + add) // floordiv + plus``."""

from __future__ import annotations

from collections.abc import Sequence

from compatkit.contract import Scaled

LARGEST_STRIDE = 64


class SizeRule:
    """All rules that agree with what was measured so far.

    A chain of convolutions and poolings always follows such a rule: nested floors of this kind are one floor,
    ``((s + a) // m + b) // n = (s + a + b m) // (m n)``. Rules are kept with ``0 <= add < floordiv``.

    Args:
        of: Symbol of the size that is followed, ``"H"`` or ``"W"``.
    """

    def __init__(self, of: str) -> None:
        self.of = of
        self.seen: dict[int, int] = {}
        self.rules: list[Scaled] = []

    def add(self, size: int, out: int) -> None:
        """Take in one measurement and drop the rules that disagree with it."""
        if not self.seen:
            self.rules = [
                Scaled(self.of, add, div, out - (size + add) // div)
                for div in range(1, LARGEST_STRIDE + 1)
                for add in range(div)
            ]
        self.seen[size] = out
        self.rules = [rule for rule in self.rules if rule.at(size) == out]

    @property
    def constant(self) -> int | None:
        """The one size that came out of all, or None where they differ."""
        found = set(self.seen.values())
        return found.pop() if len(found) == 1 else None

    def next_size(self, sizes: Sequence[int]) -> int | None:
        """Return the size whose outcome tells most of the rules apart; None once all of them agree."""
        best, least = None, len(self.rules)
        for size in sizes:
            if size in self.seen:
                continue
            counts: dict[int, int] = {}
            for rule in self.rules:
                counts[rule.at(size)] = counts.get(rule.at(size), 0) + 1
            worst = max(counts.values(), default=0)
            if worst < least:
                best, least = size, worst
        return best
