"""Measure the cost of the reverse pass per training step, against a hand-written one and cheaper estimates.

Run ``python benchmarks/reverse_pass.py [--rounds 7] [--networks simple_cnn ...] [--out docs/results/reverse_pass.md]``.
One thread; contestants take turns in random order. The hand-written loop is the shortest equivalent code of the same
speed: forward hooks on the same layers, one transposed convolution or matrix product each, one sum. Programs of "again"
repeat the ones before them and show the noise. Memory is the size of the storages that autograd saves in the forward
pass for the backward pass, each counted once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from contest import Contestant, compete, machine, say
from torch import Tensor, nn

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.optim import make_optimizer
from compatkit.training.prepare import FitRequest, PreparedRun, prepare

PAPER = 41.86
"""Per cent of extra time per epoch that the paper states for its texture-shape network."""
GATE_HAND, GATE_ESTIMATE = 1.10, 1.25
CLASSES = tuple("0123456789")
ESTIMATES: dict[str, Mapping[str, float]] = {
    "layers 1/8": {"sample_layers": 0.125},
    "layers 1/8, images 1/4": {"sample_images": 0.25, "sample_layers": 0.125},
    "images 1/8": {"sample_images": 0.125},
}
MORE = 4
"""Factor for the number of steps with sampled layers, where the cost of steps varies much."""


@attrs.frozen
class Setting:
    """Settings of a network, small enough for a CPU."""

    cut: str
    side: int
    batch: int
    steps: int
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)


NETWORKS: dict[str, Setting] = {
    "simple_cnn": Setting("blocks.0", 32, 32, 4, {"filters": 16}),
    "resnet20_cifar": Setting("layer2", 32, 16, 3),
    "vgg16_cifar": Setting("stage2", 32, 8, 1),
    "vit_tiny_patch16_224": Setting("blocks.3", 64, 8, 2, {"img_size": 64, "depth": 6}),
}


def data_set(side: int) -> DataSet:
    """Return a data set of noise images."""
    images = np.random.default_rng(0).integers(0, 256, (256, side, side, 3), dtype=np.uint8)
    split = Split(images, np.arange(len(images)) % len(CLASSES), CLASSES, "noise/train")
    return DataSet("noise", split, split)


def begin(stack: ExitStack, name: str, uses: list[Any], precision: Any = "float32") -> PreparedRun:
    """Return a run of the trainer before its first step."""
    setting = NETWORKS[name]
    task = ck.Task(
        "noise", data_set(setting.side), name, setting.cut, size=setting.side, kwargs=dict(setting.kwargs)
    )
    trainer = ck.Trainer(
        steps=10**6, batch_size=setting.batch, device="cpu", precision=precision, progress=False, lr=1e-5
    )
    return stack.enter_context(prepare(FitRequest(trainer, [task], uses)))


def ours(run: PreparedRun, steps: int) -> Callable[[], object]:
    """Return a function that runs steps of the trainer."""
    loop, numbers = run.loop, count()
    state = loop.setup.tasks["noise"]

    def turn() -> None:
        for _ in range(steps):
            loop.step(state, next(numbers))

    return turn


def by_hand(
    stack: ExitStack, name: str, *, reverse: bool, precision: Any = "float32"
) -> Callable[[], object]:
    """Return a function that runs steps of a loop in plain torch, on the same network, layers and images."""
    run, setting = begin(stack, name, ["reverse_pass"], precision), NETWORKS[name]
    autocast = run.loop.setup.precision.autocast
    loop = run.loop
    state = loop.setup.tasks["noise"]
    layers = loop.plugins.members[0].instance.selections["noise"].layers  # type: ignore[attr-defined]
    run.loop.setup.recorders["noise"].close()
    network = nn.Sequential(state.extractor, state.head).train()
    batches = [loop.task_loops["noise"].source.batch(number) for number in range(8)]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    for layer in layers if reverse else ():
        module = loop.setup.recorders["noise"].modules(layer)[0]
        module.register_forward_hook(lambda layer, inputs, output: calls.append((layer, inputs[0], output)))
    optimizer = make_optimizer([{"params": list(network.parameters())}], "adam", 1e-5, 0.9, 1e-7)
    numbers = count()

    def step() -> None:
        batch = batches[next(numbers) % len(batches)]
        with autocast():
            loss = F.cross_entropy(network(batch.images).float(), batch.labels)
            if reverse:
                loss = loss + torch.stack([_residual(*call) for call in calls]).sum()
                calls.clear()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def turn() -> None:
        for _ in range(setting.steps):
            step()

    return turn


def autocast_ratios(rounds: int, name: str = "resnet20_cifar") -> list[float]:
    """Return the time of a bf16 step with the reverse pass, as a multiple of the hand-written one, in each round.

    Args:
        rounds: Rounds, each of ``MORE`` turns.
        name: Network, a key of ``NETWORKS``.
    """
    with ExitStack() as stack:
        run = begin(stack, name, ["reverse_pass"], "bf16")
        contestants = {
            "ours": Contestant(ours(run, NETWORKS[name].steps)),
            "by hand": Contestant(by_hand(stack, name, reverse=True, precision="bf16")),
        }
        times = compete(contestants, MORE * rounds, seed=0)
    pairs = zip(times["ours"], times["by hand"], strict=True)
    return [mine.processor / hand.processor for mine, hand in pairs]


def _residual(layer: Any, inputs: Tensor, outputs: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        outputs = outputs if layer.bias is None else outputs - layer.bias.to(outputs.dtype)
        return F.mse_loss((outputs @ layer.weight).float(), inputs.float())
    if layer.bias is not None:
        outputs = outputs - layer.bias.to(outputs.dtype)[:, None, None]
    padding = [
        size - ((output_size - 1) * s - 2 * p + k)
        for size, output_size, s, p, k in zip(
            inputs.shape[2:], outputs.shape[2:], layer.stride, layer.padding, layer.kernel_size, strict=True
        )
    ]
    back = F.conv_transpose2d(outputs, layer.weight, None, layer.stride, layer.padding, padding, layer.groups)
    return F.mse_loss(back.float(), inputs.float())


def saved_bytes(run: PreparedRun) -> int:
    """Return the bytes that a step saves for its backward pass, without weights."""
    loop = run.loop
    task_loop = loop.task_loops["noise"]
    task_loop.resolve(0)
    weights = {
        parameter.untyped_storage().data_ptr()
        for owner in loop.setup.owners.values()
        for parameter in owner.parameters()
    }
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = task_loop.objective(loop.begin(task_loop, 0))[0]
    size = sum(storages.values())
    total.backward()
    loop.zero_grad()
    return size


def measured(name: str, rounds: int, seed: int) -> list[str]:
    """Return the rows of one network."""
    setting, uses = NETWORKS[name], {"plain": [], "plain, again": [], "reverse pass": ["reverse_pass"]}
    uses |= {
        f"estimate: {label}": [ck.use("reverse_pass", **settings)] for label, settings in ESTIMATES.items()
    }
    with ExitStack() as stack:
        runs = {label: begin(stack, name, settings) for label, settings in uses.items()}
        memory = {label: saved_bytes(run) / 2**20 for label, run in runs.items()}
        steps = {label: setting.steps * (MORE if "layers" in label else 1) for label in runs}
        contestants = {label: Contestant(ours(run, steps[label])) for label, run in runs.items()}
        for label, reverse in (("by hand, plain", False), ("by hand", True), ("by hand, again", True)):
            contestants[label] = Contestant(by_hand(stack, name, reverse=reverse))
        times = compete(contestants, rounds, seed)
    seconds = {
        label: [timing.processor / steps.get(label, setting.steps) for timing in timings]
        for label, timings in times.items()
    }

    def ratio(label: str, to: str) -> float:
        if "layers" in label:  # with sampled layers the mean is the cost of a run
            return sum(seconds[label]) / sum(seconds[to])
        return median(timing / baseline for timing, baseline in zip(seconds[label], seconds[to], strict=True))

    rows = []
    for label, timings in seconds.items():
        against_hand = f"{ratio(label, 'by hand'):.2f}" if label in ("reverse pass", "by hand, again") else ""
        plain = "by hand, plain" if label.startswith("by hand") else "plain"
        mebibytes = f"{memory[label]:.1f}" if label in memory else ""
        rows.append(
            f"| {name} | {label} | {1e3 * min(timings):.2f} | {1e3 * median(timings):.2f} "
            f"| {percent(ratio(label, plain))} | {against_hand} | {mebibytes} |"
        )
    return rows


def percent(ratio: float) -> str:
    """Return the excess of a ratio over 1 in per cent."""
    return f"{100 * (ratio - 1):+.0f} %"


def page(networks: list[str], rounds: int, seed: int) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# What the reverse pass costs",
        "",
        f"    python benchmarks/reverse_pass.py --rounds {rounds} --networks {' '.join(networks)}",
        "",
        machine(),
        "",
        "CPU milliseconds of a float32 step. `more`: extra time over the same step without the reverse pass, as the",
        "median of the rounds' ratios, or as the ratio of total times where layers are drawn. The paper states",
        f"+{PAPER} % for its texture-shape network; estimates aim at {percent(GATE_ESTIMATE)}. `to hand`: ratio to the",
        f"hand-written reverse pass (goal: at most {GATE_HAND:.2f}). MiB: memory kept for the backward pass, with the",
        "layers drawn in the first step. Rows `again` repeat the same program and show the noise.",
        "",
        "| network | step | least | median | more | to hand | MiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in networks:
        say(name)
        lines += measured(name, rounds, seed)
    return lines


def main() -> None:
    """Measure and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = page(options.networks, options.rounds, options.seed)
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
