"""Measure every figure that needs a GPU, in one run.

Run ``python benchmarks/gpu.py --keep`` on a machine with a CUDA device, from a source tree: it writes the rows of the
floor that need one (``floor/gpu.py``) to ``docs/results/floor.md`` and ``.json``, and all of the page to
``docs/results/gpu.md``, again after each section. ``--small --device cpu`` tries the scripts and says nothing about
speed. Sections are independent: a failure is reported and the others continue. Contestants take turns in random order,
and must compute the same.
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import gpu_steps
import torch
from contest import machine, say
from floor import ROWS, Figure, Row
from floor_page import keep, kept, table
from gpu_size import Size

PAGE = Path(__file__).parents[1] / "docs" / "results" / "gpu.md"
GROUPS = {
    "step": "Steps beside hand-written loops",
    "joint": "Two tasks beside two loops",
    "rotation": "Rotation prediction beside a hand-written loop",
    "one-pass": "One extractor pass for four views",
    "cka": "CKA of all pairs of layers",
    "hessian": "The Hessian",
    "matrix": "The matrix beside the ideal",
    "load": "Loading",
}
"""Titles of sections by what follows ``gpu-`` in the names of their rows."""
CHECKS: dict[str, tuple[str, Callable[[Size], list[str]]]] = {
    "waiting": ("Waiting for the device", gpu_steps.waiting),
    "shares": ("Where the time of a step goes", gpu_steps.shares),
}


def rows_of(group: str) -> list[Row]:
    """Return the rows of a section."""
    return [row for row in ROWS if row.needs == "cuda" and row.key.startswith(f"gpu-{group}")]


def measured(group: str, size: Size, rounds: int | None, figures: dict[str, Figure]) -> list[str]:
    """Measure the rows of a section, add their figures, and return the lines of their table."""
    rows, failures = rows_of(group), list[str]()
    for row in rows:
        say(row.key)
        try:
            values = row.measure(rounds or row.rounds, size=size)
        except Exception:
            failures += ["", f"FAILED: {row.key}", "", "```", traceback.format_exc().strip(), "```"]
            continue
        day = datetime.date.today().isoformat()
        figures[row.key] = Figure.of(row.key, values, round(os.getloadavg()[0], 1), day)
    done = [row for row in rows if row.key in figures]
    return [*(table(done, figures, kept()) if done else []), *failures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the page; return 1 if a section failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="try the scripts; the figures mean nothing")
    parser.add_argument("--rounds", type=int, help="rounds of every row; default: the row's own")
    sections = [*GROUPS, *CHECKS]
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--keep", action="store_true", help="write the figures and pages of docs/results")
    options = parser.parse_args(arguments)
    size = Size(options.device, options.small)
    if options.keep and (size.small or not size.on_gpu):
        parser.error("--keep is for figures of a GPU: leave --small and --device cpu out")
    figures = dict[str, Figure]()
    lines = [
        "# What needs a GPU",
        "",
        f"    python benchmarks/gpu.py {'--keep' if options.keep else ''}".rstrip(),
        "",
        f"{torch.cuda.get_device_name(size.device) if size.on_gpu else 'no GPU'}; {machine()}",
        "",
        f"Batches of {size.batch}, {size.steps} steps a turn, bf16. `measured`: median of the rounds' ratios, ours by",
        "the rival's, with the quartiles.",
    ]
    for name in options.only:
        title, check = CHECKS.get(name, (GROUPS.get(name, ""), None))
        say(title)
        began = time.perf_counter()
        if check is None:
            section = measured(name, size, options.rounds, figures)
        else:
            try:
                section = check(size)
            except Exception:
                section = ["FAILED:", "", "```", traceback.format_exc().strip(), "```"]
        lines += ["", f"## {title}", "", *section, "", f"({time.perf_counter() - began:.0f} s)"]
        if options.keep:
            keep(figures)
            PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(any(line.startswith("FAILED") for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
