"""Measure all rows of the floor and print them beside the kept figures: goal, measured, met.

    python -m benchmarks [--only KEY ...] [--rounds N] [--keep] [--json]

Each row runs in a process of its own, with one thread unless its script says otherwise. ``--keep`` writes the figures
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

KEPT = HERE.parent / "docs" / "results" / "floor.json"
HEADER = ("row", "work", "rival", "goal", "measured", "met", "kept")


def main() -> int:
    """Measure, print and keep; return 1 if a measurement failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=[row.key for row in ROWS])
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
    kept = {figure.key: figure for figure in _kept()}
    measured: dict[str, Figure] = {}
    failed: list[str] = []
    for row in ROWS:
        if options.only and row.key not in options.only:
            continue
        print(f"{row.key}: {row.work}", file=sys.stderr, flush=True)
        figure = _measured(row, options.rounds)
        if figure is None:
            failed.append(row.key)
        else:
            measured[row.key] = figure
    shown = [row for row in ROWS if row.key in measured]
    if options.json:
        print(json.dumps([attrs.asdict(figure) for figure in measured.values()], indent=1))
    else:
        print("\n".join(table(shown, measured, kept)))
    if options.keep:
        _keep({**kept, **measured})
    if failed:
        print(f"not measured: {', '.join(failed)}; the traceback is above", file=sys.stderr)
    return int(bool(failed))


def table(rows: list[Row], measured: dict[str, Figure], kept: dict[str, Figure]) -> list[str]:
    """Return the lines of the table of rows that were measured."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    for row in rows:
        figure = measured[row.key]
        met = "yes" if figure.median <= row.goal else "**no**"
        before = _text(row, kept[row.key]) if row.key in kept else ""
        cells = (row.key, row.work, row.rival, _amount(row, row.goal), _text(row, figure), met, before)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(row: Row, figure: Figure) -> str:
    return f"{_amount(row, figure.median)} [{figure.low:.3g}, {figure.high:.3g}]"


def _amount(row: Row, value: float) -> str:
    return f"{value:+.3g} {row.unit}" if row.unit in ("us", "ms") else f"{value:.3g}"


def _measured(row: Row, rounds: int | None) -> Figure | None:
    command = [sys.executable, str(HERE / "__main__.py"), "--here", "--only", row.key]
    command += ["--rounds", str(rounds)] if rounds else []
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **threads}, text=True)
    if process.returncode:
        return None
    values: list[float] = json.loads(process.stdout.splitlines()[-1])
    return Figure.of(row.key, values, round(os.getloadavg()[0], 1), datetime.date.today().isoformat())


def _kept() -> list[Figure]:
    return [Figure(**figure) for figure in json.loads(KEPT.read_text())] if KEPT.exists() else []


def _keep(figures: dict[str, Figure]) -> None:
    from contest import machine

    rows = [row for row in ROWS if row.key in figures]
    KEPT.write_text(json.dumps([attrs.asdict(figures[row.key]) for row in rows], indent=1) + "\n")
    lines = ["# Speed against the floor", "", "    python -m benchmarks --keep", "", machine(), ""]
    lines += [line.rsplit(" | ", 1)[0] + " |" for line in table(rows, figures, {})]
    days = {(figures[row.key].date, figures[row.key].load) for row in rows}
    loads = ", ".join(f"{load:g}" for _, load in sorted(days))
    lines += ["", f"Medians and quartiles of the rounds; load of the machine: {loads}.", ""]
    lines += [f"- **{row.key}**: {row.why}" for row in rows if row.why]
    KEPT.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
