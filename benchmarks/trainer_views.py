"""Rotation prediction, each view normalized by itself, with one extractor pass for all views against a pass for each.

Whole steps of the trainer on resident 32x32 images with crop and flip: target loss, rotation prediction, both
optimizers. On a CPU this is for information; the gates are for a GPU (``gpu.py``): four passes take at least 1.5 times
as long as one in eager steps, and 1.2 times where both are compiled and captured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from statistics import median
from typing import Any, Literal

import attrs
import numpy as np
import torch
from registry_measuring import Contestant, compete

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.prepare import FitRequest, prepare

CLASSES = tuple("0123456789")
GATES = {"eager": 1.5, "compile+graph": 1.2}


def data_set() -> DataSet:
    """Return noise."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (2048, 32, 32, 3), dtype=np.uint8)
    split = Split(images, np.arange(len(images)) % len(CLASSES), CLASSES, "noise/train")
    return DataSet("noise", split, split)


@attrs.frozen
class Setting:
    """Network, data and device of a benchmark; ``steps`` a turn."""

    device: str
    network: str
    batch: int
    steps: int


def steps(
    stack: ExitStack, given: Setting, passes: Literal["fused", "separate"], mode: Any
) -> Callable[[], object]:
    """Return what takes some steps of the trainer."""
    task = ck.Task("noise", data_set(), given.network, "layer2", size=32, augment=("crop", "flip"))
    trainer = ck.Trainer(
        steps=10**6,
        batch_size=given.batch,
        device=given.device,
        passes=passes,
        execution=mode,
        progress=False,
    )
    loop, numbers = (
        stack.enter_context(
            prepare(FitRequest(trainer, [task], [ck.use("rotation_prediction", views="per_view")]))
        ).loop,
        count(),
    )
    if loop.execution.mode != mode:
        raise RuntimeError(f"{mode} is not possible here: {loop.execution.reason}")
    setup = loop.setup
    state = setup.tasks["noise"]

    def turn() -> None:
        for _ in range(given.steps):
            loop.step(state, next(numbers))
        if setup.precision.device != "cpu":
            torch.cuda.synchronize()

    return turn


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the page: on a CPU, for information."""
    given = Setting(device="cpu", network="resnet20_cifar", batch=16, steps=4)
    with ExitStack() as stack:
        contestants = {
            name: Contestant(steps(stack, given, kind, "eager"))
            for name, kind in (
                *(("separate", "separate"), ("separate, again", "separate")),
                ("fused", "fused"),
            )
        }
        times = compete(contestants, rounds, seed)
    found = [
        "## Rotation prediction in one extractor pass or in four, on a CPU",
        "",
        f"Milliseconds a step, {given.network}, batches of {given.batch}; the gain is the median of the rounds' ratios",
        "of separate passes to this. For information: on a CPU the trainer takes them one by one.",
        "",
        "| passes | least | median | gain |",
        "|---|---:|---:|---:|",
    ]
    for name, taken in times.items():
        each = [1e3 * one.processor / given.steps for one in taken]
        gain = median(o.processor / one.processor for one, o in zip(taken, times["separate"], strict=True))
        found.append(f"| {name} | {min(each):.2f} | {median(each):.2f} | {gain:.2f} |")
    return found
