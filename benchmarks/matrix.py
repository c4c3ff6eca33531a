"""Measure the gain of running each extractor once for a matrix of E extractors and H heads.

Run ``python benchmarks/matrix.py [--side 20] [--images 1000] [--rounds 2] [--seed 0] [--out FILE]``. SIDE small nets
are trained for a few steps on noise and cut early and late. Contestants take turns in one process, on one thread, in
a new random order each round; both have all parts and images in memory, and their numbers of correct predictions must
agree in every cell.

- **naive**: for each pair, the whole network over all images: the same preprocessing, batches, order, policy and
  float32, by a plain loop. Under ``reestimate`` it estimates the statistics in a first pass and restores them
  afterwards.
- **ours**: ``compatkit.evaluation.matrix.measure``, including checks of contracts, upper bounds and intervals.

The **ideal** speed-up is (E H (e + h)) / (E e + E H h), with *e* the time of a pass of an extractor and *h* of a head
over the same batches, measured in the same rounds. Times are processor times, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import attrs
import numpy as np
import torch
from contest import Contestant, compete, expect, machine, ratios, say
from torch import Tensor, nn

import compatkit as ck
from compatkit.components.loading import load
from compatkit.data.dataset import DataSet, Split
from compatkit.evaluation.batchnorm import batches
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import measure

CELLS = {"layer1": ("batch",), "layer3": ("running", "batch", "reestimate")}
"""Policies by cut. Late heads are small, so that the overhead of compatkit is largest there."""
MODEL, SIZE, CLASSES, BATCH, STEPS = "resnet8_cifar", 16, 10, 128, 2
GATE = 0.8
PARTS = 8
"""Passes of a part in one timing; a single pass is too short."""
Correct = dict[tuple[str, str], int]


@attrs.frozen
class Parts:
    """Extractors, heads and test images in memory."""

    extractors: Sequence[Component]
    heads: Sequence[Component]
    images: Split


@attrs.frozen
class Timings:
    """Seconds of one cut under one policy, an entry per round; ``e`` and ``h`` are the times of one part."""

    naive: list[float] = attrs.field(factory=list)
    ours: list[float] = attrs.field(factory=list)
    e: list[float] = attrs.field(factory=list)
    h: list[float] = attrs.field(factory=list)


def noise(count: int, seed: int) -> Split:
    """Return noise images with one bright row for each class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = generator.integers(0, 160, (count, SIZE, SIZE, 1)).astype(np.uint8)
    images[np.arange(count), 1 + labels] = 255
    return Split(images, labels, tuple(map(str, range(CLASSES))), "noise/test")


def publish_parts(folder: Path, cut: str, side: int, images: int, model: str = MODEL) -> Parts:
    """Train ``side`` networks, publish their parts and load them."""
    train = attrs.evolve(noise(512, 1), name="noise/train")
    data = DataSet("noise", train, noise(images, 2))
    tasks = [ck.Task(f"n{number}", data, model, cut, size=SIZE) for number in range(side)]
    registry = ck.Registry.init(folder / cut)
    registry.publish(ck.Trainer(steps=STEPS, batch_size=BATCH, progress=False).fit(tasks), prefix="bench")
    parts = [
        [load(registry.store, name) for name in registry.store.select(f"bench/*.{kind}", kind)]
        for kind in ("extractor", "head")
    ]
    return Parts(parts[0], parts[1], data.test)


def make_batches(parts: Parts) -> list[tuple[Tensor, Tensor]]:
    """Return uint8 batches with their labels, in the order of ``measure``; shared by all pairs."""
    pixels = torch.from_numpy(parts.images.images).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(parts.images.labels)
    return [(pixels[indices], labels[indices]) for indices in batches(len(labels), BATCH, 0)]


def normalized(pixels: Tensor, part: Component) -> Tensor:
    """Return one-channel images normalized for an extractor."""
    data = part.manifest.contract.data
    return torch.addcmul(
        torch.tensor(-data.mean[0] / data.std[0]), pixels.float(), torch.tensor(1 / (255 * data.std[0]))
    )


