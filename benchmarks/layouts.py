"""Measure what NHWC in memory changes in a matrix: processor time, and right answers.

    python benchmarks/layouts.py [--rounds 3] [--images 400] [--only NETWORK ...]

Networks are trained for a few steps on noise with one bright row for each class, and cut. ``measure`` runs by turns in
both layouts; the gain is the time in NCHW by that in NHWC.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np
import torch
from contest import Contestant, compete, machine, ratios, say

import compatkit as ck
from compatkit.components.loading import load
from compatkit.contracts.evidence import Cell
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import measure

NETWORKS = {
    "resnet20_cifar": ("layer3", 16),
    "resnet20_cifar, 32": ("layer3", 32),
    "resnet18": ("layer3", 64),
    "mobilenetv3_small_100": ("blocks.3", 96),
}
"""Cut and size of the images, by name of the network."""
SIDE, CLASSES, STEPS, BATCH = 2, 10, 10, 128


def noise(count: int, size: int, seed: int) -> ck.data.Split:
    """Return color noise with one brighter row for each class."""
    draw, labels = np.random.default_rng(seed), np.arange(count) % CLASSES
    images = draw.integers(0, 160, (count, size, size, 3)).astype(np.uint8)
    images[np.arange(count), 1 + labels] += 60
    return ck.data.Split(images, labels, tuple(map(str, range(CLASSES))), f"noise/{seed}")


def line(name: str, policy: str, rounds: int, images: int) -> str:
    """Return the row of a network under a policy."""
    cut, size = NETWORKS[name]
    with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        data = ck.data.DataSet("noise", noise(256, size, 1), noise(images, size, 2))
        tasks = [ck.Task(f"n{number}", data, name.split(",")[0], cut, size=size) for number in range(SIDE)]
        registry = ck.Registry.init(Path(folder) / "parts")
        registry.publish(ck.Trainer(steps=STEPS, batch_size=32, progress=False).fit(tasks), prefix="b")
        lefts, rights = (
            [load(registry.store, part) for part in registry.store.select(f"b/*.{kind}", kind)]
            for kind in ("extractor", "head")
        )
        sets, cells = {part.reference: data.test for part in lefts}, dict[bool, list[Cell]]()

        def contestant(last: bool) -> Contestant:
            conditions = Conditions(policy, BATCH, channels_last=last)
            return Contestant(
                lambda: measure(lefts, rights, sets, conditions),
                check=lambda found: cells.update({last: found}),
            )

        times = compete({"NCHW": contestant(False), "NHWC": contestant(True)}, rounds, seed=0)
    gain = statistics.median(ratios(times, "NCHW", "NHWC", processor=True))
    right = [[cell.restricted.correct for cell in cells[last] if cell.restricted] for last in (False, True)]
    most = max(abs(one - other) for one, other in zip(*right, strict=True))
    return f"| {name.split(',')[0]} | {size} | {policy} | {gain:.2f} | {most} of {images} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}\n")
    print("| network | pixels | policy | gain | right answers that differ, at most |\n|---|---|---|---|---|")
    for name in options.only:
        for policy in ("batch", "running"):
            row = line(name, policy, options.rounds, options.images)
            say(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
