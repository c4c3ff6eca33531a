"""Rotation prediction on a GPU: beside a hand-written step, and one extractor pass for the views beside four."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.nn.functional as F
import trainer_views
from contest import Contestant, compete, ratios
from gpu_size import FULL, Size
from gpu_steps import Turn, contest, optimizer_of, ours, run, taking
from torch import Tensor, nn

import compatkit as ck
from compatkit.training.execution import Mode
from compatkit.training.loop import Loop

TURNS = 4
ROTATION = ck.use("rotation_prediction", weight=1.0)


@contextmanager
def unrecorded(layers: Sequence[nn.BatchNorm2d]) -> Iterator[None]:
    """Normalize by the statistics of the batch and store none."""
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def by_hand(size: Size, loop: Loop, mode: Mode) -> Turn:
    """Return a function that takes hand-written steps: the task's loss, and a head that tells four turns apart."""
    (task_loop,) = loop.task_loops.values()
    extractor, head = task_loop.task.extractor, task_loop.task.head
    turned = loop.setup.auxiliary["rotation"].module
    optimizer, autocast = (
        optimizer_of(nn.ModuleList([extractor, head, turned])),
        loop.setup.precision.autocast,
    )
    layers = [layer for layer in extractor.modules() if isinstance(layer, nn.BatchNorm2d)]
    angles = torch.arange(TURNS, device=size.device).repeat_interleave(size.batch)

    def step(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with autocast():
            logits = head(extractor(pixels))
            views = torch.cat([torch.rot90(pixels, turns, (-2, -1)) for turns in range(TURNS)])
            with unrecorded(layers):
                predicted = turned(extractor(views))
        loss = F.cross_entropy(logits.float(), targets) + F.cross_entropy(predicted.float(), angles)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach(), logits.detach().argmax(1)

    return taking(size, loop, mode, step)


def rotation(rounds: int, size: Size = FULL, *, network: str, mode: Mode) -> list[float]:
    """Return how many times as long a step with rotation prediction takes as the hand-written one, in each round."""
    with ExitStack() as stack:
        theirs = stack.enter_context(run(size, network, "eager", uses=[ROTATION]))
        mine = stack.enter_context(run(size, network, mode, uses=[ROTATION]))
        turns = {"by hand": (theirs, by_hand(size, theirs, mode)), "ours": (mine, ours(size, mine))}
        return ratios(contest(size, rounds, turns, [("ours", "by hand")]), "ours", "by hand")


def one_pass(rounds: int, size: Size = FULL, *, network: str, mode: Mode) -> list[float]:
    """Return the time of a step with one extractor pass for all views as a share of that with four, in each round."""
    setting = trainer_views.Setting(size.device, size.network(network), size.batch, size.steps)
    with ExitStack() as stack:
        contestants = {
            kind: Contestant(trainer_views.steps(stack, setting, kind, size.mode(mode)))
            for kind in ("fused", "separate")
        }
        return ratios(compete(contestants, rounds, size.seed), "fused", "separate")
