"""Measure the cost of very many image files before the first step: listing, digest, memory of parent and workers.

Run ``python benchmarks/listing.py [--files N] [--classes N] [--folder DIR] [--workers N]``. It creates a tree of
``--files`` training images in ``--classes`` class folders below ``DIR`` and removes it at the end. Files are hard links
to one small JPEG for each class and split, so that bytes and inodes stay in memory and disk latency is not measured.
Each line is measured in a separate process, and repeated on a tree of three images a class.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

KB = 1024
MEASURES = ("list first", "list again", "digest first", "digest again", "unverified digest", "train")


def write_tree(folder: Path, files: int, classes: int) -> Path:
    """Write ``train`` and ``val`` with images of 32 x 32 pixels, ``val`` with two a class; return the folder."""
    from PIL import Image

    generator, originals = np.random.default_rng(0), folder.with_name(f"{folder.name}-originals")
    originals.mkdir(parents=True)
    source = os.open(originals, os.O_DIRECTORY)
    for part, count in (("train", files // classes), ("val", 2)):
        for label in range(classes):
            # one image for each class of a split, as a file may not be in two classes or splits
            original = f"{part}-{label}.jpg"
            clouds = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            clouds.resize((32, 32), 3).save(originals / original, quality=50)
            class_folder = folder / part / f"n{label:08}"
            class_folder.mkdir(parents=True)
            target = os.open(class_folder, os.O_DIRECTORY)
            for number in range(count):
                name = f"n{label:08}_{number}.JPEG"
                os.link(original, name, src_dir_fd=source, dst_dir_fd=target)
            os.close(target)
    os.close(source)
    return folder


def memory(process: str | int = "self") -> dict[str, float]:
    """Return proportional (shared pages divided among sharers) and private memory of a process in MiB."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    mebibytes = {line.split(":")[0]: int(line.split()[1]) / KB for line in lines}
    return {"pss": mebibytes["Pss"], "private": mebibytes["Private_Clean"] + mebibytes["Private_Dirty"]}


def children() -> list[int]:
    """Return the ids of the child processes."""
    return [int(number) for number in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KB


def measured(what: str, folder: Path, workers: int) -> dict[str, Any]:
    """Return the figures of one measure, taken in this process."""
    import compatkit as ck

    if what == "train":
        return trained(ck, folder, workers)
    ck.data.load  # noqa: B018 - imported before the clock runs
    from compatkit.data import folders  # noqa: F401

    before = peak()
    start, processor_start = time.perf_counter(), time.process_time()
    if what == "unverified digest":
        data = ck.data.load(folder, digest="unverified")
    else:
        data = ck.data.load(folder)
    if "digest" in what:
        start, processor_start = time.perf_counter(), time.process_time()
        assert data.train.digest and data.test.digest
    return {
        "wall": time.perf_counter() - start,
        "processor": time.process_time() - processor_start,
        "peak": peak(),
        "before": before,
    }


def trained(ck: Any, folder: Path, workers: int) -> dict[str, Any]:
    """Return the time from ``Trainer.fit`` to the first batch, and the memory of parent and workers at that moment."""
    from compatkit.training.batches.decoded import Decoded

    original_batch, figures = Decoded.batch, dict[str, Any]()

    def measured_batch(self: Decoded, step: int) -> Any:
        batch = original_batch(self, step)
        if not figures:
            worker_memory = [memory(process) for process in children()]
            figures.update(
                wall=time.perf_counter() - start,
                processor=time.process_time() - processor_start,
                parent=memory()["pss"],
                workers=sum(process["pss"] for process in worker_memory),
                most_private=max((process["private"] for process in worker_memory), default=0.0),
            )
        return batch

    Decoded.batch = measured_batch  # type: ignore[method-assign]
    data = ck.data.load(folder)
    task = ck.Task("photos", data, "resnet8_cifar", "layer2", size=32)
    trainer = ck.Trainer(steps=8, batch_size=64, device="cpu", workers=workers, progress=False)
    before, start, processor_start = peak(), time.perf_counter(), time.process_time()
    trainer.fit([task])
    return {**figures, "before": before, "peak": peak()}


def run_in_subprocess(measure: str, folder: Path, workers: int, cache: Path) -> dict[str, Any]:
    """Run a measure in a separate process; return its figures."""
    words = [sys.executable, __file__, "--measure", measure]
    words += ["--folder", str(folder), "--workers", str(workers)]
    environment = {**os.environ, "COMPATKIT_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Create the trees, measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_300_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.folder, options.workers)))
        return
    temporary = Path(tempfile.mkdtemp(dir=options.folder, prefix="listing-"))
    try:
        counts = {"few": 3 * options.classes, "many": options.files // options.classes * options.classes}
        trees = {name: write_tree(temporary / name, count, options.classes) for name, count in counts.items()}
        time.sleep(3)  # folders written just now are not cached
        rows = {
            (what, name): run_in_subprocess(what, tree, options.workers, temporary / f"cache-{name}")
            for name, tree in trees.items()
            for what in MEASURES
        }
        show(rows, counts, options.workers)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def show(rows: dict[tuple[str, str], dict[str, Any]], counts: dict[str, int], workers: int) -> None:
    """Print both tables."""
    print(f"{counts['many']:,} training images, and {counts['few']:,} beside; {workers} workers\n")
    print("| | seconds | of the processor | peak MiB | before, MiB | seconds, few | peak MiB, few |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for what in MEASURES:
        many, few = rows[what, "many"], rows[what, "few"]
        cells = (many["wall"], many["processor"], many["peak"], many["before"], few["wall"], few["peak"])
        print(
            f"| {what} | {cells[0]:.2f} | {cells[1]:.2f} | {' | '.join(f'{value:,.0f}' for value in cells[2:4])}",
            end="",
        )
        print(f" | {cells[4]:.2f} | {cells[5]:,.0f} |")
    print("\n| at the first batch, MiB | many | few |\n|---|---:|---:|")
    for key, words in (
        ("parent", "parent, shared pages divided"),
        ("workers", "all workers, shared pages divided"),
        ("most_private", "a worker, pages of its own alone"),
    ):
        print(f"| {words} | {rows['train', 'many'][key]:,.0f} | {rows['train', 'few'][key]:,.0f} |")


if __name__ == "__main__":
    main()