@contextmanager
def batchwise(layers: Sequence[nn.BatchNorm2d]) -> Iterator[None]:
    """Normalize by the statistics of each batch and store none."""
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer in layers:
            layer.training, layer.track_running_stats = False, True


@contextmanager
def estimated(layers: Sequence[nn.BatchNorm2d], full_pass: Callable[[], None]) -> Iterator[None]:
    """Estimate the running statistics in a first pass; restore the earlier ones at the end."""
    buffers = [{name: value.clone() for name, value in layer.named_buffers()} for layer in layers]
    momenta = [layer.momentum for layer in layers]
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True
        full_pass()
        for layer in layers:
            layer.training = False
        yield
    finally:
        for layer, saved, momentum in zip(layers, buffers, momenta, strict=True):
            layer.load_state_dict({**layer.state_dict(), **saved})
            layer.momentum, layer.training = momentum, False


def policy_context(policy: str, module: nn.Module, full_pass: Callable[[], None]):
    """Return a context with a module under a policy; ``full_pass`` runs it on all images."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if policy == "running" or not layers:
        return nullcontext()
    return batchwise(layers) if policy == "batch" else estimated(layers, full_pass)


def count_correct(logits: Tensor, labels: Tensor) -> int:
    """Return the number of correct predictions."""
    return int((logits.argmax(dim=1) == labels).sum())


@torch.no_grad()
def naive(parts: Parts, policy: str) -> Correct:
    """Evaluate every pair as a whole network."""
    examples, correct = make_batches(parts), Correct()
    for left in parts.extractors:
        for head in parts.heads:
            network = nn.Sequential(left.module, head.module).eval()

            def full_pass(network: nn.Module = network, left: Component = left) -> None:
                for pixels, _ in examples:
                    network(normalized(pixels, left))

            with policy_context(policy, network, full_pass):
                correct[left.reference, head.reference] = sum(
                    count_correct(network(normalized(pixels, left)), labels) for pixels, labels in examples
                )
    return correct


def ours(parts: Parts, policy: str) -> Correct:
    """Measure the matrix."""
    data = {extractor.reference: parts.images for extractor in parts.extractors}
    cells = measure(parts.extractors, parts.heads, data, Conditions(policy, BATCH))
    return {(cell.extractor, cell.head): cell.restricted.correct for cell in cells if cell.restricted}


def matrix(rounds: int, *, policy: str) -> list[float]:
    """Return how many times as long ``Registry.matrix`` takes as the ideal on one thread, in each round.

    6 x 6 parts of ResNet-20 at 16 x 16, 1,000 images; ours loads the parts, checks the pairs and records each cell as
    new evidence, the ideal has modules and images in memory.
    """
    from gpu_matrix import ideal, same  # imports this script

    results = dict[str, Correct]()
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        folder = Path(name)
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        parts = publish_parts(folder, "layer3", 6, 1000, "resnet20_cifar")
        modules = {part.reference: part.module.eval() for part in (*parts.extractors, *parts.heads)}
        registry = ck.Registry(folder / "layer3")

        def through_registry() -> Correct:
            table = registry.matrix(
                "bench/*.extractor",
                "bench/*.head",
                [parts.images],
                bn_policy=policy,
                batch_size=BATCH,
                fill="all",
            )
            return {(cell.extractor, cell.head): cell.restricted.correct for cell in table if cell.restricted}

        contestants = {
            "ours": Contestant(
                through_registry,
                lambda: shutil.rmtree(folder / "layer3" / "evidence", ignore_errors=True),
                lambda correct: results.update(ours=correct),
            ),
            "ideal": Contestant(
                lambda: ideal(parts, modules, policy, "cpu"),
                check=lambda correct: results.update(ideal=correct),
            ),
        }
        times = compete(contestants, rounds, seed=0)
    same(results, len(parts.images))
    return ratios(times, "ours", "ideal")


@torch.no_grad()
def passes(parts: Parts, policy: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that run an extractor on all images, and a head on its features."""
    left, head = parts.extractors[0], parts.heads[-1]
    examples = make_batches(parts)
    features = [(left.module.eval()(normalized(pixels, left)), labels) for pixels, labels in examples]

    @torch.no_grad()
    def extractor() -> None:
        def full_pass() -> None:
            for pixels, _ in examples:
                left.module(normalized(pixels, left))

        with policy_context(policy, left.module, full_pass):
            full_pass()
        if policy == "reestimate" and not _normalizes(left.module):
            full_pass()

    @torch.no_grad()
    def classifier() -> None:
        def full_pass() -> None:
            for maps, labels in features:
                count_correct(head.module(maps), labels)

        with policy_context(policy, head.module, full_pass):
            full_pass()
        if policy == "reestimate" and not _normalizes(head.module):
            full_pass()

    return extractor, classifier


