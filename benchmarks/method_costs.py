"""Measure what each method adds to a training step of ResNet-20.

Run ``python benchmarks/method_costs.py [--rounds 5] [--out docs/results/method_costs]``. It writes a page (``.md``) and
the figures (``.json``), which the pages of the methods quote. One thread; all methods and a run without any take turns
in random order, and ratios are of processor time, round by round, so that other work on the machine disturbs little.
Methods that act before the first step cost nothing in a step and are left out; so are those whose network is another,
such as variational autoencoders.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import torch
from contest import Contestant, compete, machine

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.prepare import FitRequest, PreparedRun, prepare
from compatkit.training.pretraining import pretrain

CLASSES = tuple("0123456789")
BATCH, STEPS = 32, 2
TRAINER = ck.Trainer(steps=1000, batch_size=BATCH, precision="float32", progress=False)
WEIGHTS = ("l2_sp", "delta", "co_tuning", "stochnorm", "bss", "gradual_unfreezing")
"""Methods that start from weights of another run."""
RELEASED = {"backward_compatibility": "head", "feature_distillation": "extractor"}
"""Methods that need a released part, and which."""
PLAIN, AGAIN = "plain", "plain, again"
METHODS: dict[str, dict[str, Any]] = {
    "identical_init": {},
    "dcc": {},
    "backward_compatibility": {},
    "feature_distillation": {},
    "unit_features": {},
    "rotation_prediction": {},
    "jigsaw": {},
    "colorization": {},
    "contrastive": {},
    "reverse_pass": {},
    "orthogonality": {},
    "random_labels": {},
    "l2_sp": {},
    "bss": {},
    "delta": {"layers": ["layer1", "layer2"], "fit_steps": 2},
    "co_tuning": {"steps": 2},
    "stochnorm": {},
    "gradual_unfreezing": {"every": 1_000_000},
}


def noise() -> DataSet:
    """Return colored noise of 32 x 32 pixels."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 255, (256, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(256) % len(CLASSES)
    return DataSet("noise", *(Split(images, labels, CLASSES, f"noise/{part}") for part in ("train", "test")))


def begin(stack: ExitStack, name: str, registry: ck.Registry, start: ck.Fit) -> PreparedRun:
    """Return a run that is ready for its first step."""
    weights = {"weights": start.weights("noise")} if name in WEIGHTS else {}
    task = ck.Task("noise", noise(), "resnet20_cifar", "layer2", **weights)
    uses = [ck.use(name, **METHODS[name])] if name in METHODS else []
    frozen = RELEASED.get(name)
    parts = registry.frozen(**{frozen: f"nets/noise.{frozen}"}) if frozen else None
    run = stack.enter_context(prepare(FitRequest(TRAINER, [task], uses, frozen=parts)))
    pretrain(run.loop, False)
    return run


def turns(run: PreparedRun) -> Callable[[], object]:
    """Return a function that makes some steps."""
    loop, numbers = run.loop, count()
    state = loop.setup.tasks["noise"]

    def turn() -> None:
        for _ in range(STEPS):
            loop.step(state, next(numbers))

    return turn


def measured(names: Sequence[str], rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Return ratio, least and most of each method, and those of a second run without any (``plain, again``)."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        start = attrs.evolve(TRAINER, steps=2).fit([ck.Task("noise", noise(), "resnet20_cifar", "layer2")])
        registry = ck.Registry.init(Path(folder) / "parts")
        registry.publish(start, prefix="nets")
        runs = {name: begin(stack, name, registry, start) for name in (PLAIN, AGAIN, *names)}
        times = compete({name: Contestant(turns(run)) for name, run in runs.items()}, rounds, seed)
    plain = [timing.processor for timing in times[PLAIN]]
    found = {}
    for name in (AGAIN, *names):
        ratios = [timing.processor / one for timing, one in zip(times[name], plain, strict=True)]
        found[name] = {"ratio": median(ratios), "least": min(ratios), "most": max(ratios)}
    return found


def page(found: Mapping[str, Mapping[str, float]], rounds: int, made_on: str) -> str:
    """Return the page of results."""
    lines = [
        "# What methods cost",
        "",
        f"    python benchmarks/method_costs.py --rounds {rounds} --out docs/results/method_costs",
        "",
        made_on,
        "",
        "Processor time of a training step with each [method](../methods/index.md) over that of a step without any: "
        f"one ResNet-20, 32x32 images in color, batches of {BATCH}, float32, {STEPS} steps a turn. All take turns in "
        f"random order, {rounds} rounds; the ratio is the median over rounds, beside the least and the most. The "
        "machine was shared with other work: `plain, again` is the same run without any method once more, and shows "
        "the noise.",
        "",
        "| method | step, times that of none | least | most |",
        "|---|---:|---:|---:|",
    ]
    for name, one in found.items():
        label = name if name == AGAIN else f"[`{name}`](../methods/{name}.md)"
        lines.append(f"| {label} | {one['ratio']:.2f} | {one['least']:.2f} | {one['most']:.2f} |")
    lines += [
        "",
        "Methods that act before the first step alone cost nothing in a step and are left out, but for `identical_init`"
        ". So are those of variational autoencoders, generators and forecasts: there is no step without them. `delta` "
        "compares layer1 and layer2; its attention and the relation of `co_tuning` are found before the first step and "
        "not counted.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the page, and write page and figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options.methods, options.rounds, options.seed)
    text = page(found, options.rounds, machine())
    print(text)
    if options.out is not None:
        options.out.with_suffix(".md").write_text(text, encoding="utf-8")
        kept = {"machine": machine(), "rounds": options.rounds, "methods": found}
        options.out.with_suffix(".json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
