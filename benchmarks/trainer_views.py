"""Rotation prediction with one extractor pass for all four views against a pass for each.

Run ``python benchmarks/trainer_views.py [--device cuda] [--network resnet56_cifar] [--batch 512] [--modes eager
compile+graph] [--rounds 9] [--out FILE]``. Whole steps of the trainer on resident 32x32 images with crop and flip:
target loss, rotation prediction, both optimisers. On a CPU this is for information; the gates are for a GPU: four
passes take at least 1.5 times as long as one in eager steps, and 1.2 times where both are compiled and captured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from registry_measuring import Contestant, compete, machine

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.plugins import RunPlugins
from compatkit.training.execution import MODES
from compatkit.training.precision import Precision

CLASSES = tuple("0123456789")
GATES = {"eager": 1.5, "compile+graph": 1.2}


def data_set() -> DataSet:
    """Return noise."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (2048, 32, 32, 3), dtype=np.uint8)
    split = Split(images, np.arange(len(images)) % len(CLASSES), CLASSES, "noise/train")
    return DataSet("noise", split, split)


def steps(given: argparse.Namespace, passes: Literal["fused", "separate"], mode: Any) -> Callable[[], object]:
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
    plugins = RunPlugins.create(["rotation_prediction"])
    precision = Precision.choose(given.device, trainer.precision, trainer.channels_last)
    setup = trainer._set_up([task], plugins, precision, None, "stored")
    loop, numbers = trainer._loop(setup, plugins), count()
    if loop.execution.mode != mode:
        raise SystemExit(f"{mode} is not possible here: {loop.execution.reason}")
    state = setup.tasks["noise"]

    def turn() -> None:
        for _ in range(given.steps):
            loop.step(state, next(numbers))
        if precision.device != "cpu":
            torch.cuda.synchronize()

    return turn


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="resnet20_cifar")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10, help="a turn")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        "# One pass for four views",
        "",
        f"    python benchmarks/trainer_views.py --device {given.device} --network {given.network} "
        f"--batch {given.batch} --modes {' '.join(given.modes)} --rounds {given.rounds}",
        "",
        machine(),
        torch.cuda.get_device_name() if torch.device(given.device).type == "cuda" else "",
        f"Milliseconds a step on {given.device}, batches of {given.batch}, {given.steps} steps a turn, {given.rounds}",
        "rounds in random order; the ratio is the median of the rounds' ratios of separate passes to this.",
        "",
        "| steps | passes | least | median | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for mode in given.modes:
        contestants = {
            "separate": Contestant(steps(given, "separate", mode)),
            "separate, again": Contestant(steps(given, "separate", mode)),
            "fused": Contestant(steps(given, "fused", mode)),
        }
        times = compete(contestants, given.rounds, given.seed)
        for name, taken in times.items():
            each = [1e3 * one.wall / given.steps for one in taken]
            ratio = median(o.wall / one.wall for one, o in zip(taken, times["separate"], strict=True))
            gate = ""
            if name == "fused" and given.device != "cpu" and mode in GATES:
                gate = f" (gate {GATES[mode]:g}: {'pass' if ratio >= GATES[mode] else 'FAIL'})"
            found.append(f"| {mode} | {name} | {min(each):.2f} | {median(each):.2f} | {ratio:.2f}{gate} |")
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
