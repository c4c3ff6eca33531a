"""How long does a quick command take to answer, next to Python itself and to the bare imports it cannot do without?

Run ``python benchmarks/startup.py [--runs 20]``. Each measurement is a process of its own; the contestants take
turns, so that a busy moment of the machine hits all of them alike. Read the minimum: it is what the work takes when
nobody disturbs. The promise is under 0.15 s on an idle machine for ``import compatkit``, ``--help``, ``ls``, ``show``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = "from compatkit.cli import main; main({words!r})"
PROMISE = 0.15


def contestants(root: Path) -> dict[str, str]:
    """Return label and program of everything that is timed; the first is the yardstick."""
    registry = ["--registry", str(root)]
    return {
        "python -c pass": "pass",
        "import attrs, pluggy": "import attrs, pluggy",
        "import compatkit": "import compatkit",
        "import attrs, pluggy, click": "import attrs, pluggy, click",
        "compatkit --help": COMMAND.format(words=["--help"]),
        "compatkit ls": COMMAND.format(words=[*registry, "ls"]),
        "compatkit show": COMMAND.format(words=[*registry, "show", "zoo/small.head"]),
        "compatkit check": COMMAND.format(
            words=[*registry, "check", "zoo/small.extractor", "zoo/small.head"]
        ),
        "import torch": "import torch",
    }


def fill(root: Path) -> None:
    """Make a registry with two components, in a process of its own, so that this one stays small."""
    words = [
        "--registry",
        str(root),
        "split",
        "simple_cnn",
        "--cut",
        "forward_features",
        "--publish",
        "zoo/small",
    ]
    subprocess.run([sys.executable, "-c", COMMAND.format(words=words)], check=True, capture_output=True)


def seconds(program: str) -> float:
    """Return the wall time of one process."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def measure(programs: dict[str, str], runs: int) -> dict[str, list[float]]:
    """Return the wall times of each program; a first round, which fills the disk's cache, is not counted."""
    times: dict[str, list[float]] = {label: [] for label in programs}
    for number in range(runs + 1):
        for label, program in programs.items():
            taken = seconds(program)
            if number:
                times[label].append(taken)
    return times


def report(times: dict[str, list[float]]) -> None:
    """Print minimum, median, and the minimum over Python's own and over the bare imports'."""
    python, least = (min(times[label]) for label in ("python -c pass", "import attrs, pluggy"))
    print(f"{'':<28} {'min s':>7} {'median s':>9} {'x python':>9} {'x bare imports':>15}")
    for label, taken in times.items():
        least = min(times["import attrs, pluggy, click"]) if label.startswith("compatkit") else least
        low, middle = min(taken), statistics.median(taken)
        promised = "compatkit" in label
        verdict = "" if not promised else "  ok" if low < PROMISE else f"  over {PROMISE} s"
        print(f"{label:<28} {low:7.3f} {middle:9.3f} {low / python:9.1f} {low / least:15.1f}{verdict}")


def main() -> None:
    """Time everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        fill(root)
        times = measure(contestants(root), runs)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores{load}, {runs} interleaved runs each\n")
    report(times)


if __name__ == "__main__":
    main()
