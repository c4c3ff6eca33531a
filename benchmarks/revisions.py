"""Compare the speed of two revisions: run one benchmark in both checkouts by turns and compare every row.

Run ``python benchmarks/revisions.py BEFORE AFTER [--turns 3] [--out FILE] -- registry.py --only small --rounds 5``.
BEFORE and AFTER are checkouts, each with its own environment in ``.venv`` or ``.venv-dev``; the benchmark is the file
of that name in each checkout. Figures are the minimum over the turns (the maximum for rates), since other programs only
add time. The last column is after divided by before. Rows that only one checkout has are listed below the table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COLUMNS = {"ours ms": min, "of the processor": min, "least": min, "ms": min, "seconds": min, "most": max}
"""Columns with a figure, in order of preference, with the reduction over turns."""
NUMBER = re.compile(r"\d[\d,]*\.?\d*")
BRACKETS = re.compile(r"\(([\d,.]+)")


def rows(printed: str) -> Iterator[tuple[str, str, float]]:
    """Yield the name, column and figure of every row of the Markdown tables in a benchmark's output."""
    header: list[str] = []
    for line in printed.splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
            continue
        column = next((cell for cell in COLUMNS if cell in header), None)
        if column is None or set(line) <= set("|:- "):
            continue
        index = header.index(column)
        # Tables with both give the minimum in brackets behind the median.
        figure = BRACKETS.search(cells[index]) if column == "ours ms" else NUMBER.search(cells[index])
        if figure is not None:
            name = " / ".join(cells[: max(1, min(index, 2))])
            yield name, column, float(figure[figure.lastindex or 0].replace(",", ""))


def run_benchmark(checkout: Path, command: list[str]) -> dict[str, tuple[str, float]]:
    """Run the benchmark of a checkout in its own environment; return its figures by row."""
    python = next(
        path for folder in (".venv", ".venv-dev") if (path := checkout / folder / "bin" / "python").exists()
    )
    # No paths of the other checkout; one thread, as in the benchmarks themselves.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, checkout / "benchmarks" / command[0], *command[1:]],
        cwd=checkout,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed in {checkout} with exit code {done.returncode}.")
    return {name: (column, figure) for name, column, figure in rows(done.stdout)}


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("command", nargs="+", help="file in benchmarks/ and its arguments, behind --")
    options = parser.parse_args()
    checkouts = (options.before.absolute(), options.after.absolute())
    best: tuple[dict[str, tuple[str, float]], dict[str, tuple[str, float]]] = ({}, {})
    for turn in range(options.turns):
        # Each checkout goes first in half of the turns, so that a warming machine favors neither.
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            for name, (column, figure) in run_benchmark(checkouts[side], options.command).items():
                best_figure = best[side].get(name, (column, figure))[1]
                best[side][name] = (column, COLUMNS[column](best_figure, figure))
    lines = [
        f"| {' '.join(options.command)} | before | after | after / before |",
        "| :--- | ---: | ---: | ---: |",
    ]
    for name, (column, before) in best[0].items():
        if name in best[1]:
            after = best[1][name][1]
            quotient = before / after if COLUMNS[column] is max else after / before
            lines.append(f"| {name} | {before:,.4g} | {after:,.4g} | **{quotient:.2f}** |")
    unmatched = sorted(best[0].keys() ^ best[1].keys())
    lines += ["", *(f"Only in one of them: {name}." for name in unmatched)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
