"""Growth of work on all pairs of two sets: processor time at three numbers of pairs, and its slope.

    python benchmarks/growth_pairs.py [--rounds N] [--only WORK ...]

A set that is twice as large has four times the pairs. What is done once a part, such as loading it, flattens the line;
what is done for a pair with all other parts would make it steeper than 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import check as contracts
import torch
from contest import expect, machine
from growth import Times, line, slopes, timed
from matrix import noise, publish_parts
from registry_floor import scratch

import compatkit as ck
from compatkit.reports.verdicts import check_all

CHECKED = (100, 200, 400)
"""Extractors, and as many heads, that are checked."""
MEASURED = (6, 12, 24)
"""The same of a matrix."""
BRIDGED = (2, 4, 8)
"""The same of bridges."""
IMAGES = 64


def growth(rounds: int, work: str) -> list[float]:
    """Return the slope of each round, and print the times.

    Args:
        rounds: Number of rounds.
        work: One of ``WORKS``.
    """
    return slopes(work, WORKS[work](rounds))


def _check(rounds: int) -> Times:
    """Return the seconds of checks of all pairs, no two contracts alike, by the number of pairs."""
    data = contracts.component("head", 0).contract.data
    sides = {
        side: (contracts.side("extractor", side, side), contracts.side("head", side, side))
        for side in CHECKED
    }
    return timed(
        {
            side**2: lambda lefts=lefts, rights=rights: check_all(lefts, rights, data=data)
            for side, (lefts, rights) in sides.items()
        },
        rounds,
    )


def _of_parts(sides: Sequence[int], rounds: int, work: Callable[[Path, list[list[str]]], int]) -> Times:
    """Return the seconds of work on all pairs of parts of a registry, by their number.

    Args:
        sides: Numbers of extractors, and of heads.
        rounds: Number of rounds.
        work: Is given the registry, and the names of extractors and of heads; returns the number of pairs.
    """
    with scratch() as folder:
        publish_parts(folder, "layer3", 2 * max(sides), IMAGES)

        def of_side(side: int) -> None:
            first, second = range(side), range(side, 2 * side)
            names = [
                [f"bench/n{number}.extractor" for number in first],
                [f"bench/n{number}.head" for number in second],
            ]
            expect("pairs", work(folder / "layer3", names), side**2)

        return timed({side**2: lambda side=side: of_side(side) for side in sides}, rounds)


def _matrix(root: Path, names: list[list[str]]) -> int:
    if (root / "evidence").exists():  # removing its files would take a part of the time
        (root / "evidence").rename(root.with_name(f"evidence-{time.monotonic_ns()}"))
    table = ck.Registry(root).matrix(*names, {"*": noise(IMAGES, 2)}, bn_policy="running", batch_size=IMAGES)
    return table.settings["cells"]["measured"]


def _bridges(root: Path, names: list[list[str]]) -> int:
    images: Any = dict.fromkeys(names[0], noise(4 * IMAGES, 2))
    bridges = ck.Registry(root).bridges.between(*names, images, "ridge", tests=images, record=False)
    return len(bridges)


WORKS: dict[str, Callable[[int], Times]] = {
    "check": _check,
    "matrix": lambda rounds: _of_parts(MEASURED, rounds, _matrix),
    "bridges": lambda rounds: _of_parts(BRIDGED, rounds, _bridges),
}
"""Function that measures a work at three numbers of pairs, given the number of rounds."""


def main() -> None:
    """Print a table of all works, or of some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line(work, WORKS[work](options.rounds)) for work in options.only]
    print("\n".join([machine(), "", "| work | processor time, median | slope |", "|---|---|---|", *lines]))


if __name__ == "__main__":
    main()
