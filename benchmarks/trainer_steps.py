"""Whole steps of a realistic network: two tasks against the sum of two loops, and the speed-up of the CPU defaults.

ResNet-20 at 32 x 32 pixels, resident images with crop and flip. A hand-written step makes the same computations:
the same gather (compatkit's own, as a slower one would bias the result), forward, backward, fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from contest import Contestant, Times, Timing, compete
from torch import nn

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.loop import Loop
from compatkit.training.precision import has_fast_bf16
from compatkit.training.prepare import FitRequest, prepare

BATCH, STEPS = 64, 4
JOINT, DEFAULTS = 1.02, 1.5
AUGMENT = ("crop", "flip")


def data(name: str) -> DataSet:
    """Return a data set of noise images in the shape of CIFAR-10."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (2048, 32, 32, 3), dtype=np.uint8)
    split = Split(pixels, np.arange(len(pixels)) % 10, tuple("0123456789"), f"{name}/train")
    return DataSet(name, split, split.renamed(f"{name}/test"))


def loop(stack: ExitStack, names: tuple[str, ...], **settings: Any) -> Loop:
    """Return the loop of a prepared run of the tasks."""
    tasks = [ck.Task(name, data(name), "resnet20_cifar", "layer2", augment=AUGMENT) for name in names]
    trainer = ck.Trainer(**{"steps": 10**9, "batch_size": BATCH, "progress": False, **settings})
    return stack.enter_context(prepare(FitRequest(trainer, tasks))).loop


def turns(loop: Loop) -> Callable[[], object]:
    """Return a function that runs ``STEPS`` steps of every task of a loop."""
    numbers = count()

    def turn() -> None:
        for _ in range(STEPS):
            number = next(numbers)
            for state in loop.setup.tasks.values():
                loop.step(state, number)

    return turn


def by_hand(loop: Loop) -> Callable[[], object]:
    """Return a function that runs ``STEPS`` hand-written steps of one task, with the modules and images of ``loop``."""
    (task_loop,) = loop.task_loops.values()
    network = nn.Sequential(task_loop.task.extractor, task_loop.task.head)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-7, fused=True)
    numbers, history, autocast = count(), [], loop.setup.precision.autocast

    def turn() -> None:
        for _ in range(STEPS):
            batch = task_loop.source.batch(next(numbers))
            with autocast():
                logits = network(batch.images)
            loss = F.cross_entropy(logits.float(), batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            history.append((loss.detach(), logits.detach().argmax(1), batch.labels))
        history.clear()

    return turn


def joint(rounds: int) -> list[float]:
    """Return the processor time of a step of two tasks by that of two hand-written steps, in each round."""
    with ExitStack() as stack:
        contestants = {name: Contestant(by_hand(loop(stack, (name,)))) for name in ("left", "right")}
        contestants["both"] = Contestant(turns(loop(stack, ("left", "right"))))
        times = compete(contestants, rounds, seed=0)
    return _joint(times["both"], times["left"], times["right"])


def _joint(*turns: Sequence[Timing]) -> list[float]:
    return [
        both.processor / (left.processor + right.processor) for both, left, right in zip(*turns, strict=True)
    ]


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the section."""
    with ExitStack() as stack:
        contestants: Mapping[str, Contestant] = {
            "left, by hand": Contestant(by_hand(loop(stack, ("left",)))),
            "right, by hand": Contestant(by_hand(loop(stack, ("right",)))),
            "left, by hand, again": Contestant(by_hand(loop(stack, ("left",)))),
            "both, ours": Contestant(turns(loop(stack, ("left", "right")))),
            "left, ours": Contestant(turns(loop(stack, ("left",)))),
            "left, float32, contiguous": Contestant(
                turns(loop(stack, ("left",), precision="float32", channels_last=False))
            ),
            "left, float32, channels_last": Contestant(
                turns(loop(stack, ("left",), precision="float32", channels_last=True))
            ),
        }
        times = compete(contestants, rounds, seed)
    return _lines(times)


def _lines(times: Times) -> list[str]:
    lines = [
        "## Whole steps",
        "",
        f"ResNet-20, 32 x 32 pixels, batches of {BATCH}, crop and flip, Adam; ms of the processor a step, median and",
        "least; ratios are the median of the rounds' ratios.",
        "",
        "| step | ms | |",
        "|---|---:|---:|",
    ]
    for label, timings in times.items():
        steps = [1000 * timing.processor / STEPS for timing in timings]
        lines.append(f"| {label} | {median(steps):.1f} | {min(steps):.1f} |")
    both = median(_joint(times["both, ours"], times["left, by hand"], times["right, by hand"]))
    noise = _ratio(times, "left, by hand, again", "left, by hand")
    defaults = _ratio(times, "left, float32, contiguous", "left, ours")
    fast = has_fast_bf16()
    gate = DEFAULTS if fast else 1.0
    return [
        *lines,
        "",
        f"- Two tasks against the sum of two hand-written steps: {both:.3f} x (gate at most {JOINT}): "
        f"{'pass' if both <= JOINT else 'FAIL'}. Two equal programs: {noise:.3f} x.",
        f"- The defaults ({'bf16' if fast else 'float32'}, channels_last) against float32 contiguous: "
        f"{defaults:.2f} x as fast (gate at least {gate:g}): {'pass' if defaults >= gate else 'FAIL'}.",
    ]


def _ratio(times: Times, label: str, floor: str) -> float:
    return median(
        timing.processor / floor_timing.processor
        for timing, floor_timing in zip(times[label], times[floor], strict=True)
    )
