"""Is a part of a network rebuilt faster than timm builds the network?

Run ``python benchmarks/rebuilding.py [--model resnet50] [--split layer3] [--runs 7]``. The contestants take turns in
one process; the minimum of each counts, as a ratio to ``timm.create_model``, which draws random weights. A part is
rebuilt from its blueprint and its weights: network without draws, trace, cut, strict load. What is paid once or apart
is shown apart: discovery of all cut points, and the probe that a part must pass when a registry loads it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import timm
import torch

from compatkit.adapters.blueprints import build, build_pair, plan, probe
from compatkit.adapters.cutting.discovery import watched


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--split", default="layer3")
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    tasks = contestants(given.model, given.split)
    for _ in range(given.runs):
        for name, task in tasks.items():
            started = time.perf_counter()
            task()
            seconds.setdefault(name, []).append(time.perf_counter() - started)
    yardstick = min(seconds["timm.create_model"])
    print(
        f"{given.model} at {given.split}, torch {torch.__version__}, {torch.get_num_threads()} threads, load "
        f"{os.getloadavg()[0]:.1f}; fastest of {given.runs} runs in turn\n"
    )
    print("| what | seconds | ratio |\n|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {min(taken):.3f} | {min(taken) / yardstick:.2f} |")


def contestants(model: str, split: str) -> dict[str, Callable[[], Any]]:
    """Return label and task; the first is the yardstick."""
    found: dict[str, Callable[[], Any]] = {"timm.create_model": lambda: timm.create_model(model)}
    for at in (split, "forward_features"):
        planned = plan(model, at)
        whole, *parts = build_pair(planned.extractor, planned.head, seed=0)
        image = (1, planned.input.channels, *planned.input.size)
        with torch.no_grad():
            crossing = parts[0].eval()(torch.zeros(image))
        shapes = (image, tuple(crossing.shape))
        for blueprint, part, shape in zip((planned.extractor, planned.head), parts, shapes, strict=True):
            state = {name: value.clone() for name, value in part.state_dict().items()}
            label = f"{blueprint.side} at {at}"
            found[f"rebuild the {label}"] = lambda b=blueprint, s=state: build(b, state=s)
            found[f"probe of the {label}"] = lambda p=part, s=shape: probe(p, s)
        found["discovery of all cut points"] = lambda w=whole, i=image: watched(w, i[1:])
    return found


if __name__ == "__main__":
    main()
