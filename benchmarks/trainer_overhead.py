"""What the trainer adds to a step of a hand-written loop, where a step is as small as steps get; and what others add.

An MLP of 64-32-10, batches of 16 resident images of 8x8, SGD with momentum or Adam, one thread. The bare loop does the
same work in the shortest code that does it as fast: a gather, a normalization in one operation, forward, backward, one
fused optimizer; losses and answers are kept and not read. It runs twice, so that the table shows how far two equal
programs are apart here. Fabric and Lightning (``trainer_rivals``) do the same work their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import ceil, floor
from statistics import median, quantiles

import torch
import torch.nn.functional as F
from registry_measuring import Contestant, Times, compete
from trainer_rivals import rivals
from trainer_tiny import (
    BATCH,
    CLASSES,
    IMAGES,
    MEAN,
    MOMENTUM,
    RATE,
    SIDE,
    STD,
    STEPS,
    make_optimizer,
    network,
    pictures,
)

import compatkit as ck
from compatkit.contracts.contract import Blueprint, Data
from compatkit.data.dataset import DataSet, Split
from compatkit.hooks import effect
from compatkit.plugins import RunPlugins
from compatkit.training.loop import Loop
from compatkit.training.plugin_setup import SetUp
from compatkit.training.precision import Precision
from compatkit.training.task_state import TaskState

IDLE = ("first", "second", "third")
OURS, OURS_IDLE = "ours", "ours, 3 idle plugins"
GATE_US, GATE_SHARE = 8.0, 0.08
TURNS, RIVALS_TURNS = 60, 10
"""A round: two equal programs are some microseconds apart in the median of 60 turns, as much as what is looked for."""


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


def bare(kind: str) -> Callable[[], object]:
    """Return what takes a turn of a hand-written loop."""
    extractor, head = network()
    parameters = [*extractor.parameters(), *head.parameters()]
    optimizer = make_optimizer(kind, parameters)
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
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            kept.append((loss.detach(), logits.detach().argmax(1), wanted))

    return turn


def ours(kind: str, idle: int) -> Callable[[], object]:
    """Return what takes a turn of the trainer's loop with some idle plugins."""
    extractor, head = network()
    images, labels = pictures()
    names = tuple(str(number) for number in range(CLASSES))
    data = Data((SIDE, SIDE), "L", (MEAN,), (STD,), "bilinear", tuple(ck.label(name) for name in names))
    split = Split(images.permute(0, 2, 3, 1).numpy(), labels.numpy(), names, "made")
    task = ck.Task("tiny", DataSet("made", split, split), "resnet8_cifar", "layer1")  # never built
    print_ = Blueprint("made", "made 1", "mlp", {}, "0", "extractor", "fx", (SIDE, SIDE))
    state = TaskState(task, print_, print_, (), extractor, head, data, split, (2, 32))
    owners = {"tiny.extractor": extractor, "tiny.head": head}
    precision = Precision("cpu", "float32", False)
    setup = SetUp(0, precision, {"tiny": state}, {}, lambda *given: None, owners=owners)
    plugins = RunPlugins.create(IDLE[:idle], factories=dict.fromkeys(IDLE, Idle))
    settings = ck.Trainer(
        steps=10**9,
        batch_size=BATCH,
        optimizer=kind,  # type: ignore[arg-type]
        lr=RATE,
        momentum=MOMENTUM,
        weight_decay=0.0,
        schedule="constant",
    )
    loop, numbers = Loop(settings, setup, plugins), count()
    loop.train_mode()

    def turn() -> None:
        for _ in range(STEPS):
            loop.step(state, next(numbers))

    return turn


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the page: a table for both optimizers."""
    found = [
        "## What the trainer adds to a step",
        "",
        f"Microseconds of the processor a step of a tiny network, {STEPS} steps a turn, {TURNS * rounds} turns",
        f"({RIVALS_TURNS * rounds} beside the rivals); what is added is the median of the turns' differences from the",
        "bare loop, with the 95 % interval of that median. Gate: at most",
        f"+ {GATE_US:g} us and + {GATE_SHARE:.0%} with three idle plugins, of which each has three hooks in a step.",
        "",
        "| optimizer | loop | least | lower quartile | median | added | | |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for kind in ("sgd", "adam"):
        contestants = {
            "bare": Contestant(bare(kind)),
            "bare, again": Contestant(bare(kind)),
            OURS: Contestant(ours(kind, 0)),
            OURS_IDLE: Contestant(ours(kind, 3)),
        }
        found += _lines(kind, compete(contestants, TURNS * rounds, seed))
        beside = {"bare, beside rivals": Contestant(bare(kind)), **rivals(kind)}
        found += _lines(kind, compete(beside, RIVALS_TURNS * rounds, seed))
    return found


def _lines(kind: str, times: Times) -> list[str]:
    """Return the rows of contestants, of which the first is the floor."""
    fastest = [1e6 * one.processor / STEPS for one in next(iter(times.values()))]
    found: list[str] = []
    for label, taken in times.items():
        steps = [1e6 * one.processor / STEPS for one in taken]
        differences = sorted(one - other for one, other in zip(steps, fastest, strict=True))
        share = median(one / other - 1 for one, other in zip(steps, fastest, strict=True))
        added, (low, high) = median(differences), _interval(differences)
        verdict = ""
        if label == OURS_IDLE:
            verdict = "pass" if added <= GATE_US and share <= GATE_SHARE else "FAIL"
        found.append(
            f"| {kind} | {label} | {min(steps):.1f} | {quantiles(steps)[0]:.1f} | {median(steps):.1f} "
            f"| {added:+.1f} ({low:+.1f} to {high:+.1f}) | {share:+.1%} | {verdict} |"
        )
    return found


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of sorted values: order statistics, half the count ± .98 of its root."""
    half, away = len(differences) / 2, 0.98 * len(differences) ** 0.5
    low, high = max(0, floor(half - away)), min(len(differences) - 1, ceil(half + away))
    return differences[low], differences[high]
