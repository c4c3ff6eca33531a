"""Measure the cost of the trainer, against hand-written loops and against others, in one run.

Run ``python benchmarks/trainer.py [--rounds 9] [--only overhead steps ...] [--out docs/results/trainer.md]``. One
thread; whatever is compared takes turns in random order, and equal programs run twice, so that the tables show how far
two of them are apart here. The parts are ``trainer_<part>.py`` beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import trainer_data
import trainer_overhead
import trainer_steps
import trainer_views
from registry_measuring import machine, say

PARTS: dict[str, Callable[[int, int], list[str]]] = {
    "overhead": trainer_overhead.tables,
    "steps": trainer_steps.tables,
    "data": trainer_data.tables,
    "views": trainer_views.tables,
}


def main() -> None:
    """Measure and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        "# What the trainer costs",
        "",
        f"    python benchmarks/trainer.py --rounds {given.rounds} --only {' '.join(given.only)}",
        "",
        machine(),
    ]
    for part in given.only:
        say(part)
        found += ["", *PARTS[part](given.rounds, given.seed)]
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