def _normalizes(module: nn.Module) -> bool:
    return any(isinstance(layer, nn.BatchNorm2d) for layer in module.modules())


def by_turns(parts: Parts, policy: str, rounds: int, seed: int) -> Timings:
    """Time all contestants by turns, in a new random order each round; every cell must agree."""
    results: dict[str, Correct] = {}
    work = {"naive": lambda: naive(parts, policy), "ours": lambda: ours(parts, policy)}
    extractor, classifier = passes(parts, policy)
    extractor(), classifier()
    contestants = {
        name: Contestant(call, check=lambda correct, n=name: results.update({n: correct}))
        for name, call in work.items()
    }
    contestants |= {"e": Contestant(extractor, calls=PARTS), "h": Contestant(classifier, calls=PARTS)}
    order, generator, timings = list(contestants), random.Random(seed), Timings()
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            getattr(timings, name).append(contestants[name].turn().processor)
        expect("cells", len(results["ours"]), len(parts.extractors) * len(parts.heads))
        expect("right answers", results["ours"], results["naive"])
    return timings


def line(cut: str, policy: str, timings: Timings, side: int) -> str:
    """Return a row of the table."""
    e, h = median(timings.e), median(timings.h)
    ideal = side * side * (e + h) / (side * e + side * side * h)
    gain = median(slow / fast for slow, fast in zip(timings.naive, timings.ours, strict=True))
    seconds = f"{median(timings.naive):.2f} | {median(timings.ours):.2f}"
    share = gain / ideal
    verdict = "pass" if share >= GATE else "FAIL"
    figures = f"{1e3 * e:.1f} | {1e3 * h:.2f} | {seconds} | {gain:.2f} | {ideal:.2f} | **{share:.2f}**"
    return f"| {cut} | {policy} | {figures} | {verdict} |"


def main() -> None:
    """Measure, print the table, and write it where ``--out`` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=20, help="number of extractors and of heads")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        for cut, policies in CELLS.items():
            parts = publish_parts(Path(folder), cut, options.side, options.images)
            for policy in policies:
                row = line(cut, policy, by_turns(parts, policy, options.rounds, options.seed), options.side)
                rows.append(row)
                say(row)
    text = "\n".join(
        [
            machine(),
            f"{MODEL} at {SIZE}x{SIZE}, {options.side} extractors and {options.side} heads, {options.images} images in "
            f"batches of {BATCH}; medians of {options.rounds} rounds, seed {options.seed}; seconds of the processor.",
            "",
            "| cut | policy | e ms | h ms | naive s | ours s | speed-up | ideal | share | gate .8 |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
            *rows,
        ]
    )
    print(text, flush=True)
    if options.out is not None:
        command = " ".join(["python", "benchmarks/matrix.py", *sys.argv[1:]])
        options.out.write_text(f"# What the matrix gains\n\n    {command}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
