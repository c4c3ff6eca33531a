"""What the trainer adds to a step of a hand-written loop, where a step is as small as steps get.

Run ``python benchmarks/trainer.py [--rounds 15] [--out docs/results/trainer.md]``. An MLP of 64-32-10, batches of 16
resident images of 8x8, SGD with momentum or Adam, one thread. The bare loop does the same work in the shortest code
that does it as fast: a gather, a normalisation in one operation, forward, backward, one fused optimiser; losses and
answers are kept and not read. It runs twice, so that the table shows how far two equal programs are apart here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from registry_measuring import Contestant, Times, compete, machine
from torch import Tensor, nn

import compatkit as ck
from compatkit.contract import Blueprint, Data
from compatkit.data.dataset import DataSet, Split
from compatkit.hooks import effect
from compatkit.plugins import RunPlugins
from compatkit.training.context import SetUp, TaskState
from compatkit.training.loop import Loop
from compatkit.training.optimisation import Optimisation
from compatkit.training.precision import Precision
from compatkit.training.schedules import Schedule
from compatkit.training.sources import Placing

STEPS = 300
"""A turn."""
IMAGES, SIDE, CLASSES, BATCH = 4096, 8, 10, 16
MEAN, STD, RATE, MOMENTUM = 0.5, 0.25, 0.01, 0.9
IDLE = ("first", "second", "third")


class Idle:
    """Implements three events of a step and does nothing in them."""

    @ck.hookimpl
    @effect("pure")
    def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
        """Leave the batch as it is."""
        return batch

    @ck.hookimpl
    def compatkit_after_backward(self, step: ck.Step) -> None:
        """Do nothing."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Do nothing."""


def network() -> tuple[nn.Module, nn.Module]:
    """Return extractor and head, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU()), nn.Linear(32, CLASSES)


def pictures() -> tuple[Tensor, Tensor]:
    """Return uint8 images and labels, the same each time."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=torch.uint8, generator=draw)
    return images, torch.randint(0, CLASSES, (IMAGES,), generator=draw)


def bare(kind: str) -> Callable[[], object]:
    """Return what takes a turn of a hand-written loop."""
    extractor, head = network()
    parameters = [*extractor.parameters(), *head.parameters()]
    optimiser = (
        torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=True)
        if kind == "sgd"
        else torch.optim.Adam(parameters, lr=RATE, fused=True)
    )
    images, labels = pictures()
    scale, shift, numbers = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD), count()

    def turn() -> None:
        order, kept = torch.randperm(IMAGES), []
        for _ in range(STEPS):
            place = next(numbers) * BATCH % IMAGES
            index = order[place : place + BATCH]
            wanted = labels[index]
            logits = head(extractor(torch.addcmul(shift, images[index].float(), scale)))
            loss = F.cross_entropy(logits, wanted)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            kept.append((loss.detach(), logits.detach().argmax(1), wanted))

    return turn


def ours(kind: str, idle: int) -> Callable[[], object]:
    """Return what takes a turn of the trainer's loop with some idle plugins."""
    extractor, head = network()
    images, labels = pictures()
    names = tuple(str(number) for number in range(CLASSES))
    data = Data((SIDE, SIDE), "L", (MEAN,), (STD,), "bilinear", tuple(ck.label(name) for name in names))
    split = Split(images.permute(0, 2, 3, 1).numpy(), labels.numpy(), names, "made")
    task = ck.Task("tiny", DataSet("made", split, split), "mlp", "0")
    print_ = Blueprint("made", "made 1", "mlp", {}, "0", "extractor", "fx", (SIDE, SIDE))
    state = TaskState(task, print_, print_, (), extractor, head, data, split, (2, 32))
    owners = {"tiny.extractor": extractor, "tiny.head": head}
    precision = Precision("cpu", "float32", False)
    setup = SetUp(0, precision, {"tiny": state}, {}, lambda *given: None, owners=owners)
    plugins = RunPlugins.create(IDLE[:idle], factories=dict.fromkeys(IDLE, Idle))
    rule = Optimisation(kind, RATE, MOMENTUM, 0.0)  # type: ignore[arg-type]
    loop, numbers = Loop.create(setup, plugins, rule, Schedule("constant"), 10**9, BATCH, Placing()), count()
    loop.train_mode()

    def turn() -> None:
        for _ in range(STEPS):
            loop.step(state, next(numbers))

    return turn


def table(kind: str, times: Times) -> list[str]:
    """Return a line for each contestant: microseconds a step, and what it adds, round by round."""
    floor = [one.processor / STEPS for one in times["bare"]]
    found: list[str] = []
    for label, taken in times.items():
        steps = [one.processor / STEPS for one in taken]
        added = median(1e6 * (one - other) for one, other in zip(steps, floor, strict=True))
        share = median(one / other - 1 for one, other in zip(steps, floor, strict=True))
        found.append(
            f"| {kind} | {label} | {1e6 * min(steps):.1f} | {1e6 * median(steps):.1f} | {added:+.1f} | {share:+.1%} |"
        )
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        "# What the trainer adds",
        "",
        f"    python benchmarks/trainer.py --rounds {given.rounds}",
        "",
        machine(),
        "",
        f"Microseconds of the processor a step, {STEPS} steps a turn, {given.rounds} rounds in random order; what is",
        "added is the median of the rounds' differences from the bare loop. Gate: at most + 8 us and + 8 % with three",
        "idle plugins.",
        "",
        "| optimiser | loop | least | median | added | |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind in ("sgd", "adam"):
        contestants = {
            "bare": Contestant(bare(kind)),
            "bare, again": Contestant(bare(kind)),
            "ours": Contestant(ours(kind, 0)),
            "ours, 3 idle plugins": Contestant(ours(kind, 3)),
        }
        found += table(kind, compete(contestants, given.rounds, given.seed))
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
