"""Measure every figure that needs a GPU, in one run of under eight minutes.

Run ``python benchmarks/gpu.py [--out docs/results/gpu.md]`` on a machine with a CUDA device, from a source tree (torch
2.11 or newer); ``--small --device cpu`` is only a smoke test. Sections are independent: a failure is reported and the
other sections continue. Contestants take turns in random order; equal programs run twice, so that the tables show the
noise.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import torch
import torch.nn.functional as F
import trainer_views
from contest import Contestant, Times, compete, machine, say
from torch import nn
from trainer_steps import AUGMENT, data

import compatkit as ck
from compatkit.training.execution import Mode
from compatkit.training.loop import Loop
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.profiling import profile

ADDED = 1.01
"""Largest allowed ratio of the trainer's step to a hand-written one."""


@attrs.frozen
class Size:
    """Device, network and amount of measurement."""

    device: str
    network: str
    batch: int
    steps: int
    rounds: int
    seed: int = 0

    @property
    def on_gpu(self) -> bool:
        """Return whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the measured execution modes."""
        return ("eager", "graph", "compile+graph") if self.on_gpu else ("eager",)

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


@contextmanager
def run(size: Size, mode: Mode, names: tuple[str, ...] = ("left",), uses: Any = ()) -> Iterator[Loop]:
    """Prepare a run of the trainer in bf16; yield its loop."""
    tasks = [ck.Task(name, data(name), size.network, "layer2", augment=AUGMENT) for name in names]
    trainer = ck.Trainer(
        steps=10**6,
        batch_size=size.batch,
        device=size.device,
        precision="bf16",
        execution=mode,
        progress=False,
        optimizer="sgd",
    )
    with prepare(FitRequest(trainer, tasks, uses)) as start:
        if start.loop.execution.mode != mode:
            raise RuntimeError(f"{mode} is not possible here: {start.loop.execution.reason}")
        yield start.loop


def ours(size: Size, loop: Loop) -> Callable[[], object]:
    """Return a function that runs ``size.steps`` steps of the trainer."""
    numbers = count()

    def turn() -> None:
        for _ in range(size.steps):
            number = next(numbers)
            for state in loop.setup.tasks.values():
                loop.step(state, number)
        size.wait()

    return turn


