"""The tests that cost most, kept out of the ordinary run: which they are, what they cost, which room they belong to.

``tests/nightly.txt`` lists them, one node id a line below the folder ``tests``; a function without brackets means all
of its cases, and with ``[1:]`` all but the first of the alphabet. The list is made from a record of the ordinary and
the nightly tests together::

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
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest

EVERY_CASE_BUT_THE_FIRST = "[1:]"
ORDINARY = ("test_readme.py", "test_imports.py", "golden/")
"""Beginnings of node ids that every run covers, whatever they cost."""
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
    items = list(items)
    node_ids = [short(item.nodeid) for item in items]
    nightly = expanded(listed(), node_ids)
    for item, node_id in zip(items, node_ids, strict=True):
        if node_id in nightly:
            item.add_marker("nightly")


def by_function(node_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the cases of each function in alphabetical order, whatever the order in which they ran."""
    cases: dict[str, list[str]] = defaultdict(list)
    for node_id in sorted(node_ids):
        cases[node_id.partition("[")[0]].append(node_id)
    return cases


def expanded(lines: Collection[str], node_ids: Iterable[str]) -> set[str]:
    """Return those of some node ids that the lines of a list mean."""
    nightly = set[str]()
    for function, cases in by_function(node_ids).items():
        if function in lines:
            nightly.update(cases)
        elif f"{function}{EVERY_CASE_BUT_THE_FIRST}" in lines:
            nightly.update(cases[1:])
        nightly.update(case for case in cases if case in lines)
    return nightly


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


def chosen(seconds: Mapping[str, float], budget: float, largest: float) -> set[str]:
    """Return the node ids to list.

    Args:
        seconds: Processor seconds by node id.
        budget: Processor seconds that the ordinary tests may cost together.
        largest: Processor seconds above which the first case of a function is listed too.
    """
    first = {cases[0] for cases in by_function(seconds).values()}
    left, nightly = sum(seconds.values()), set[str]()
    for node_id, cost in sorted(seconds.items(), key=lambda item: -item[1]):
        if left <= budget:
            break
        if not node_id.startswith(ORDINARY) and (cost >= largest or node_id not in first):
            nightly.add(node_id)
            left -= cost
    return nightly


def shortened(nightly: Collection[str], node_ids: Iterable[str]) -> list[str]:
    """Return the lines of the list, one for each function whose cases are listed all, or all but the first."""
    lines = []
    for function, cases in by_function(node_ids).items():
        listed_cases = [case for case in cases if case in nightly]
        if listed_cases == cases:
            lines.append(function)
        elif len(cases) > 2 and listed_cases == cases[1:]:
            lines.append(f"{function}{EVERY_CASE_BUT_THE_FIRST}")
        else:
            lines.extend(listed_cases)
    return sorted(lines)


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
    nightly = expanded(listed(), seconds)
    rest = {name: cost for name, cost in seconds.items() if name not in nightly}
    nightly |= chosen(rest, options.budget, options.largest)
    LIST.write_text("".join(f"{line}\n" for line in shortened(nightly, seconds)), encoding="utf-8")
    left = sum(cost for name, cost in seconds.items() if name not in nightly)
    print(f"{len(nightly)} of {len(seconds)} tests are nightly; the others cost {left:.0f} processor seconds")


if __name__ == "__main__":
    main()
