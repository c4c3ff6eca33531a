"""Measure the cost of reading a matrix of measured pairs from the registry.

Run ``python benchmarks/evidence.py [--side 60] [--rounds 5] [--seed 0] [--folder DIR] [--out FILE]``. Nothing is
trained: SIDE extractors, SIDE heads and a result for every pair are synthetic; results are written file by file in the
layout of the store. Contestants take turns in one run, in a new random order each round, and their outputs are
compared. The floors are minimal implementations:

- **bare SQL**: one SELECT of the cached documents, all rows fetched, without comparing them with files;
- **bare JSON**: open, read and ``json.loads`` of every result file, without verification.

compatkit resolves the patterns, reads the manifests, finds the head of each upper bound, checks keys and figures, and
builds a ``Matrix``. ``process`` runs ``fill="none"`` in a separate process and checks that it loads neither torch nor
numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import attrs
import check as contracts
from contest import Contestant, Gate, Row, compete, expect, head, lines, machine, say

from compatkit.components.registry import Registry
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import Manifest, Parent, function_digest
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.records import record
from compatkit.registry.evidence import key_of, to_bytes
from compatkit.registry.local_cache import FILE
from compatkit.registry.store import Store

IMAGES = 10_000
DATA = "data:" + contracts.digest("images")
SCRIPT = (
    "import sys; from compatkit.components.registry import Registry;"
    "matrix = Registry.open({root!r}).matrix('bench/e*', 'bench/h*', fill='none');"
    "print(matrix.settings['cells']['taken'], [name for name in ('torch', 'numpy') if name in sys.modules])"
)


def fill(root: Path, side: int) -> list[str]:
    """Create a registry with a result for every pair; return the function digests of the extractors."""
    import torch

    os.fsync = lambda descriptor: None
    store = Store.init(root)
    payload = store.put_state({"weight": torch.zeros(1)}, parameters=1)
    functions: dict[str, list[str]] = {"extractor": [], "head": []}
    published: list[str] = []
    for kind in ("extractor", "head"):
        for number, (name, template) in enumerate(contracts.side(kind, side, side).items()):  # pyright: ignore[reportArgumentType]
            manifest: Manifest = attrs.evolve(template, payload=payload)
            if kind == "head":
                manifest = attrs.evolve(manifest, parents=(Parent("trained_with", published[number]),))
            version = store.publish(name.split("@")[0], manifest)
            functions[kind].append(function_digest(store.manifest(version)))
            published.append(str(version.digest))
    for number, extractor in enumerate(functions["extractor"]):
        say(f"\r  results of extractor {number + 1} of {side}")
        for column, function in enumerate(functions["head"]):
            cell = measured(number, column, functions["head"][number])
            put(root, extractor, function, cell)
    return functions["extractor"]


def put(root: Path, extractor: str, head: str, cell: Cell) -> None:
    """Write a result in the layout of the store without fsync: 90,000 durable results would take an hour."""
    entry = record(cell)
    data = to_bytes(extractor, head, **entry)
    name, key = contracts.hashlib.sha256(data).hexdigest(), key_of(entry["conditions"])
    folder = root / "evidence" / extractor[13:] / head[13:] / key
    folder.mkdir(parents=True)
    (folder / name).write_bytes(f"sha256:{name}\n".encode())
    blob = root / "blobs" / "sha256" / name[:2] / name
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(data)


def measured(row: int, column: int, bound: str) -> Cell:
    """Return a cell; its figures depend on row and column."""
    right = 1000 + (row * 977 + column * 31) % 8800
    figure = Figure(right / IMAGES, right, IMAGES, right / IMAGES - 0.01, right / IMAGES + 0.01)
    best = Figure(0.97, 9700, IMAGES, 0.96, 0.98)
    images = ImageFacts("bench/test", DATA, IMAGES)
    settings = Conditions().settings(images, batch_norm=True, bound=bound)
    cell = Cell(
        "e", "h", "direct", "none", "compatible", figure, figure, 0.1, best, 0.5, (-0.5, -0.4), ("0", "1")
    )
    return attrs.evolve(cell, settings={**settings, "device": "cpu", "torch": "2.15.0", "own": row == column})


def bare_sql(path: Path) -> int:
    """Fetch every row without verification; return the number of rows."""
    with sqlite3.connect(path) as connection:
        return len(connection.execute("SELECT place, document FROM results").fetchall())


def bare_json(root: Path) -> int:
    """Read every result file without verification; return the number of results."""
    count = 0
    for _, _, names in os.walk(root / "evidence"):
        for name in names:
            with open(root / "blobs" / "sha256" / name[:2] / name, "rb") as file:
                count += json.loads(file.read())["figures"]["restricted"][1] > 0
    return count


def measure(folder: Path, side: int, rounds: int, seed: int) -> list[str]:
    """Time all contestants by turns; return the lines of the table."""
    root = folder / "parts"
    say("making components and results")
    fill(root, side)
    say("reading them for the first time")
    first = Registry.open(root).matrix("bench/e*", "bench/h*", fill="none")
    expect("cells", first.settings["cells"]["taken"], side**2)
    path = next((folder / "cache").glob(f"*/{FILE}"))

    def ours() -> int:
        return Registry.open(root).matrix("bench/e*", "bench/h*", fill="none").settings["cells"]["taken"]

    def again(registry: Registry = Registry.open(root)) -> int:  # noqa: B008 - one registry for all turns
        return registry.matrix("bench/e*", "bench/h*", fill="none").settings["cells"]["taken"]

    def results(registry: Registry = Registry.open(root)) -> int:  # noqa: B008 - the same
        store = registry.store
        names = [
            [function_digest(store.manifest(component)) for component in store.select(f"bench/{k}*")]
            for k in "eh"
        ]
        return len(store.evidence.results(*names))

    def process() -> int:
        script = SCRIPT.format(root=str(root))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        taken, loaded = done.stdout.split(" ", 1)
        expect("loaded", loaded.strip(), "[]")
        return int(taken)

    def same(count: int) -> None:
        expect("pairs", count, side**2)

    work = {
        "bare SQL": lambda: bare_sql(path),
        "bare JSON": lambda: bare_json(root),
        "rows": results,
        "matrix": ours,
        "matrix again": again,
        "process": process,
    }
    times = compete({name: Contestant(call, check=same) for name, call in work.items()}, rounds, seed)
    what = f"{side} x {side} measured pairs"
    rows = [
        Row(f"{what}: a Matrix, a new Registry each time", "bare JSON", "matrix", Gate(1)),
        Row(f"{what}: a Matrix, the same Registry", "bare JSON", "matrix again", Gate(1)),
        Row(f"{what}: a Matrix", "bare SQL", "matrix"),
        Row(f"{what}: the rows, with manifests", "bare SQL", "rows"),
        Row(f"{what}: a process of its own", "bare JSON", "process"),
    ]
    return lines(rows, times)


def main() -> None:
    """Measure, print the table, and write it where ``--out`` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--side", type=int, default=60, help="number of extractors and of heads; 300 takes half an hour"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="evidence-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        table = measure(Path(folder), options.side, options.rounds, options.seed)
        text = "\n".join([machine(), f"{options.rounds} rounds, seed {options.seed}.", "", head(), *table])
        print(text, flush=True)  # removing the folder takes long
        if options.out is not None:
            command = " ".join(["python", "benchmarks/evidence.py", *sys.argv[1:]])
            options.out.write_text(f"# What a matrix of measured pairs costs\n\n    {command}\n\n{text}\n")


if __name__ == "__main__":
    main()
