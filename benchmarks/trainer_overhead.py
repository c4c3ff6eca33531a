"""Overhead of the trainer, and of its rivals, above a hand-written loop with minimal steps.

An MLP of 64-32-10, batches of 16 resident images of 8x8, SGD with momentum or Adam, one thread. The bare loop is the
shortest equivalent code of the same speed: a gather, a normalization in one operation, forward, backward, one fused
optimizer; losses and predictions are stored but not read. It runs twice, so that the table shows the noise. Fabric and
Lightning (``trainer_rivals``) do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import ceil, floor
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from contest import Contestant, Times, compete
from torch import Tensor, nn
from torch.optim.sgd import sgd
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
from compatkit_plugins.networks.chains import fully_connected

IDLE = ("first", "second", "third")
OURS, OURS_IDLE = "ours", "ours, 3 idle plugins"
GATE_US, GATE_SHARE = 8.0, 0.08
LONG, SHORT = 4000, 400
"""Steps of the two runs through ``fit``."""
TURNS, RIVALS_TURNS = 60, 10
"""Turns per round: the medians of 60 turns of equal programs differ by microseconds, the size of the overhead."""


class Idle:
    """Implements three events of a step and does nothing in them."""

    @ck.hookimpl
    @effect("pure")
    def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
        """Return the batch unchanged."""
        return batch

    @ck.hookimpl
    def compatkit_after_backward(self, step: ck.Step) -> None:
        """Do nothing."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Do nothing."""


def by_function(parameters: list[Tensor]) -> Callable[[], object]:
    """Return steps of SGD by torch's functional form, as ours calls it; gradients are removed after each."""
    buffers: Any = [torch.zeros_like(parameter) for parameter in parameters]
    settings: Any = {"momentum": MOMENTUM, "lr": RATE, "weight_decay": 0.0, "dampening": 0.0}

    def update() -> None:
        gradients: Any = [parameter.grad for parameter in parameters]
        with torch.no_grad():
            sgd(parameters, gradients, buffers, fused=True, nesterov=False, maximize=False, **settings)
        for parameter in parameters:
            parameter.grad = None

    return update


def bare(kind: str, whole: nn.Module | None = None, functional: bool = False) -> Callable[[], object]:
    """Return a function that runs ``STEPS`` steps of a hand-written loop, of a network that is not cut if given."""
    whole = nn.Sequential(*network()) if whole is None else whole
    parameters: list[Tensor] = list(whole.parameters())
    optimizer = make_optimizer(kind, parameters)
    update = by_function(parameters) if functional else None
    images, labels = pictures()
    scale, shift, numbers = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD), count()

    def turn() -> None:
        order, history = torch.randperm(IMAGES), []
        for _ in range(STEPS):
            start = next(numbers) * BATCH % IMAGES
            index = order[start : start + BATCH]
            targets = labels[index]
            logits = whole(torch.addcmul(shift, images[index].float(), scale))
            loss = F.cross_entropy(logits, targets)
            loss.backward()
            if update is None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            else:
                update()
            history.append((loss.detach(), logits.detach().argmax(1), targets))

    return turn


def ours(kind: str, idle: int) -> Callable[[], object]:
    """Return a function that runs ``STEPS`` steps of the trainer's loop with some idle plugins."""
    extractor, head = network()
    images, labels = pictures()
    names = tuple(str(number) for number in range(CLASSES))
    data = Data((SIDE, SIDE), "L", (MEAN,), (STD,), "bilinear", tuple(ck.label(name) for name in names))
    split = Split(images.permute(0, 2, 3, 1).numpy(), labels.numpy(), names, "made")
    task = ck.Task("tiny", DataSet("made", split, split), "resnet8_cifar", "layer1")  # never built
    blueprint = Blueprint("made", "made 1", "mlp", {}, "0", "extractor", "fx", (SIDE, SIDE))
    state = TaskState(task, blueprint, blueprint, (), extractor, head, data, split, (2, 32))
    owners = {"tiny.extractor": extractor, "tiny.head": head}
    precision = Precision("cpu", "float32", False)
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
    run = settings.info("cpu", dry=False)
    setup = SetUp(0, precision, {"tiny": state}, {}, lambda *arguments: None, owners=owners, run=run)
    loop, numbers = Loop(settings, setup, plugins), count()
    loop.train_mode()

    def turn() -> None:
        for _ in range(STEPS):
            loop.step(state, next(numbers))

    return turn


