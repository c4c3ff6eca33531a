"""Measure the cost of very many image files before the first step: listing, digest, memory of parent and workers.

Run ``python benchmarks/listing.py [--files N] [--classes N] [--folder DIR] [--workers N]``. It makes a tree of
``--files`` training images in ``--classes`` class folders below ``DIR``, and removes it. Names are those of files of
their own; their contents are hard links to 500 small JPEGs, so that bytes and inodes are in memory: what a disk adds is
not measured. Each line is a process of its own, and the same is measured of a tree of three images a class beside it.
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

ORIGINALS = 500
"""Different images; a file system allows some ten thousands of links to each."""
KB = 1024
MEASURES = ("list first", "list again", "digest first", "digest again", "unverified digest", "train")


def write_tree(folder: Path, files: int, classes: int) -> Path:
    """Write ``train`` and ``val`` with images of 32 x 32 pixels, ``val`` with two a class; return the folder."""
    from PIL import Image

    draw, originals = np.random.default_rng(0), folder.with_name(f"{folder.name}-originals")
    originals.mkdir(parents=True)
    for number in range(ORIGINALS):
        clouds = Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((32, 32), 3)
        clouds.save(originals / f"{number}.jpg", quality=50)
    source = os.open(originals, os.O_DIRECTORY)
    for part, count in (("train", files // classes), ("val", 2)):
        for label in range(classes):
            place = folder / part / f"n{label:08}"
            place.mkdir(parents=True)
            target = os.open(place, os.O_DIRECTORY)
            for number in range(count):
                name, of = f"n{label:08}_{number}.JPEG", f"{(7 * label + number) % ORIGINALS}.jpg"
                os.link(of, name, src_dir_fd=source, dst_dir_fd=target)
            os.close(target)
    os.close(source)
    return folder


def memory(process: str | int = "self") -> dict[str, float]:
    """Return memory of a process in MiB: proportional, where sharers divide a page among them, and private."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    held = {one.split(":")[0]: int(one.split()[1]) / KB for one in lines}
    return {"pss": held["Pss"], "private": held["Private_Clean"] + held["Private_Dirty"]}


def children() -> list[int]:
    """Return the processes that this one has begun."""
    return [int(one) for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def peak() -> float:
    """Return the most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KB


def measured(what: str, folder: Path, workers: int) -> dict[str, Any]:
    """Return what one measure gives in this process."""
    import compatkit as ck

    if what == "train":
        return trained(ck, folder, workers)
    ck.data.load  # noqa: B018 - imported before the clock runs
    from compatkit.data import folders  # noqa: F401

    before = peak()
    began, used = time.perf_counter(), time.process_time()
    if what == "unverified digest":
        data = ck.data.load(folder, digest="unverified")
    else:
        data = ck.data.load(folder)
    if "digest" in what:
        began, used = time.perf_counter(), time.process_time()
        assert data.train.digest and data.test.digest
    return {
        "wall": time.perf_counter() - began,
        "processor": time.process_time() - used,
        "peak": peak(),
        "before": before,
    }


def trained(ck: Any, folder: Path, workers: int) -> dict[str, Any]:
    """Return the time from ``Trainer.fit`` to the first batch, and the memory of parent and workers then."""
    from compatkit.training.batches.decoded import Decoded

    plain, found = Decoded.batch, dict[str, Any]()

    def watched(self: Decoded, step: int) -> Any:
        batch = plain(self, step)
        if not found:
            of_workers = [memory(one) for one in children()]
            found.update(
                wall=time.perf_counter() - began,
                processor=time.process_time() - used,
                parent=memory()["pss"],
                workers=sum(one["pss"] for one in of_workers),
                most_private=max((one["private"] for one in of_workers), default=0.0),
            )
        return batch

    Decoded.batch = watched  # type: ignore[method-assign]
    data = ck.data.load(folder)
    task = ck.Task("photos", data, "resnet8_cifar", "layer2", size=32)
    trainer = ck.Trainer(steps=8, batch_size=64, device="cpu", workers=workers, progress=False)
    before, began, used = peak(), time.perf_counter(), time.process_time()
    trainer.fit([task])
    return {**found, "before": before, "peak": peak()}


def asked(what: str, folder: Path, workers: int, cache: Path) -> dict[str, Any]:
    """Return what a process of its own measures."""
    words = [sys.executable, __file__, "--measure", what, "--folder", str(folder), "--workers", str(workers)]
    environment = {**os.environ, "COMPATKIT_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Make the trees, measure, and print the tables."""
    reads = argparse.ArgumentParser(description=__doc__)
    reads.add_argument("--files", type=int, default=1_300_000)
    reads.add_argument("--classes", type=int, default=1000)
    reads.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    reads.add_argument("--workers", type=int, default=2)
    reads.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    given = reads.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure, given.folder, given.workers)))
        return
    place = Path(tempfile.mkdtemp(dir=given.folder, prefix="listing-"))
    try:
        counts = {"few": 3 * given.classes, "many": given.files // given.classes * given.classes}
        trees = {name: write_tree(place / name, count, given.classes) for name, count in counts.items()}
        time.sleep(3)  # folders that were written just now are not remembered
        rows = {
            (what, name): asked(what, tree, given.workers, place / f"cache-{name}")
            for name, tree in trees.items()
            for what in MEASURES
        }
        show(rows, counts, given.workers)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def show(rows: dict[tuple[str, str], dict[str, Any]], counts: dict[str, int], workers: int) -> None:
    """Print both tables."""
    print(f"{counts['many']:,} training images, and {counts['few']:,} beside; {workers} workers\n")
    print("| | seconds | of the processor | peak MiB | before, MiB | seconds, few | peak MiB, few |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for what in MEASURES:
        many, few = rows[what, "many"], rows[what, "few"]
        cells = (many["wall"], many["processor"], many["peak"], many["before"], few["wall"], few["peak"])
        print(
            f"| {what} | {cells[0]:.2f} | {cells[1]:.2f} | {' | '.join(f'{one:,.0f}' for one in cells[2:4])}",
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
