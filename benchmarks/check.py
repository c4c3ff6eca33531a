"""Measure how many pairs of contracts a check compares per second.

Run ``python benchmarks/check.py [--side 300] [--registry]``. Contracts are synthetic; no weights are read or
written. "all different": no two contracts are equal at any level, so that no comparison can be reused for other
pairs; "ten": each side has ten different contracts. ``--registry`` also publishes SIDE extractors and SIDE heads
in a temporary registry and checks all pairs from disk, a tenth of them with measured evidence. Targets: under 100
microseconds a pair, and 90,000 pairs in under 10 s.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import attrs

from compatkit.components.registry import Registry
from compatkit.contracts.channels import Blobs, ChannelStatistics
from compatkit.contracts.check import check
from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    FeatureStatistics,
    Label,
    Port,
    Protocol,
    Scaled,
    Statistical,
    Structural,
)
from compatkit.contracts.evidence import METRIC, METRIC_VERSION, Cell, Figure
from compatkit.contracts.labels import common, spelling
from compatkit.contracts.manifest import Edge, Manifest, Payload, function_digest
from compatkit.foundation.codec import dumps
from compatkit.registry.store import Store
from compatkit.reports.verdicts import Verdicts, check_all

CHANNELS = 512
Row = tuple[str, int, float, float]
"""Operation, pairs, wall seconds, processor seconds."""


def digest(text: str) -> str:
    """Return the digest of ``text``."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def classes(count: int, first: int = 0) -> tuple[Label, ...]:
    """Return labels; every tenth has an alias."""
    return tuple(
        Label(f"class {number}", (f"sort {number}",) if number % 10 == 0 else ())
        for number in range(first, first + count)
    )


def component(
    kind: Literal["extractor", "head"],
    number: int,
    *,
    labels: tuple[Label, ...] | None = None,
    channels: bool = False,
) -> Manifest:
    """Return a manifest; contracts of different numbers differ at every level."""
    half = Scaled("H", 1 + number, 2), Scaled("W", 1 + number, 2)
    seam = Port("features", ("N", 64 + number % 7, *half), measured={"32x32": (16 + number, 16)})
    if kind == "head":
        seam = Port("features", ("N", 64 + number % 5, "H1", "W1"), measured={"32x32": (16, 16 + number)})
    image, logits = Port("image", ("N", 3, "H", "W")), Port("logits", ("N", 10), layout="NC")
    blob = {"blob": digest(f"{kind} {number}"), "bytes": 8 * CHANNELS} if channels else None
    contract = Contract(
        Structural(*(((image,), (seam,)) if kind == "extractor" else ((seam,), (logits,)))),
        Data((32, 32 + number), "RGB", (0.4, 0.4, 0.4), (0.2, 0.2, 0.2), labels=labels),
        Protocol(
            "batch", tuple(Anchor("auxiliary_head", f"tensors:{digest(str(number + i))}") for i in range(3))
        ),
        Statistical((FeatureStatistics(0.4 + number / 1000, 0.8, 5000, blob),)),
    )
    blueprint = Blueprint(
        "timm", "timm", "resnet20_cifar", {"number": number}, "layer2", kind, "fx", (32, 32)
    )
    payload = Payload(Edge(digest("file"), 1), "tensors:" + digest(f"{kind} {number}"), 1, 1)
    return Manifest(kind=kind, blueprint=blueprint, payload=payload, contract=contract)


def side(
    kind: Literal["extractor", "head"],
    count: int,
    different: int,
    labels: int = 10,
    *,
    channels: bool = False,
) -> dict[str, Manifest]:
    """Return manifests by reference; equal manifests are separate objects."""
    return {
        f"bench/{kind}{number}@1.0.0": component(
            kind,
            number % different,
            labels=classes(labels, number % different) if kind == "head" else None,
            channels=channels,
        )
        for number in range(count)
    }


def figures(parts: Sequence[Manifest], spread: float) -> Blobs:
    """Return the channel statistics of every blob in the manifests; ``spread`` 0 makes all of them equal."""
    statistics: dict[str, ChannelStatistics] = {}
    for number, part in enumerate(parts):
        means = [0.01 * channel + spread * number for channel in range(CHANNELS)]
        for port in part.contract.statistical.features or ():
            statistics[str((port.per_channel or {})["blob"])] = ChannelStatistics(means, [0.8] * CHANNELS)
    return statistics


def timed(what: str, pairs: int, work: Callable[[], object], runs: int = 3) -> Row:
    """Return the fastest of several runs, which other programs disturbed least."""
    durations: list[tuple[float, float]] = []
    for _ in range(runs):
        start, processor = time.perf_counter(), time.process_time()
        work()
        durations.append((time.perf_counter() - start, time.process_time() - processor))
    return what, pairs, min(wall for wall, _ in durations), min(processor for _, processor in durations)


