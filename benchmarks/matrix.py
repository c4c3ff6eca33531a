"""Measure the gain of running each extractor once for a matrix of E extractors and H heads.

Run ``python benchmarks/matrix.py [--side 20] [--images 1000] [--rounds 2] [--seed 0] [--out FILE]``. SIDE small nets
are trained for a few steps on noise and cut early and late. Contestants take turns in one process, on one thread, in
another order each round; both have all parts and images in memory, and both must count the same right answers in every
cell.

- **naive**: for each pair, the whole network over all images: the same preprocessing, batches, order, policy and
  float32, by a plain loop. Under ``reestimate`` it makes a first pass for the statistics, and puts them back after.
- **ours**: ``compatkit.evaluation.matrix.measure``, with what it does besides: checks of contracts, bounds, intervals.

The **ideal** follows from one pass of an extractor, *e*, and one of a head, *h*, over the same batches, which take
turns with the others: (E H (e + h)) / (E e + E H h). Times are those of the processor, which other programs disturb
less.
"""

from __future__ import annotations

import argparse
import os
import random
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
from registry_measuring import Contestant, expect, machine, say
from torch import Tensor, nn

import compatkit as ck
from compatkit.components.loading import load
from compatkit.data.dataset import DataSet, Split
from compatkit.evaluation.batchnorm import batches
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import measure

CELLS = {"layer1": ("batch",), "layer3": ("running", "batch", "reestimate")}
"""Cut to policies. Late heads are small, so that what ours does besides weighs most there."""
MODEL, SIZE, CLASSES, BATCH, STEPS = "resnet8_cifar", 16, 10, 128, 2
GATE = 0.8
PARTS = 8
"""ViewBatching of a part that are timed at once; a single one is too short."""
Right = dict[tuple[str, str], int]


@attrs.frozen
class Parts:
    """Extractors and heads in memory, with the images that all are measured on."""

    extractors: Sequence[Component]
    heads: Sequence[Component]
    images: Split


@attrs.frozen
class Timed:
    """Seconds of one cut under one policy, a list entry a round; ``e`` and ``h`` of one part."""

    naive: list[float] = attrs.field(factory=list)
    ours: list[float] = attrs.field(factory=list)
    e: list[float] = attrs.field(factory=list)
    h: list[float] = attrs.field(factory=list)


def noise(count: int, seed: int) -> Split:
    """Return noise with one bright row a class."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = draw.integers(0, 160, (count, SIZE, SIZE, 1)).astype(np.uint8)
    images[np.arange(count), 1 + labels] = 255
    return Split(images, labels, tuple(map(str, range(CLASSES))), "noise/test")


def make(folder: Path, cut: str, side: int, images: int) -> Parts:
    """Train ``side`` networks, publish their parts, load them again."""
    train = attrs.evolve(noise(512, 1), name="noise/train")
    data = DataSet("noise", train, noise(images, 2))
    tasks = [ck.Task(f"n{number}", data, MODEL, cut, size=SIZE) for number in range(side)]
    registry = ck.Registry.init(folder / cut)
    registry.publish(ck.Trainer(steps=STEPS, batch_size=BATCH, progress=False).fit(tasks), prefix="bench")
    parts = [
        [load(registry.store, one) for one in registry.store.select(f"bench/*.{kind}", kind)]
        for kind in ("extractor", "head")
    ]
    return Parts(parts[0], parts[1], data.test)


def prepared(parts: Parts) -> list[tuple[Tensor, Tensor]]:
    """Return uint8 batches with their labels, in the order that ours takes; made once for all pairs."""
    pixels = torch.from_numpy(parts.images.images).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(parts.images.labels)
    return [(pixels[at], labels[at]) for at in batches(len(labels), BATCH, 0)]


def normalized(pixels: Tensor, part: Component) -> Tensor:
    """Return one channel of images as the extractor wants them."""
    data = part.manifest.contract.data
    return torch.addcmul(
        torch.tensor(-data.mean[0] / data.std[0]), pixels.float(), torch.tensor(1 / (255 * data.std[0]))
    )


@contextmanager
def batchwise(layers: Sequence[nn.BatchNorm2d]) -> Iterator[None]:
    """Normalize by the statistics of each batch and store none."""
    for one in layers:
        one.training, one.track_running_stats = True, False
    try:
        yield
    finally:
        for one in layers:
            one.training, one.track_running_stats = False, True


@contextmanager
def estimated(layers: Sequence[nn.BatchNorm2d], once: Callable[[], None]) -> Iterator[None]:
    """Estimate statistics by a first pass; afterwards they are what they were."""
    kept = [{name: value.clone() for name, value in one.named_buffers()} for one in layers]
    momenta = [one.momentum for one in layers]
    try:
        for one in layers:
            one.reset_running_stats()
            one.momentum, one.training = None, True
        once()
        for one in layers:
            one.training = False
        yield
    finally:
        for one, buffers, momentum in zip(layers, kept, momenta, strict=True):
            one.load_state_dict({**one.state_dict(), **buffers})
            one.momentum, one.training = momentum, False


def under(policy: str, module: nn.Module, once: Callable[[], None]):
    """Return what puts a module under a policy; ``once`` is a pass over all images."""
    layers = [one for one in module.modules() if isinstance(one, nn.BatchNorm2d)]
    if policy == "running" or not layers:
        return nullcontext()
    return batchwise(layers) if policy == "batch" else estimated(layers, once)


def right(logits: Tensor, labels: Tensor) -> int:
    """Return how many answers are right."""
    return int((logits.argmax(dim=1) == labels).sum())


@torch.no_grad()
def naive(parts: Parts, policy: str) -> Right:
    """Evaluate every pair as a whole network."""
    examples, found = prepared(parts), Right()
    for left in parts.extractors:
        for head in parts.heads:
            network = nn.Sequential(left.module, head.module).eval()

            def once(network: nn.Module = network, left: Component = left) -> None:
                for pixels, _ in examples:
                    network(normalized(pixels, left))

            with under(policy, network, once):
                found[left.reference, head.reference] = sum(
                    right(network(normalized(pixels, left)), labels) for pixels, labels in examples
                )
    return found


def ours(parts: Parts, policy: str) -> Right:
    """Measure the matrix."""
    data = {one.reference: parts.images for one in parts.extractors}
    found = measure(parts.extractors, parts.heads, data, Conditions(policy, BATCH))
    return {(one.extractor, one.head): one.restricted.correct for one in found if one.restricted}


@torch.no_grad()
def passes(parts: Parts, policy: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return one pass of an extractor over the images, and one of a head over its features."""
    left, head = parts.extractors[0], parts.heads[-1]
    examples = prepared(parts)
    features = [(left.module.eval()(normalized(pixels, left)), labels) for pixels, labels in examples]

    @torch.no_grad()
    def extractor() -> None:
        def once() -> None:
            for pixels, _ in examples:
                left.module(normalized(pixels, left))

        with under(policy, left.module, once):
            once()
        if policy == "reestimate" and not _normalizes(left.module):
            once()

    @torch.no_grad()
    def classifier() -> None:
        def once() -> None:
            for one, labels in features:
                right(head.module(one), labels)

        with under(policy, head.module, once):
            once()
        if policy == "reestimate" and not _normalizes(head.module):
            once()

    return extractor, classifier


