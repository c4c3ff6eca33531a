"""Growth: processor time of work at three sizes, and the slope of the line through log time over log size.

    python benchmarks/growth.py [--rounds N] [--only WORK ...]

prints the times at each size, and the slopes. A slope of 1 is time proportional to the size. A fixed cost flattens the
line, so sizes are chosen at which it is small.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

import attrs
from contest import expect, machine, say
from registry_large import LONG, SETTLED, write_versions

from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.store import Store

VERSIONS = (2_000, 8_000, 32_000)
"""Versions of the registries; one name has a tenth."""
PUBLISHES = 5
"""Publishes that are timed in one turn."""
Work = Callable[[], object]
Times = dict[int, list[float]]
"""Seconds of the processor in each round, by size."""


def slope(seconds: Mapping[int, float]) -> float:
    """Return the slope of the least-squares line through log time over log size.

    Args:
        seconds: Seconds by size.
    """
    sizes, times = (list(map(math.log, values)) for values in (seconds, seconds.values()))
    return statistics.linear_regression(sizes, times).slope


def timed(works: Mapping[int, Work], rounds: int) -> Times:
    """Return the processor times of the work of each size; sizes take turns, after a round to warm up."""
    times: Times = {size: [] for size in works}
    for number in range(rounds + 1):
        for size, work in works.items():
            gc.collect()
            start = time.process_time()
            work()
            if number:
                times[size].append(time.process_time() - start)
    return times


def growth(rounds: int, work: str) -> list[float]:
    """Return the slope of each round, and print the times.

    Args:
        rounds: Number of rounds.
        work: One of ``WORKS``.
    """
    return slopes(work, WORKS[work](rounds))


def slopes(work: str, times: Times) -> list[float]:
    """Print the times of a work, and return the slope of each round."""
    say(line(work, times))
    return [slope(dict(zip(times, each, strict=True))) for each in zip(*times.values(), strict=True)]


def line(work: str, times: Times) -> str:
    """Return a line of the table: the medians of the times in ms, and their slope."""
    medians = {size: statistics.median(seconds) for size, seconds in times.items()}
    shown = ", ".join(f"{1e3 * seconds:,.4g} ms at {size:,}" for size, seconds in medians.items())
    return f"| {work} | {shown} | {slope(medians):.3f} |"


@contextmanager
def _registries() -> Iterator[dict[int, Store]]:
    """Write a registry of each size; its files are settled, and its index is filled."""
    from registry_floor import scratch

    with scratch() as folder:
        stores = {size: write_versions(folder / str(size), size) for size in VERSIONS}
        time.sleep(SETTLED)
        for size, store in stores.items():
            expect("versions", store.index.status().versions, size)
        yield stores


def _in_registries(work: Callable[[Store], object]) -> Callable[[int], Times]:
    def measure(rounds: int) -> Times:
        with _registries() as stores:
            return timed({size: (lambda store=store: work(store)) for size, store in stores.items()}, rounds)

    return measure


def _verify(store: Store) -> None:
    expect("sound", examine(store).sound, True)


def _publish(choose: Callable[[int], str]) -> Callable[[int], Times]:
    """Return the measurement of as many publishes as a registry has versions; the time of some is multiplied.

    Args:
        choose: Returns the name that gets the n-th version.
    """
    numbers = count()

    def publish(store: Store) -> None:
        for _ in range(PUBLISHES):
            number = next(numbers)
            name = choose(number)
            before = store.manifest(name)
            about = attrs.evolve(before.about, title=f"title {number}")
            store.publish(name, attrs.evolve(before, about=about))

    def measure(rounds: int) -> Times:
        times = _in_registries(publish)(rounds)
        return {size: [size / PUBLISHES * seconds for seconds in times[size]] for size in times}

    return measure


WORKS: dict[str, Callable[[int], Times]] = {
    "ls": _in_registries(lambda store: store.index.listing()),
    "search": _in_registries(lambda store: store.index.search(text="resnet20")),
    "index": _in_registries(lambda store: store.index.rebuild()),
    "gc": _in_registries(plan),
    "verify": _in_registries(_verify),
    "publish": _publish(lambda number: f"zone{number % 40}/net{number}.head"),
    "publish-long": _publish(lambda number: LONG),
}
"""Function that measures a work at three sizes, given the number of rounds."""


def main() -> None:
    """Print a table of all works, or of some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    options = parser.parse_args()
    lines = [line(work, WORKS[work](options.rounds)) for work in options.only]
    print("\n".join([machine(), "", "| work | processor time, median | slope |", "|---|---|---|", *lines]))


if __name__ == "__main__":
    main()
