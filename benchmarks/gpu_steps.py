"""Steps of the trainer beside hand-written loops on the same device: eager, captured, compiled and captured.

The hand-written step makes the same computations: the same gather (compatkit's own), forward, backward, fused SGD;
losses and predictions are kept. One step of both from the same weights must give the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from contest import Contestant, Times, compete, ratios
from gpu_size import FULL, Size, expect_close
from torch import Tensor, nn
from trainer_steps import AUGMENT, data

import compatkit as ck
from compatkit.training.execution import Mode
from compatkit.training.execution_selection import TOLERANCE
from compatkit.training.loop import Loop
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.profiling import profile

RATE, MOMENTUM, DECAY = 0.01, 0.9, 1e-7
ALL = ("identical_init", "dcc", "rotation_prediction")
Turn = Callable[[int], None]
"""Takes a number of steps."""


@contextmanager
def run(
    size: Size, network: str, mode: Mode, names: Sequence[str] = ("left",), uses: Any = (), **settings: Any
) -> Iterator[Loop]:
    """Prepare a run of the trainer in bf16; yield its loop."""
    tasks = [ck.Task(name, data(name), size.network(network), "layer2", augment=AUGMENT) for name in names]
    trainer = ck.Trainer(
        steps=10**6,
        batch_size=size.batch,
        device=size.device,
        precision="bf16",
        execution=size.mode(mode),
        progress=False,
        optimizer="sgd",
        lr=RATE,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        schedule="constant",
        **settings,
    )
    with prepare(FitRequest(trainer, tasks, uses)) as start:
        if start.loop.execution.mode != size.mode(mode):
            raise RuntimeError(f"{mode} is not possible here: {start.loop.execution.reason}")
        yield start.loop


def ours(size: Size, loop: Loop) -> Turn:
    """Return a function that takes steps of the trainer."""
    numbers = count()

    def turn(steps: int) -> None:
        for _ in range(steps):
            number = next(numbers)
            for state in loop.setup.tasks.values():
                loop.step(state, number)
        size.wait()

    return turn


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a hand-written loop."""
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)


