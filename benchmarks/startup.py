"""Measure the startup time of quick commands, against Python itself and the imports they need.

Run ``python benchmarks/startup.py [--runs 20]``. Each measurement is a new process; the contestants take turns,
so that a busy machine slows all of them alike. The minimum is the least disturbed figure. The target is under 0.15 s on
an idle machine for ``import compatkit``, ``--help``, ``ls``, ``show``.
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
    """Return the timed programs by label; the first is the baseline."""
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
    """Create a registry with two components in another process, so that this one stays small."""
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
    """Return the wall seconds of one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(programs: dict[str, str], runs: int) -> dict[str, list[float]]:
    """Return the wall times of each program, after a first round that fills the disk cache."""
    times: dict[str, list[float]] = {label: [] for label in programs}
    for number in range(runs + 1):
        for label, program in programs.items():
            wall = seconds(program)
            if number:
                times[label].append(wall)
    return times


def report(times: dict[str, list[float]]) -> None:
    """Print minimum, median, and the ratios of the minimum to Python's and to the bare imports'."""
    bare, imports = (min(times[label]) for label in ("python -c pass", "import attrs, pluggy"))
    print(f"{'':<28} {'min s':>7} {'median s':>9} {'x python':>9} {'x bare imports':>15}")
    for label, walls in times.items():
        imports = min(times["import attrs, pluggy, click"]) if label.startswith("compatkit") else imports
        low, middle = min(walls), statistics.median(walls)
        promised = "compatkit" in label
        verdict = "" if not promised else "  ok" if low < PROMISE else f"  over {PROMISE} s"
        print(f"{label:<28} {low:7.3f} {middle:9.3f} {low / bare:9.1f} {low / imports:15.1f}{verdict}")


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
