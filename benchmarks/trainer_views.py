"""Rotation prediction with separately normalized views: one extractor pass for all views against a pass for each.

Whole steps of the trainer on resident 32x32 images with crop and flip: target loss, rotation prediction, both
optimizers. On a CPU the figures are for information; the gates are for a GPU (``gpu.py``): four passes take at least
1.5 times as long as one in eager steps, and 1.2 times if both are compiled and captured.
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
from contest import Contestant, compete

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.prepare import FitRequest, prepare

CLASSES = tuple("0123456789")
GATES = {"eager": 1.5, "compile+graph": 1.2}


def data_set() -> DataSet:
    """Return a data set of noise images."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2048, 32, 32, 3), dtype=np.uint8)
    split = Split(images, np.arange(len(images)) % len(CLASSES), CLASSES, "noise/train")
    return DataSet("noise", split, split)


@attrs.frozen
class Setting:
    """Network, batch size, device and steps per turn of a benchmark."""

    device: str
    network: str
    batch: int
    steps: int


def steps(
    stack: ExitStack, setting: Setting, passes: Literal["fused", "separate"], mode: Any
) -> Callable[[], object]:
    """Return a function that runs ``setting.steps`` steps of the trainer."""
    task = ck.Task("noise", data_set(), setting.network, "layer2", size=32, augment=("crop", "flip"))
    trainer = ck.Trainer(
        steps=10**6,
        batch_size=setting.batch,
        device=setting.device,
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
        for _ in range(setting.steps):
            loop.step(state, next(numbers))
        if setup.precision.device != "cpu":
            torch.cuda.synchronize()

    return turn


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the section, measured on a CPU."""
    setting = Setting(device="cpu", network="resnet20_cifar", batch=16, steps=4)
    with ExitStack() as stack:
        contestants = {
            name: Contestant(steps(stack, setting, kind, "eager"))
            for name, kind in (
                *(("separate", "separate"), ("separate, again", "separate")),
                ("fused", "fused"),
            )
        }
        times = compete(contestants, rounds, seed)
    lines = [
        "## Rotation prediction in one extractor pass or in four, on a CPU",
        "",
        f"Milliseconds a step, {setting.network}, batches of {setting.batch}; the gain is the median of the rounds' "
        "ratios",
        "of separate passes to this. For information: on a CPU the trainer takes them one by one.",
        "",
        "| passes | least | median | gain |",
        "|---|---:|---:|---:|",
    ]
    for name, timings in times.items():
        step_ms = [1e3 * timing.processor / setting.steps for timing in timings]
        gain = median(
            separate.processor / timing.processor
            for timing, separate in zip(timings, times["separate"], strict=True)
        )
        lines.append(f"| {name} | {min(step_ms):.2f} | {median(step_ms):.2f} | {gain:.2f} |")
    return lines