def by_hand(size: Size, loop: Loop, mode: Mode) -> Turn:
    """Return a function that takes hand-written steps, on the modules and batches of a loop."""
    (task_loop,) = loop.task_loops.values()
    network = nn.Sequential(task_loop.task.extractor, task_loop.task.head)
    optimizer, autocast = optimizer_of(network), loop.setup.precision.autocast

    def loss_of(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with autocast():
            logits = network(pixels)
        return F.cross_entropy(logits.float(), targets), logits

    forward = torch.compile(loss_of) if mode.startswith("compile") else loss_of

    def step(pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = forward(pixels, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach(), logits.detach().argmax(1)

    return taking(size, loop, mode, step)


def taking(
    size: Size, loop: Loop, mode: Mode, step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Turn:
    """Return a function that takes a hand-written step on each batch, captured if the mode says so."""
    (task_loop,) = loop.task_loops.values()
    numbers, history = count(), list[tuple[Tensor, ...]]()
    first = task_loop.source.batch(0)
    images, labels = first.images.clone(), first.labels.clone()
    replay: Callable[[], Any] | None = None

    def turn(steps: int) -> None:
        nonlocal replay
        for _ in range(steps):
            batch = task_loop.source.batch(next(numbers))
            if not size.mode(mode).endswith("graph"):
                history.append((*step(batch.images, batch.labels), batch.labels))
                continue
            replay = replay or captured(loop, step, images, labels)
            images.copy_(batch.images, non_blocking=True)
            labels.copy_(batch.labels, non_blocking=True)
            loss, predictions = replay()
            history.append((loss.clone(), predictions.clone(), batch.labels))
        history.clear()
        size.wait()

    return turn


def captured(loop: Loop, step: Callable[..., Any], *static: Tensor) -> Callable[[], Any]:
    """Return the replay of a captured step; the weights are as before the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    saved = [value for module in loop.setup.owners.values() for value in module.state_dict().values()]
    before = [value.clone() for value in saved]
    with torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.no_grad():
        for value, earlier in zip(saved, before, strict=True):
            value.copy_(earlier)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # type: ignore[no-untyped-call]
        out = step(*static)

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def weights(loop: Loop) -> Tensor:
    """Return all trained weights of a loop as one vector."""
    return torch.cat([weight.detach().flatten().double().cpu() for weight in loop.trainable])


def contest(
    size: Size, rounds: int, turns: dict[str, tuple[Loop, Turn]], same: Sequence[tuple[str, str]]
) -> Times:
    """Take one step of each contestant, compare the changes of the weights, and let all compete.

    Args:
        size: Device and size.
        rounds: Number of rounds.
        turns: Loop and turn of each contestant.
        same: Pairs of contestants that begin with the same weights and compute the same.
    """
    changes = dict[str, Tensor]()
    for label, (loop, turn) in turns.items():
        before = weights(loop)
        turn(1)
        changes[label] = weights(loop) - before
    for left, right in same:
        expect_close(f"steps of {left} and {right}", changes[left], changes[right], TOLERANCE["bf16"])
    contestants = {
        label: Contestant(lambda turn=turn: turn(size.steps)) for label, (_, turn) in turns.items()
    }
    return compete(contestants, rounds, size.seed)


def step(rounds: int, size: Size = FULL, *, network: str, mode: Mode) -> list[float]:
    """Return how many times as long the trainer's step takes as the hand-written one, in each round."""
    with ExitStack() as stack:
        theirs = stack.enter_context(run(size, network, "eager"))
        mine = stack.enter_context(run(size, network, mode))
        turns = {"by hand": (theirs, by_hand(size, theirs, mode)), "ours": (mine, ours(size, mine))}
        return ratios(contest(size, rounds, turns, [("ours", "by hand")]), "ours", "by hand")


def joint(rounds: int, size: Size = FULL, *, network: str, mode: Mode) -> list[float]:
    """Return how many times as long a step of two tasks takes as both hand-written ones, in each round."""
    with ExitStack() as stack:
        loops = {
            name: stack.enter_context(run(size, network, "eager", (name,))) for name in ("left", "right")
        }
        both = stack.enter_context(run(size, network, mode, ("left", "right")))
        turns = {name: (loop, by_hand(size, loop, mode)) for name, loop in loops.items()}
        times = contest(size, rounds, {**turns, "both": (both, ours(size, both))}, [])
    zipped = zip(times["both"], times["left"], times["right"], strict=True)
    return [own.wall / (left.wall + right.wall) for own, left, right in zipped]


def shares(size: Size) -> list[str]:
    """Measure the shares of data and hooks in the time of a step."""
    lines = ["| steps | ms | data | hooks |", "|---|---:|---:|---:|"]
    for mode in ("eager", "graph", "compile+graph") if size.on_gpu else ("eager",):
        with run(size, "resnet56_cifar", mode) as loop:
            result = profile(loop, size.steps)
        lines.append(
            f"| {mode} | {result.milliseconds:.3f} | {result.shares['data']:.1%} | {result.shares['hooks']:.1%} |"
        )
    return lines


def waiting(size: Size) -> list[str]:
    """Check for host synchronizations between rows of the history; torch raises at the first."""
    if not size.on_gpu:
        return ["- not measured: needs a CUDA device"]
    lines: list[str] = []
    for mode in ("eager", "graph", "compile+graph"):
        with run(size, "resnet20_cifar", mode, ("left", "right"), ALL) as loop:
            turn = ours(size, loop)
            turn(3)
            torch.cuda.set_sync_debug_mode("error")
            try:
                numbers = range(3, 13)
                for number in numbers:
                    for state in loop.setup.tasks.values():
                        loop.step(state, number)
                lines.append(f"- {mode}, DCC and rotation prediction: none in {len(numbers)} steps: pass")
            except RuntimeError as error:
                lines.append(f"- {mode}: FAIL: {error}")
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return lines