def _normalizes(module: nn.Module) -> bool:
    return any(isinstance(one, nn.BatchNorm2d) for one in module.modules())


def compete(parts: Parts, policy: str, rounds: int, seed: int) -> Timed:
    """Let all take turns, in another order each round; every cell must come out the same."""
    came: dict[str, Right] = {}
    work = {"naive": lambda: naive(parts, policy), "ours": lambda: ours(parts, policy)}
    extractor, classifier = passes(parts, policy)
    extractor(), classifier()
    contestants = {
        name: Contestant(one, check=lambda it, n=name: came.update({n: it})) for name, one in work.items()
    }
    contestants |= {"e": Contestant(extractor, calls=PARTS), "h": Contestant(classifier, calls=PARTS)}
    order, draw, timed = list(contestants), random.Random(seed), Timed()
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            getattr(timed, name).append(contestants[name].turn().processor)
        expect("cells", len(came["ours"]), len(parts.extractors) * len(parts.heads))
        expect("right answers", came["ours"], came["naive"])
    return timed


def line(cut: str, policy: str, timed: Timed, side: int) -> str:
    """Return a row of the table."""
    e, h = median(timed.e), median(timed.h)
    ideal = side * side * (e + h) / (side * e + side * side * h)
    gain = median(slow / fast for slow, fast in zip(timed.naive, timed.ours, strict=True))
    seconds = f"{median(timed.naive):.2f} | {median(timed.ours):.2f}"
    share = gain / ideal
    told = "pass" if share >= GATE else "FAIL"
    figures = f"{1e3 * e:.1f} | {1e3 * h:.2f} | {seconds} | {gain:.2f} | {ideal:.2f} | **{share:.2f}**"
    return f"| {cut} | {policy} | {figures} | {told} |"


def main() -> None:
    """Measure, and print or keep the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=20, help="extractors, and heads")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        for cut, policies in CELLS.items():
            parts = make(Path(folder), cut, given.side, given.images)
            for policy in policies:
                row = line(cut, policy, compete(parts, policy, given.rounds, given.seed), given.side)
                rows.append(row)
                say(row)
    text = "\n".join(
        [
            machine(),
            f"{MODEL} at {SIZE}x{SIZE}, {given.side} extractors and {given.side} heads, {given.images} images in "
            f"batches of {BATCH}; medians of {given.rounds} rounds, seed {given.seed}; seconds of the processor.",
            "",
            "| cut | policy | e ms | h ms | naive s | ours s | speed-up | ideal | share | gate .8 |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
            *rows,
        ]
    )
    print(text, flush=True)
    if given.out is not None:
        command = " ".join(["python", "benchmarks/matrix.py", *sys.argv[1:]])
        given.out.write_text(f"# What the matrix gains\n\n    {command}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
