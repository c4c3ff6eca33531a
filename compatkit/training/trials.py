"""A short trial on a GPU: which way to execute the steps of this very run is the fastest here."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import torch

from compatkit.training.agreement import untouched
from compatkit.training.execution import MODES, Execution, Mode, possible

if TYPE_CHECKING:
    from compatkit.training.loop import Loop

STEPS = 20
"""Of each task, timed after as many that warm up."""
WORTH = 0.97
"""A mode that takes more than this share of a simpler one's time is not worth it."""
SHORT = 60
"""Seconds; what takes less as it is, compiles nothing."""


def fastest(loop: Loop) -> Execution:
    """Return the fastest mode of those that compute the same; the run is afterwards what it was.

    Modes are tried from the simplest on. Whoever asks for the same twice may get different answers: times differ.
    """
    plugins = loop.plugins
    for bound in (*plugins.views, *plugins.losses, *plugins.after_backward):
        if bound.effect == "host":
            return Execution(
                "eager", f"a trial would call the plugin {bound.instance!r}, whose effect is 'host'"
            )
    best, least, told = Execution("eager", ""), _seconds(loop, "eager"), []
    for mode in MODES[1:]:
        if mode.startswith("compile") and least * loop.steps < SHORT:
            told.append(f"{mode} would take longer to make than it could save")
            continue
        there = possible(loop, mode)
        if there.mode != mode:
            told.append(there.reason)
            continue
        seconds = _seconds(loop, mode)
        if seconds < WORTH * least:
            best, least = there, seconds
    reason = f"the fastest of those that were possible, in a trial of {STEPS} steps"
    return Execution(best.mode, "; ".join([reason, *told]))


def _seconds(loop: Loop, mode: Mode) -> float:
    """Return the seconds that one step of every task takes."""
    before = loop.execution
    try:
        with untouched(loop):
            loop.set_execution(Execution(mode, "on trial"))
            numbers = count()
            _take(loop, numbers)
            torch.cuda.synchronize()
            began = time.perf_counter()
            _take(loop, numbers)
            torch.cuda.synchronize()
            return (time.perf_counter() - began) / STEPS
    finally:
        loop.set_execution(before)


def _take(loop: Loop, numbers: count[int]) -> None:
    for _ in range(STEPS):
        number = next(numbers)
        for lane in loop.lanes.values():
            loop.work(lane, number)
