"""Measure the cost of the reverse pass per training step, against a hand-written one, with estimates that cost less.

Run ``python benchmarks/reverse_pass.py [--rounds 7] [--networks simple_cnn ...] [--out docs/results/reverse_pass.md]``.
One thread; whatever is compared takes turns in random order. The hand-written loop is the shortest that does the same
as fast: forward hooks on the very same layers, one transposed convolution or matrix product each, one sum. Programs of
"again" are equal to the ones before them, and show how far two equal programs are apart here. Memory is what autograd
keeps from the forward pass for the backward pass, every storage once.
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
from registry_measuring import Contestant, compete, machine, say
from torch import Tensor, nn

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.optim import make_optimizer
from compatkit.training.prepare import FitRequest, PreparedRun, prepare

PAPER = 41.86
"""Per cent more time an epoch, as the paper states for its texture-shape network."""
GATE_HAND, GATE_ESTIMATE = 1.10, 1.25
CLASSES = tuple("0123456789")
ESTIMATES: dict[str, Mapping[str, float]] = {
    "layers 1/8": {"sample_layers": 0.125},
    "layers 1/8, images 1/4": {"sample_images": 0.25, "sample_layers": 0.125},
    "images 1/8": {"sample_images": 0.125},
}
MORE = 4
"""How many times the steps are taken where layers are drawn, as some steps cost nothing and others much."""


@attrs.frozen
class Setting:
    """A network at a size for a CPU."""

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
    """Return noise."""
    images = np.random.default_rng(0).integers(0, 256, (256, side, side, 3), dtype=np.uint8)
    split = Split(images, np.arange(len(images)) % len(CLASSES), CLASSES, "noise/train")
    return DataSet("noise", split, split)


def begin(stack: ExitStack, name: str, uses: list[Any]) -> PreparedRun:
    """Return a run of the trainer before its first step."""
    given = NETWORKS[name]
    task = ck.Task("noise", data_set(given.side), name, given.cut, size=given.side, kwargs=dict(given.kwargs))
    trainer = ck.Trainer(
        steps=10**6, batch_size=given.batch, device="cpu", precision="float32", progress=False, lr=1e-5
    )
    return stack.enter_context(prepare(FitRequest(trainer, [task], uses)))


def ours(run: PreparedRun, steps: int) -> Callable[[], object]:
    """Return what takes some steps of the trainer."""
    loop, numbers = run.loop, count()
    state = loop.setup.tasks["noise"]

    def turn() -> None:
        for _ in range(steps):
            loop.step(state, next(numbers))

    return turn


def by_hand(stack: ExitStack, name: str, *, reverse: bool) -> Callable[[], object]:
    """Return what takes some steps of a loop in plain torch, on the same network, layers and images."""
    run, given = begin(stack, name, ["reverse_pass"]), NETWORKS[name]
    loop = run.loop
    state = loop.setup.tasks["noise"]
    layers = loop.plugins.members[0].instance.selections["noise"].layers  # type: ignore[attr-defined]
    run.loop.setup.recorders["noise"].close()
    network = nn.Sequential(state.extractor, state.head).train()
    batches = [loop.task_loops["noise"].source.batch(number) for number in range(8)]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    for layer in layers if reverse else ():
        module = loop.setup.recorders["noise"].modules(layer)[0]
        module.register_forward_hook(lambda layer, taken, given: calls.append((layer, taken[0], given)))
    optimizer = make_optimizer(list(network.parameters()), "adam", 1e-5, 0.9, 1e-7)
    numbers = count()

    def step() -> None:
        batch = batches[next(numbers) % len(batches)]
        loss = F.cross_entropy(network(batch.images), batch.labels)
        if reverse:
            loss = loss + torch.stack([_residual(*call) for call in calls]).sum()
            calls.clear()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def turn() -> None:
        for _ in range(given.steps):
            step()

    return turn


def _residual(layer: Any, taken: Tensor, given: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.mse_loss((given if layer.bias is None else given - layer.bias) @ layer.weight, taken)
    if layer.bias is not None:
        given = given - layer.bias[:, None, None]
    more = [
        there - ((here - 1) * s - 2 * p + k)
        for there, here, s, p, k in zip(
            taken.shape[2:], given.shape[2:], layer.stride, layer.padding, layer.kernel_size, strict=True
        )
    ]
    back = F.conv_transpose2d(given, layer.weight, None, layer.stride, layer.padding, more, layer.groups)
    return F.mse_loss(back, taken)


def kept_bytes(run: PreparedRun) -> int:
    """Return the bytes that a step keeps for its backward pass, weights apart."""
    loop = run.loop
    task_loop = loop.task_loops["noise"]
    task_loop.resolve(0)
    own = {
        one.untyped_storage().data_ptr() for owner in loop.setup.owners.values() for one in owner.parameters()
    }
    found: dict[int, int] = {}

    def pack(one: Tensor) -> Tensor:
        if one.untyped_storage().data_ptr() not in own:
            found[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        total = task_loop.objective(loop.begin(task_loop, 0))[0]
    size = sum(found.values())
    total.backward()
    loop.zero_grad()
    return size


def measured(name: str, rounds: int, seed: int) -> list[str]:
    """Return the rows of one network."""
    given, uses = NETWORKS[name], {"plain": [], "plain, again": [], "reverse pass": ["reverse_pass"]}
    uses |= {f"estimate: {label}": [ck.use("reverse_pass", **said)] for label, said in ESTIMATES.items()}
    with ExitStack() as stack:
        runs = {label: begin(stack, name, said) for label, said in uses.items()}
        memory = {label: kept_bytes(run) / 2**20 for label, run in runs.items()}
        steps = {label: given.steps * (MORE if "layers" in label else 1) for label in runs}
        contestants = {label: Contestant(ours(run, steps[label])) for label, run in runs.items()}
        for label, reverse in (("by hand, plain", False), ("by hand", True), ("by hand, again", True)):
            contestants[label] = Contestant(by_hand(stack, name, reverse=reverse))
        times = compete(contestants, rounds, seed)
    each = {
        label: [one.processor / steps.get(label, given.steps) for one in taken]
        for label, taken in times.items()
    }

    def ratio(label: str, to: str) -> float:
        if "layers" in label:  # of what is drawn the mean is what a run costs
            return sum(each[label]) / sum(each[to])
        return median(one / other for one, other in zip(each[label], each[to], strict=True))

    rows = []
    for label, taken in each.items():
        against_hand = f"{ratio(label, 'by hand'):.2f}" if label in ("reverse pass", "by hand, again") else ""
        plain = "by hand, plain" if label.startswith("by hand") else "plain"
        mebibytes = f"{memory[label]:.1f}" if label in memory else ""
        rows.append(
            f"| {name} | {label} | {1e3 * min(taken):.2f} | {1e3 * median(taken):.2f} "
            f"| {more(ratio(label, plain))} | {against_hand} | {mebibytes} |"
        )
    return rows


def more(ratio: float) -> str:
    """Return by how much a ratio is above 1."""
    return f"{100 * (ratio - 1):+.0f} %"


def page(networks: list[str], rounds: int, seed: int) -> list[str]:
    """Return the lines of the page."""
    found = [
        "# What the reverse pass costs",
        "",
        f"    python benchmarks/reverse_pass.py --rounds {rounds} --networks {' '.join(networks)}",
        "",
        machine(),
        "",
        "CPU milliseconds of a float32 step. `more`: extra time over the same step without the reverse pass, as the",
        "median of the rounds' ratios, or as the ratio of total times where layers are drawn. The paper states",
        f"+{PAPER} % for its texture-shape network; estimates aim at {more(GATE_ESTIMATE)}. `to hand`: ratio to the",
        f"hand-written reverse pass (goal: at most {GATE_HAND:.2f}). MiB: memory kept for the backward pass, with the",
        "layers drawn in the first step. Rows `again` repeat the same program and show the noise.",
        "",
        "| network | step | least | median | more | to hand | MiB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in networks:
        say(name)
        found += measured(name, rounds, seed)
    return found


def main() -> None:
    """Measure and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = page(given.networks, given.rounds, given.seed)
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
