"""Measure the cost of the trainer, against hand-written loops and other trainers, in one run.

Run ``python benchmarks/trainer.py [--rounds 9] [--only overhead steps ...] [--out docs/results/trainer.md]``. One
thread; contestants take turns in random order, and equal programs run twice, so that the tables show the noise. The
parts are in ``trainer_<part>.py``.
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
from contest import machine, say

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
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# What the trainer costs",
        "",
        f"    python benchmarks/trainer.py --rounds {options.rounds} --only {' '.join(options.only)}",
        "",
        machine(),
    ]
    for part in options.only:
        say(part)
        lines += ["", *PARTS[part](options.rounds, options.seed)]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
