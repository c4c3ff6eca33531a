"""Runs that differ in the seed only: one after the other, and all at once.

Run ``python benchmarks/trainer_ensembles.py [--rounds 9] [--out docs/results/trainer_ensembles.md]``. Two networks: an
MLP of 64-32-10 on batches of 16 resident images of 8x8, and a residual network of eight layers on 32x32, both with SGD
and momentum, one thread. A turn is a few steps of every run; the sequential side is the trainer's own loop, and runs
twice, so that the table shows how far two equal programs are apart here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median

import torch
from registry_measuring import Contestant, Times, compete, machine
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.blueprints import build_pair, plan
from compatkit.contract import Blueprint, Data
from compatkit.data.dataset import DataSet, Split
from compatkit.plugins import RunPlugins
from compatkit.sweeps.ensembles import Ensemble, quiet
from compatkit.training.beginning import Begun
from compatkit.training.context import SetUp, TaskState
from compatkit.training.loop import Loop
from compatkit.training.optimisation import Optimisation
from compatkit.training.precision import Precision
from compatkit.training.schedules import Schedule
from compatkit.training.settings import Resolved
from compatkit.training.sources import Placing

IMAGES, CLASSES, RATE = 4096, 10, 0.01
GOAL = 8.0
"""How many times as fast 32 tiny networks are to be at once."""


def perceptron(seed: int) -> tuple[nn.Module, nn.Module]:
    """Return extractor and head of a network whose step is as small as steps get."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, CLASSES)


def residual(seed: int) -> tuple[nn.Module, nn.Module]:
    """Return extractor and head of a small convolutional network."""
    planned = plan("resnet8_cifar", "layer2", kwargs={"in_chans": 1, "num_classes": CLASSES}, size=(32, 32))
    _, extractor, head = build_pair(planned.extractor, planned.head, seed=seed)
    return extractor, head


def pictures(side: int) -> tuple[Tensor, Tensor]:
    """Return uint8 images and labels, the same each time."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 1, side, side), dtype=torch.uint8, generator=draw)
    return images, torch.randint(0, CLASSES, (IMAGES,), generator=draw)


def begun(build: Callable[[int], tuple[nn.Module, nn.Module]], side: int, batch: int, seed: int) -> Begun:
    """Return a run before its first step."""
    extractor, head = build(seed)
    images, labels = pictures(side)
    names = tuple(str(number) for number in range(CLASSES))
    data = Data((side, side), "L", (0.5,), (0.25,), "bilinear", tuple(ck.label(name) for name in names))
    split = Split(images.permute(0, 2, 3, 1).numpy(), labels.numpy(), names, "made")
    task = ck.Task("tiny", DataSet("made", split, split), "made", "0")
    print_ = Blueprint("made", "made 1", "made", {}, "0", "extractor", "fx", (side, side))
    state = TaskState(task, print_, print_, (), extractor, head, data, split, (2, 32))
    owners = {"tiny.extractor": extractor, "tiny.head": head}
    precision = Precision("cpu", "float32", False)
    setup = SetUp(seed, precision, {"tiny": state}, {}, lambda *given: None, owners=owners)
    rule = Optimisation("sgd", RATE, 0.9, 0.0)
    settings = Resolved(Schedule("constant"), rule, Placing())
    loop = Loop.create(setup, RunPlugins.create(()), settings, 10**9, batch)
    loop.train_mode()
    return Begun(ck.Trainer(steps=10**9), loop, {}, {})


def sequential(runs: Sequence[Begun], steps: int) -> Callable[[], object]:
    """Return what takes some steps of each run, one run after the other."""
    rounds = count()

    def turn() -> None:
        start = next(rounds) * steps
        for one in runs:
            for number in range(start, start + steps):
                one.loop.step(one.loop.setup.tasks["tiny"], number)

    return turn


def together(runs: Sequence[Begun], steps: int) -> Callable[[], object]:
    """Return what takes some steps of all runs at once."""
    ensemble, rounds = Ensemble.of(runs), count()

    def turn() -> None:
        start = next(rounds) * steps
        for number in range(start, start + steps):
            ensemble.step("tiny", number)

    return turn


def table(label: str, times: Times, steps: int, runs: int) -> list[str]:
    """Return a line for each contestant, and how many times as fast as sequential it is, round by round."""
    floor = [one.processor for one in times["sequential"]]
    found: list[str] = []
    for name, taken in times.items():
        gain = median(other / one.processor for one, other in zip(taken, floor, strict=True))
        least = 1e3 * min(one.processor for one in taken) / steps
        middle = 1e3 * median(one.processor for one in taken) / steps
        found.append(f"| {label}, {runs} runs | {name} | {least:.3f} | {middle:.3f} | {gain:.2f} |")
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        "# Runs at once",
        "",
        f"    python benchmarks/trainer_ensembles.py --rounds {given.rounds}",
        "",
        machine(),
        "",
        f"Milliseconds of the processor for one step of every run, {given.rounds} rounds in random order; the gain",
        f"is the median of the rounds' ratios to the sequential loop. Gate: {GOAL:g} x for 32 runs of the MLP. What is",
        "slower at once (gain below 1) is run one after the other: a sweep tries it first.",
        "",
        "| network | runs are taken | least ms | median ms | gain |",
        "|---|---|---:|---:|---:|",
    ]
    sizes = (
        ("MLP 64-32-10, batch 16", perceptron, 8, 16, 32, 64),
        ("resnet8, batch 32", residual, 32, 32, 8, 1),
    )
    for label, build, side, batch, runs, steps in sizes:
        members = [[begun(build, side, batch, seed) for seed in range(runs)] for _ in range(3)]
        contestants = {
            "sequential": Contestant(sequential(members[0], steps)),
            "sequential, again": Contestant(sequential(members[1], steps)),
            "vmap": Contestant(together(members[2], steps)),
        }
        with quiet():
            found += table(label, compete(contestants, given.rounds, given.seed), steps, runs)
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
