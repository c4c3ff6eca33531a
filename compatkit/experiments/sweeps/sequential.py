"""Runs one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compatkit.experiments.sweeps.orders import Bench, Order, carry_out
from compatkit.experiments.sweeps.records import Record


def sequential(orders: Sequence[Order], bench: Bench, each: Callable[[Record], None]) -> None:
    """Carry out ``orders``; ``each`` is given the record of every run as soon as it has ended."""
    for order in orders:
        each(carry_out(order, bench))
