"""Measure all rows of the floor and print them beside the kept figures: goal, measured, met.

    python -m benchmarks [--only KEY ...] [--rounds N] [--keep] [--json]

Each row runs in a process of its own, with one thread unless its script says otherwise. Rows that need a GPU are left
out where there is none; ``--needs cuda`` measures these alone. ``--keep`` writes the figures
to ``docs/results/floor.json`` and the table to ``docs/results/floor.md``, rows that were not measured as they were.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import attrs

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # scripts import each other by their plain names

from floor import ROWS, Figure, Row  # noqa: E402


def main() -> int:
    """Measure, print and keep; return 1 if a measurement failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=[row.key for row in ROWS])
    parser.add_argument("--needs", choices=["cuda"], help="rows of this device alone")
    parser.add_argument("--rounds", type=int, help="rounds of every row; default: the row's own")
    parser.add_argument("--keep", action="store_true", help="write figures and page")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:  # the process of one row
        (row,) = (row for row in ROWS if row.key == options.only[0])
        sys.stdout, printed = sys.stderr, sys.stdout
        values = row.measure(options.rounds or row.rounds)
        print(json.dumps(values), file=printed)
        return 0
    from floor_page import keep, kept, table  # the process of a row needs none of it

    before = kept()
    measured: dict[str, Figure] = {}
    failed, absent = list[str](), list[Row]()
    for row in ROWS:
        if (options.only and row.key not in options.only) or (options.needs and row.needs != options.needs):
            continue
        if not row.possible:
            absent.append(row)
            continue
        print(f"{row.key}: {row.work}", file=sys.stderr, flush=True)
        figure = _measured(row, options.rounds)
        if figure is None:
            failed.append(row.key)
        else:
            measured[row.key] = figure
            if options.keep:
                keep({row.key: figure})  # a run that is interrupted keeps what it has measured
    shown = [row for row in ROWS if row.key in measured]
    if options.json:
        print(json.dumps([attrs.asdict(figure) for figure in measured.values()], indent=1))
    else:
        print("\n".join(table(shown, measured, before)))
    if absent:
        rows = ", ".join(row.key for row in absent)
        print(f"left out, as this machine has no {absent[0].needs} device: {rows}", file=sys.stderr)
    if failed:
        print(f"not measured: {', '.join(failed)}; the traceback is above", file=sys.stderr)
    return int(bool(failed))


def _measured(row: Row, rounds: int | None) -> Figure | None:
    command = [sys.executable, str(HERE / "__main__.py"), "--here", "--only", row.key]
    command += ["--rounds", str(rounds)] if rounds else []
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **threads}, text=True)
    if process.returncode:
        return None
    values: list[float] = json.loads(process.stdout.splitlines()[-1])
    return Figure.of(row.key, values, round(os.getloadavg()[0], 1), datetime.date.today().isoformat())


if __name__ == "__main__":
    raise SystemExit(main())
