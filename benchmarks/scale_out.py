"""Predict the time of a matrix and of bridges on many workers from measured costs; compare with 1 and 2 workers here.

    .venv-dev/bin/python benchmarks/scale_out.py --json docs/results/scale_out.json

Measures what a row costs (loading the extractor, running it over the images), what each head adds, and what a result
costs in the registry. A discrete-event simulation then lets W workers take rows in turn and lets the registry accept
one result at a time, the worst case of a shared folder. A pair to bridge is a row with one head, whose cost is its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import torch

import compatkit as ck
from compatkit.evaluation import records

ROWS, HEADS, IMAGES = 8, 8, 512


@attrs.frozen
class Costs:
    """Seconds.

    Attributes:
        start: Start of a worker's process, with its imports.
        row: Load an extractor and run it over its images.
        head: Further cost of a head.
        write: Record a result in the registry.
    """

    start: float
    row: float
    head: float
    write: float


def simulate(costs: Costs, rows: int, heads: int, workers: int) -> float:
    """Return the seconds until the last result is recorded.

    Args:
        costs: Measured costs.
        rows: Extractors.
        heads: Heads of each row.
        workers: Workers; each takes the next row when its results are recorded.
    """
    free = [(costs.start, number) for number in range(min(workers, rows))]
    registry = 0.0  # when the registry accepts the next result
    last = 0.0
    # Rows that end are served in the order of their ends.
    ends: list[tuple[float, int]] = []
    left = rows
    while free or ends:
        if free and left and (not ends or free[0][0] <= ends[0][0]):
            at, number = heapq.heappop(free)
            left -= 1
            heapq.heappush(ends, (at + costs.row + heads * costs.head, number))
        elif ends:
            at, number = heapq.heappop(ends)
            registry = last = max(registry, at) + heads * costs.write
            if left:
                heapq.heappush(free, (last, number))
        else:
            break
    return last


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def registry_of(folder: Path) -> tuple[ck.Registry, ck.Split]:
    """Return networks that were trained for one step, and test images."""
    draw = np.random.default_rng(0)
    splits = [
        ck.Split(
            draw.integers(0, 255, (IMAGES, 32, 32, 3)).astype(np.uint8),
            np.arange(IMAGES) % 10,
            tuple("0123456789"),
            f"noise/{part}",
        )
        for part in ("train", "test")
    ]
    data = ck.DataSet("noise", *splits)
    registry = ck.Registry(folder / "parts", create=True)
    for number in range(ROWS):
        task = ck.Task("noise", data, "resnet20_cifar", "layer2")
        fit = ck.Trainer(steps=1, batch_size=8, seed=number, progress=False).fit([task])
        registry.publish(fit, prefix=f"n{number}")
    return registry, data.test


def bridges(registry: ck.Registry, images: ck.Split, rounds: int) -> dict[str, Any]:
    """Measure ``ridge`` bridges of pairs with 1 and 2 workers, and predict 1,000 pairs on more.

    Args:
        registry: Networks of ``registry_of``.
        images: Images to fit on.
        rounds: Times that each way is measured, by turns.
    """
    extractors = [f"n{number}/noise.extractor" for number in range(4)]
    heads = [f"n{number}/noise.head" for number in range(4, 8)]
    data = dict.fromkeys(extractors, images)
    pairs = len(extractors) * len(heads)

    def make(**settings: Any) -> float:
        again = ck.Registry(registry.store.root)
        return timed(lambda: again.bridges.between(extractors, heads, data, "ridge", **settings))

    make(record=False)
    bare: list[float] = []
    by_workers: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        bare.append(make(record=False))
        for workers, times in by_workers.items():
            times.append(make(record=False, workers=workers))
    written = make()
    start = median(by_workers[1]) - median(bare)
    costs = Costs(start, median(bare) / pairs, 0, max(0.0, written - median(bare)) / pairs)
    first, second = (median(times) for times in by_workers.values())
    return {
        "pairs": pairs,
        "costs": attrs.asdict(costs),
        "measured": {"1": first, "2": second, "growth": first / second},
        "1000 pairs": {str(count): simulate(costs, 1000, 1, count) for count in (1, 2, 10, 100)},
    }


def main() -> None:
    """Measure, simulate, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        registry, test = registry_of(Path(folder))

        def measure(rows: str, heads: str, **settings: Any) -> float:
            again = ck.Registry(registry.store.root)
            return timed(lambda: again.matrix(rows, heads, {"*": test}, fill="all", **settings))

        measure("n0/*.extractor", "n0/*.head", record=False)  # warm caches of files and libraries
        one, many, with_writes, first, second = [], [], [], [], []
        for _ in range(options.rounds):  # interleaved, as the machine is shared
            one.append(measure("n0/*.extractor", "n0/*.head", record=False))
            many.append(measure("n0/*.extractor", "n*/*.head", record=False))
            with_writes.append(measure("n0/*.extractor", "n*/*.head"))
            first.append(measure("n*/*.extractor", "n*/*.head", workers=1))
            second.append(measure("n*/*.extractor", "n*/*.head", workers=2))
        writes = []
        whole = records.keep

        def keep(store: Any, parts: Any, cells: Any) -> bool:
            began = time.perf_counter()
            kept = whole(store, parts, cells)
            writes.append((time.perf_counter() - began) / len(cells))
            return kept

        import compatkit.components.matrices.filling as filling

        filling.keep = keep
        measure("n0/*.extractor", "n*/*.head")
        filling.keep = whole
        bridged = bridges(registry, test, options.rounds)
        start = timed(lambda: os.system(f"{os.sys.executable} -c 'import torch, timm'"))
    head = max(0.0, (median(many) - median(one)) / (HEADS - 1))
    costs = Costs(start, median(one) - head, head, median(writes))
    document = {
        "command": "python benchmarks/scale_out.py --json docs/results/scale_out.json",
        "machine": f"{os.cpu_count()} processors, shared with other work; torch {torch.__version__}, one thread",
        "costs": attrs.asdict(costs),
        "measured": {"1": median(first), "2": median(second), "growth": median(first) / median(second)},
        "predicted": {str(count): simulate(costs, ROWS, HEADS, count) for count in (1, 2)},
        "1000 x 1000": {
            str(count): simulate(attrs.evolve(costs, start=costs.start), 1000, 1000, count)
            for count in (1, 2, 10, 100, 300, 1000)
        },
        "writes of 1000 x 1000": 1_000_000 * costs.write,
        "bridges": bridged,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