def bare(size: Size, loop: Loop, *, captured: bool) -> Callable[[], object]:
    """Return a function that runs ``size.steps`` steps of a hand-written loop, on modules and batches of ``loop``."""
    (task_loop,) = loop.task_loops.values()
    network = nn.Sequential(task_loop.task.extractor, task_loop.task.head)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-7, fused=True)
    numbers, history = count(), []
    first = task_loop.source.batch(0)
    images, labels = first.images.clone(), first.labels.clone()

    def step(pixels: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with loop.setup.precision.autocast():
            logits = network(pixels)
        loss = F.cross_entropy(logits.float(), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach(), logits.detach().argmax(1)

    replay = _captured(step, images, labels) if captured else None

    def turn() -> None:
        for _ in range(size.steps):
            batch = task_loop.source.batch(next(numbers))
            if replay is None:
                history.append((*step(batch.images, batch.labels), batch.labels))
            else:
                images.copy_(batch.images, non_blocking=True)
                labels.copy_(batch.labels, non_blocking=True)
                loss, predictions = replay()
                history.append((loss.clone(), predictions.clone(), batch.labels))
        history.clear()
        size.wait()

    return turn


def _captured(step: Callable[..., Any], *static: torch.Tensor) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # type: ignore[no-untyped-call]
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # type: ignore[no-untyped-call]
        out = step(*static)

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def overhead(size: Size) -> list[str]:
    """Compare the trainer's step with a hand-written one, eager and captured; two tasks with the sum of two loops."""
    lines = ["| steps | loop | ms, least | ms, median | over bare |", "|---|---|---:|---:|---:|"]
    verdicts: list[str] = []
    for mode in ("eager", "graph") if size.on_gpu else ("eager",):
        with ExitStack() as stack:
            loops = [stack.enter_context(run(size, "eager")) for _ in range(2)]
            single = stack.enter_context(run(size, mode))
            joint = stack.enter_context(run(size, mode, ("left", "right")))
            contestants = {
                "bare": Contestant(bare(size, loops[0], captured=mode == "graph")),
                "bare, again": Contestant(bare(size, loops[1], captured=mode == "graph")),
                "ours": Contestant(ours(size, single)),
                "ours, two tasks": Contestant(ours(size, joint)),
            }
            times = compete(contestants, size.rounds, size.seed)
        lines += _rows(size, mode, times)
        ratio, noise = _ratio(times, "ours"), _ratio(times, "bare, again")
        verdicts.append(
            f"- {mode}: {ratio:.3f} x bare (gate at most {ADDED}): {_verdict(ratio <= ADDED)}; two bare loops "
            f"{noise:.3f} x; two tasks {_ratio(times, 'ours, two tasks') / 2:.3f} x the sum of two bare ones"
        )
    return [*lines, "", *verdicts]


def _rows(size: Size, mode: str, times: Times) -> Iterator[str]:
    for label, timings in times.items():
        step_ms = [1e3 * timing.wall / size.steps for timing in timings]
        yield f"| {mode} | {label} | {min(step_ms):.3f} | {median(step_ms):.3f} | {_ratio(times, label):.3f} |"


def _ratio(times: Times, label: str) -> float:
    return median(
        timing.wall / bare_timing.wall
        for timing, bare_timing in zip(times[label], times["bare"], strict=True)
    )


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


def shares(size: Size) -> list[str]:
    """Measure the shares of data and hooks in the time of a step."""
    lines = ["| steps | ms | data | hooks |", "|---|---:|---:|---:|"]
    for mode in size.modes:
        with run(size, mode) as loop:
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
    for mode in size.modes:
        with run(size, mode, ("left", "right"), ["identical_init", "dcc", "rotation_prediction"]) as loop:
            turn = ours(attrs.evolve(size, steps=3), loop)
            turn()
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


def views(size: Size) -> list[str]:
    """Compare one extractor pass for the four rotations with four passes."""
    lines = ["| steps | passes | ms, least | ms, median | gain |", "|---|---|---:|---:|---:|"]
    setting = trainer_views.Setting(size.device, size.network, size.batch, size.steps)
    for mode in ("eager", "compile+graph") if size.on_gpu else ("eager",):
        with ExitStack() as stack:
            contestants = {
                name: Contestant(trainer_views.steps(stack, setting, kind, mode))
                for name, kind in (
                    *(("separate", "separate"), ("separate, again", "separate")),
                    ("fused", "fused"),
                )
            }
            times = compete(contestants, size.rounds, size.seed)
        for name, timings in times.items():
            step_ms = [1e3 * timing.wall / size.steps for timing in timings]
            gain = median(
                separate.wall / timing.wall
                for timing, separate in zip(timings, times["separate"], strict=True)
            )
            gate = f" (gate {trainer_views.GATES[mode]:g}: {_verdict(gain >= trainer_views.GATES[mode])})"
            lines.append(
                f"| {mode} | {name} | {min(step_ms):.3f} | {median(step_ms):.3f} | {gain:.2f}"
                f"{gate if name == 'fused' and size.on_gpu else ''} |"
            )
    return lines


SECTIONS: dict[str, tuple[str, Callable[[Size], list[str]]]] = {
    "overhead": ("What the trainer adds to a step", overhead),
    "waiting": ("Waiting for the device", waiting),
    "shares": ("Where the time goes", shares),
    "views": ("One pass for four views", views),
}


def main() -> None:
    """Measure and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size = (
        Size(options.device, "resnet8_cifar", 16, 2, 2)
        if options.small
        else Size(options.device, "resnet56_cifar", 512, 30, 7)
    )
    on_gpu = size.on_gpu
    lines = [
        "# What needs a GPU",
        "",
        f"    python benchmarks/gpu.py --device {options.device}{' --small' if options.small else ''}",
        "",
        f"{torch.cuda.get_device_name() if on_gpu else 'no GPU'}; {machine()}",
        "",
        f"{size.network}, batches of {size.batch}, bf16, {size.steps} steps a turn, {size.rounds} rounds.",
    ]
    for name in options.only:
        title, measure = SECTIONS[name]
        say(title)
        began = time.perf_counter()
        try:
            section = measure(size)
        except Exception:
            section = ["FAILED:", "", "```", traceback.format_exc().strip(), "```"]
        lines += ["", f"## {title}", "", *section, "", f"({time.perf_counter() - began:.0f} s)"]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
