"""The tests that cost most, kept out of the ordinary run: which they are, what they cost, which room they belong to.

``tests/nightly.txt`` lists them, one node id a line below the folder ``tests``; a function without brackets means all
of its cases. The list is made from a record of the ordinary and the nightly tests together::

    pytest -n 2 -m 'not slow and not gpu' --processor-seconds record.csv
    python tests/nightly.py record.csv --budget 480

It keeps listed what is listed, and adds the costliest tests until the rest fits the budget. Of the cases of one
function, the first stays in the ordinary run unless it alone costs ``--largest`` seconds.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("nightly.txt")
REPOSITORY = LIST.parents[1]
OUTSIDE = {
    "networks": "plugins/networks",
    "regularizers": "plugins/regularizers",
    "plugins/metrics": "plugins/metrics",
    "experiments/studies": "studies",
}
"""Folders of tests by the folder of the sources that they test, where that is not the folder of this name in
``compatkit``.
"""


def listed() -> frozenset[str]:
    """Return the node ids of the list, without the folder ``tests/``."""
    return frozenset(line for line in LIST.read_text(encoding="utf-8").splitlines() if line)


def short(node_id: str) -> str:
    """Return a node id as the list writes it."""
    return node_id.removeprefix("tests/")


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the listed tests as ``nightly``."""
    nightly = listed()
    for item in items:
        node_id = short(item.nodeid)
        if node_id in nightly or node_id.partition("[")[0] in nightly:
            item.add_marker("nightly")


def processor_seconds() -> float:
    """Return the processor seconds of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write(path: Path, seconds: Mapping[str, float]) -> None:
    """Write a record: a line for each test with its processor seconds."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("test", "seconds"))
        writer.writerows((node_id, f"{cost:.3f}") for node_id, cost in sorted(seconds.items()))


def changed_rooms(reference: str) -> frozenset[str]:
    """Return the folders of sources with files that differ from a commit."""
    command = ["git", "-C", str(REPOSITORY), "diff", "--name-only", reference]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return frozenset("/".join(name.split("/")[:depth]) for name in names for depth in (1, 2))


def room(node_id: str) -> str:
    """Return the folder of the sources that a test belongs to."""
    folder = Path(short(node_id).partition("::")[0]).parent.as_posix()
    for tests, sources in OUTSIDE.items():
        if folder == tests or folder.startswith(f"{tests}/"):
            return sources
    return "compatkit" if folder == "." else f"compatkit/{folder.split('/')[0]}"


def chosen(seconds: dict[str, float], budget: float, largest: float) -> set[str]:
    """Return the node ids to list.

    Args:
        seconds: Processor seconds by node id.
        budget: Processor seconds that the ordinary tests may cost together.
        largest: Processor seconds above which the first case of a function is listed too.
    """
    first: dict[str, str] = {}
    for node_id in seconds:
        first.setdefault(node_id.partition("[")[0], node_id)
    left, nightly = sum(seconds.values()), set[str]()
    for node_id, cost in sorted(seconds.items(), key=lambda item: -item[1]):
        if left <= budget:
            break
        if cost >= largest or first[node_id.partition("[")[0]] != node_id:
            nightly.add(node_id)
            left -= cost
    return nightly


def shortened(nightly: set[str], known: Iterable[str]) -> list[str]:
    """Return the list with one line for each function whose cases are all listed."""
    cases: dict[str, set[str]] = defaultdict(set)
    for node_id in known:
        cases[node_id.partition("[")[0]].add(node_id)
    whole = {name for name, of in cases.items() if of <= nightly}
    return sorted(whole | {node_id for node_id in nightly if node_id.partition("[")[0] not in whole})


def main() -> None:
    """Write the list from a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="written by --processor-seconds")
    parser.add_argument(
        "--budget", type=float, default=480.0, help="of the ordinary tests, in processor seconds"
    )
    parser.add_argument("--largest", type=float, default=2.0, help="of a first case, in processor seconds")
    options = parser.parse_args()
    with options.record.open(newline="", encoding="utf-8") as file:
        seconds = {short(row["test"]): float(row["seconds"]) for row in csv.DictReader(file)}
    old = listed()
    kept = {name for name in seconds if name in old or name.partition("[")[0] in old}
    rest = {name: cost for name, cost in seconds.items() if name not in kept}
    nightly = kept | chosen(rest, options.budget, options.largest)
    LIST.write_text("".join(f"{line}\n" for line in shortened(nightly, seconds)), encoding="utf-8")
    left = sum(cost for name, cost in seconds.items() if name not in nightly)
    print(f"{len(nightly)} of {len(seconds)} tests are nightly; the others cost {left:.0f} processor seconds")


if __name__ == "__main__":
    main()
