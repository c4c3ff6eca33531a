"""Measure the time to rebuild a part of a network, against ``timm.create_model`` of the whole network.

Run ``python benchmarks/rebuilding.py [--networks resnet18:layer3,...] [--runs 30] [--fresh]``. Both parts of each
network are published in a temporary registry. The contestants take turns in one process: ``timm.create_model``, which
draws random weights; ``build`` of each part from blueprint and weights; and ``registry.load`` of each part, which also
reads, maps and checks the weights. Processor time is measured, which other programs disturb less than wall time; the
fastest run of each counts, as a ratio to ``create_model``. ``first`` is the first run in this process, before the cut
of the network is cached.

With ``--fresh`` the extractor is also loaded in new processes: with an empty cache folder, so that the file is hashed
and the probe run, and with the cache of that run. Each process first imports everything and builds the whole network,
so that only the load is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NETWORKS = (
    "resnet18:layer3,resnet50:layer3,vit_tiny_patch16_224:blocks.5,mobilenetv3_small_050:blocks.3,"
    "resnet20_cifar:layer2"
)
FRESH = """
import sys, time
import compatkit
from compatkit.adapters import blueprints
from compatkit.adapters.builders import create
from compatkit.components import loading, verification
create("timm", sys.argv[3], {})
registry = compatkit.Registry.open(sys.argv[1])
started = time.process_time()
registry.load(sys.argv[2])
print(time.process_time() - started)
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=NETWORKS, help="MODEL:SPLIT, separated by commas")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--fresh", action="store_true", help="also measure first loads of fresh processes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        print("| network | what | first ms | ms | x create_model |\n|---|---|---|---|---|")
        for network in options.networks.split(","):
            measure(Path(folder), *network.rsplit(":", 1), options.runs, options.fresh)


def measure(folder: Path, model: str, cut: str, runs: int, fresh: bool) -> None:
    """Print the rows of one network."""
    tasks, registry, references = contestants(folder / f"{model}-{cut}", model, cut)
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(runs):
        for name, task in tasks.items():
            started = time.process_time()
            task()
            seconds[name].append(time.process_time() - started)
    baseline = min(seconds["timm.create_model"])
    for name, times in seconds.items():
        first, best = times[0], min(times)
        print(f"| {model} at {cut} | {name} | {first * 1e3:.1f} | {best * 1e3:.2f} | {best / baseline:.2f} |")
    if fresh:
        for cached, times in first_loads(
            folder, str(registry.store.root), references["extractor"], model
        ).items():
            print(f"| {model} at {cut} | fresh process, cached: {cached} | {min(times) * 1e3:.1f} | | |")


def first_loads(folder: Path, root: str, reference: str, model: str) -> dict[str, list[float]]:
    """Return seconds of the first load in a fresh process, by the content of the cache folder."""
    seconds: dict[str, list[float]] = {"nothing": [], "everything": []}
    for _ in range(3):
        cache = Path(tempfile.mkdtemp(dir=folder))
        for times in seconds.values():
            done = subprocess.run(
                [sys.executable, "-c", FRESH, root, reference, model],
                env={**os.environ, "COMPATKIT_CACHE": str(cache)},
                capture_output=True,
                text=True,
                check=True,
            )
            times.append(float(done.stdout))
    return seconds


def contestants(
    folder: Path, model: str, cut: str
) -> tuple[dict[str, Callable[[], Any]], Any, dict[str, str]]:
    """Return the calls of the contestants by label, the baseline first; the registry; and its references."""
    import timm

    import compatkit
    from compatkit.adapters.blueprints import build
    from compatkit.adapters.cutting import cache
    from compatkit.components import splitting
    from compatkit_plugins.networks import NETWORKS
    from compatkit_plugins.networks import build as build_own

    registry = compatkit.Registry.init(folder)
    parts = splitting.split(model, cut)
    references = splitting.publish_split(registry.store, parts, model.replace("_", "-"))
    cache.forget()
    create = build_own if model in NETWORKS else timm.create_model
    calls: dict[str, Callable[[], Any]] = {"timm.create_model": lambda: create(model)}
    for side, part in parts.items():
        state = {name: value.clone() for name, value in part.module.state_dict().items()}
        calls[f"build {side}"] = lambda b=part.blueprint, s=state: build(b, state=s, share=True)
    for side, reference in references.items():
        calls[f"registry.load {side}"] = lambda r=reference: registry.load(r)
    return calls, registry, references


if __name__ == "__main__":
    main()