def one_pair() -> list[Row]:
    """Time ``check`` on one pair, repeatedly."""
    rows: list[Row] = []
    left = component("extractor", 1)
    for count in (10, 1000):
        right = component("head", 1, labels=classes(count))
        data = component("head", 0, labels=classes(count, 5)).contract.data

        def work(right: Manifest = right, data: Data = data) -> None:
            for _ in range(1000):
                check(left, right, data=data)

        rows.append(timed(f"check, one pair, {count:,} classes with data=", 1000, work))
    return rows


def sets(count: int) -> list[Row]:
    """Time ``check_all`` of ``count`` x ``count`` pairs."""
    lefts, data = side("extractor", count, count), component("head", 0).contract.data
    rows: list[Row] = []
    for many in (10, 1000):
        rights = side("head", count, count, many)
        labeled = attrs.evolve(data, labels=classes(many, 5))
        rows.append(
            timed(
                f"all different, {many:,} classes with data=",
                count**2,
                lambda r=rights, d=labeled: check_all(lefts, r, data=d),
            )
        )
    ten = side("extractor", count, 10), side("head", count, 10)
    rows.append(
        timed("ten contracts a side, 10 classes with data=", count**2, lambda: check_all(*ten, data=data))
    )
    both = side("extractor", count, count, channels=True), side("head", count, count, channels=True)
    for spread, word in ((0.1, "far"), (0.0, "alike")):
        blobs = figures([*both[0].values(), *both[1].values()], spread)
        rows.append(
            timed(
                f"all different, {CHANNELS} channels a port, all {word}",
                count**2,
                lambda b=blobs: check_all(*both, channels=b),
            )
        )
    verdicts = check_all(lefts, side("head", count, count), data=data)
    rows.append(timed("... then all reports, with their texts", count**2, lambda: reports(verdicts), runs=1))
    return rows


def reports(verdicts: Verdicts) -> None:
    """Write the report of every pair."""
    for extractor, head, _ in verdicts.pairs():
        verdicts.report(extractor, head)


def ten_thousand_classes() -> Row:
    """Time the matching of 10,000 class names with 10,000 other spellings."""
    left = [f"class_{number}" for number in range(10_000)]
    right = [f"Class {number}" for number in range(10_000)][::-1]

    def work() -> None:
        spelling.cache_clear()
        common(left, right)

    return timed("10,000 class names with 10,000", 1, work)


def from_disk(count: int) -> list[Row]:
    """Time all pairs of a registry, first without evidence, then with a tenth of them measured."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder) / "parts")
        payload = store.put_state({"weight": torch.zeros(1)}, parameters=1)
        parts = [side("extractor", count, count), side("head", count, count)]
        for name, manifest in (item for components in parts for item in components.items()):
            store.publish(name.split("@")[0], attrs.evolve(manifest, payload=payload))
        registry = Registry(Store.open(store.root))

        def work() -> None:
            registry.check_all("bench/extractor*", "bench/head*")

        rows = [timed("from a registry, nothing measured", count**2, work, runs=2)]
        functions = [
            [function_digest(attrs.evolve(manifest, payload=payload)) for manifest in components.values()]
            for components in parts
        ]
        figure = Figure(0.5, 50, 100, 0.4, 0.6)
        result = Cell("e", "h", "direct", "none", "compatible", figure, figure, 0.1, figure, 1.0)
        result = attrs.evolve(result, settings={"metric": METRIC, "metric_version": METRIC_VERSION})
        for number in range(count**2 // 10):
            pair = functions[0][number % count], functions[1][number * 10 // count]
            store.evidence.record(*pair, {}, dumps(attrs.asdict(result)))
        return [*rows, timed("from a registry, a tenth measured", count**2, work, runs=2)]


def main() -> None:
    """Time everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=300, help="number of extractors and of heads")
    parser.add_argument(
        "--registry",
        action="store_true",
        help="also check pairs from a registry on disk, which takes minutes to fill",
    )
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    sides = f"{options.side} extractors x {options.side} heads, fastest of three runs"
    print(f"{machine}, Python {sys.version.split()[0]}; {sides}\n")
    print("| what | pairs | seconds | of the processor | microseconds a pair | pairs a second |")
    print("|---|---:|---:|---:|---:|---:|")
    rows = [*one_pair(), *sets(options.side), ten_thousand_classes()]
    for what, pairs, seconds, processor in [*rows, *(from_disk(options.side) if options.registry else [])]:
        each = f"{1e6 * processor / pairs:,.1f} | {pairs / processor:,.0f}" if pairs > 1 else " | "
        print(f"| {what} | {pairs:,} | {seconds:.3f} | {processor:.3f} | {each} |")


if __name__ == "__main__":
    main()