def loop_step(rounds: int, kind: str = "sgd") -> list[float]:
    """Return the microseconds that the loop with three idle plugins adds to a step, in each turn.

    Args:
        rounds: Rounds of ``TURNS`` turns.
        kind: ``"sgd"`` or ``"adam"``.
    """
    return _added(rounds, bare(kind), ours(kind, 3))


def functional_loop_step(rounds: int) -> list[float]:
    """Return the same where the bare loop calls SGD's functional form, too."""
    return _added(rounds, bare("sgd", functional=True), ours("sgd", 3))


def _added(rounds: int, rival: Callable[[], object], own: Callable[[], object]) -> list[float]:
    times = compete({"bare": Contestant(rival), OURS_IDLE: Contestant(own)}, TURNS * rounds, seed=0)
    return [
        1e6 * (mine.processor - floor.processor) / STEPS
        for mine, floor in zip(times[OURS_IDLE], times["bare"], strict=True)
    ]


def fit_step(rounds: int, kind: str = "sgd") -> list[float]:
    """Return the microseconds that ``fit`` with three idle plugins adds to a step, in each round.

    The time of a step is that of a long run less that of a short one, so that building and publishing cancel.

    Args:
        rounds: Rounds, each of a bare, a long and a short run.
        kind: ``"sgd"`` or ``"adam"``.
    """
    images, labels = pictures()
    names = tuple(str(number) for number in range(CLASSES))
    split = Split(images.permute(0, 2, 3, 1).numpy(), labels.numpy(), names, "made")
    task = ck.Task(
        "tiny",
        DataSet("made", split, split),
        "fully_connected",
        "blocks.0",
        kwargs={"widths": [32]},
        size=SIDE,
    )

    def fit(steps: int) -> None:
        settings = ck.Trainer(
            steps=steps,
            batch_size=BATCH,
            optimizer=kind,  # type: ignore[arg-type]
            lr=RATE,
            momentum=MOMENTUM,
            weight_decay=0.0,
            schedule="constant",
            precision="float32",
            device="cpu",
        )
        settings.fit([task], IDLE, factories=dict.fromkeys(IDLE, Idle))

    whole = fully_connected(in_chans=1, img_size=SIDE, num_classes=CLASSES, widths=[32])
    turn = bare(kind, whole)
    contestants = {
        "bare": Contestant(turn, calls=LONG // STEPS),
        "long": Contestant(lambda: fit(LONG)),
        "short": Contestant(lambda: fit(SHORT)),
    }
    times = compete(contestants, rounds, seed=0)
    return [
        1e6 * ((long.processor - short.processor) / (LONG - SHORT) - floor.processor / STEPS)
        for long, short, floor in zip(times["long"], times["short"], times["bare"], strict=True)
    ]


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the section: a table of both optimizers."""
    lines = [
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
        lines += _lines(kind, compete(contestants, TURNS * rounds, seed))
        contestants = {"bare, beside rivals": Contestant(bare(kind)), **rivals(kind)}
        lines += _lines(kind, compete(contestants, RIVALS_TURNS * rounds, seed))
    return lines


def _lines(kind: str, times: Times) -> list[str]:
    """Return the rows of contestants; the first one is the baseline."""
    baseline = [1e6 * timing.processor / STEPS for timing in next(iter(times.values()))]
    lines: list[str] = []
    for label, timings in times.items():
        steps = [1e6 * timing.processor / STEPS for timing in timings]
        differences = sorted(timing - base for timing, base in zip(steps, baseline, strict=True))
        share = median(timing / base - 1 for timing, base in zip(steps, baseline, strict=True))
        added, (low, high) = median(differences), _interval(differences)
        verdict = ""
        if label == OURS_IDLE:
            verdict = "pass" if added <= GATE_US and share <= GATE_SHARE else "FAIL"
        lines.append(
            f"| {kind} | {label} | {min(steps):.1f} | {quantiles(steps)[0]:.1f} | {median(steps):.1f} "
            f"| {added:+.1f} ({low:+.1f} to {high:+.1f}) | {share:+.1%} | {verdict} |"
        )
    return lines


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of sorted values: order statistics at n / 2 ± .98 sqrt(n)."""
    half, margin = len(differences) / 2, 0.98 * len(differences) ** 0.5
    low, high = max(0, floor(half - margin)), min(len(differences) - 1, ceil(half + margin))
    return differences[low], differences[high]
