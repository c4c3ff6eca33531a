"""Runs that differ in the seed only: one after the other, and all at once.

Two networks: an MLP of 64-32-10 on batches of 16 resident images of 8x8, and a residual network of eight layers on
32x32, both with SGD and momentum, one thread. A turn is a few steps of every run; the sequential side is the trainer's
own loop, and runs twice, so that the table shows how far two equal programs are apart here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from statistics import median

import torch
from registry_measuring import Contestant, Times, compete
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.blueprints import build_pair, plan
from compatkit.contracts.contract import Blueprint, Data
from compatkit.data.dataset import DataSet, Split
from compatkit.experiments.sweeps.ensembles import Ensemble, quiet
from compatkit.plugins import RunPlugins
from compatkit.training.loop import Loop
from compatkit.training.precision import Precision
from compatkit.training.prepare import PreparedRun
from compatkit.training.set_up import SetUp
from compatkit.training.state import TaskState

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


def begun(
    build: Callable[[int], tuple[nn.Module, nn.Module]], side: int, batch: int, seed: int
) -> PreparedRun:
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
    settings = ck.Trainer(
        steps=10**9, batch_size=batch, optimiser="sgd", lr=RATE, weight_decay=0.0, schedule="constant"
    )
    loop = Loop.create(settings, setup, RunPlugins.create(()))
    loop.train_mode()
    return PreparedRun(loop, {}, {})


def sequential(runs: Sequence[PreparedRun], steps: int) -> Callable[[], object]:
    """Return what takes some steps of each run, one run after the other."""
    rounds = count()

    def turn() -> None:
        start = next(rounds) * steps
        for one in runs:
            for number in range(start, start + steps):
                one.loop.step(one.loop.setup.tasks["tiny"], number)

    return turn


def together(runs: Sequence[PreparedRun], steps: int) -> Callable[[], object]:
    """Return what takes some steps of all runs at once."""
    ensemble, rounds = Ensemble.of(runs), count()

    def turn() -> None:
        start = next(rounds) * steps
        for number in range(start, start + steps):
            ensemble.step("tiny", number)

    return turn


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the page."""
    found = [
        "## Runs at once",
        "",
        "Milliseconds of the processor for one step of every run; the gain is the median of the rounds' ratios of the",
        "sequential loop to this. What is slower at once (a gain below 1) is run one after the other: a sweep tries it",
        "first.",
        "",
        "| network | runs are taken | least ms | median ms | gain | |",
        "|---|---|---:|---:|---:|---|",
    ]
    sizes = (
        ("MLP 64-32-10, batch 16", perceptron, 8, 16, 32, 20, GOAL),
        ("resnet8, batch 32", residual, 32, 32, 8, 1, None),
    )
    for label, build, side, batch, runs, steps, goal in sizes:
        members = [[begun(build, side, batch, seed) for seed in range(runs)] for _ in range(3)]
        contestants = {
            "sequential": Contestant(sequential(members[0], steps)),
            "sequential, again": Contestant(sequential(members[1], steps)),
            "vmap": Contestant(together(members[2], steps)),
        }
        with quiet():
            found += _lines(f"{label}, {runs} runs", compete(contestants, rounds, seed), steps, goal)
    return found


def _lines(label: str, times: Times, steps: int, goal: float | None) -> list[str]:
    floor = [one.processor for one in times["sequential"]]
    found: list[str] = []
    for name, taken in times.items():
        gain = median(other / one.processor for one, other in zip(taken, floor, strict=True))
        each = [1e3 * one.processor / steps for one in taken]
        gate = ""
        if name == "vmap" and goal is not None:
            gate = f"gate {goal:g}: {'pass' if gain >= goal else 'FAIL'}"
        found.append(f"| {label} | {name} | {min(each):.3f} | {median(each):.3f} | {gain:.2f} | {gate} |")
    return found
