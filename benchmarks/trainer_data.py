"""Image throughput on one core: the resident pipeline against torchvision's transforms in a DataLoader.

Both randomly crop 32x32 color images with four pixels of padding, flip half of them, and normalize; batches of 128. The
DataLoader has no worker, or one persistent worker; the faster one counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median
from typing import Any

import numpy as np
from contest import Contestant, Times, compete, expect, ratios_to_fastest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.training.batches.sampler import Augmentation, Sampler
from compatkit.training.batches.stored import Prefetched, Resident
from compatkit.training.precision import Precision

IMAGES, SIDE, BATCH = 4096, 32, 128
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
GATE = 4.0


def pictures() -> Split:
    """Return a split of noise images."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    return Split(pixels, np.arange(IMAGES) % 10, tuple("0123456789"), "noise/train")


class Transformed(Dataset[Any]):
    """Pipeline of torchvision's data sets: an array to PIL, transforms, a tensor."""

    def __init__(self, images: Split) -> None:
        """Store the images; they are transformed on access."""
        from torchvision import transforms

        self.images = images
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(SIDE, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return one image and its label."""
        return self.transform(Image.fromarray(self.images.images[index])), int(self.images.labels[index])


def theirs(images: Split, workers: int) -> Callable[[], int]:
    """Return a function that makes a pass through a DataLoader and returns the number of images."""
    loader = DataLoader(
        Transformed(images),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
    return lambda: sum(len(labels) for _, labels in loader)


def ours(kind: type[Resident] | type[Prefetched], images: Split) -> Callable[[], int]:
    """Return a function that makes a pass through a source of compatkit and returns the number of images."""
    data = Data((SIDE, SIDE), "RGB", MEAN, STD, "bilinear", ())
    order = Sampler(IMAGES, BATCH, 0, "noise")
    source = kind(
        images, data, order, Augmentation(("crop", "flip"), 0, "noise"), Precision("cpu", "float32", True)
    )
    steps = count()
    return lambda: sum(len(source.batch(next(steps)).labels) for _ in range(order.batches_per_epoch))


def table(times: Times) -> list[str]:
    """Return a line for each contestant, and the verdict."""
    loaders = [name for name in times if "DataLoader" in name]
    best = min(loaders, key=lambda name: median(timing.wall for timing in times[name]))
    lines: list[str] = []
    for name, timings in times.items():
        ratio = median(
            baseline.wall / timing.wall for timing, baseline in zip(timings, times[best], strict=True)
        )
        walls = [timing.wall for timing in timings]
        lines.append(f"| {name} | {IMAGES / min(walls):,.0f} | {IMAGES / median(walls):,.0f} | {ratio:.2f} |")
    ratio = median(
        baseline.wall / timing.wall
        for timing, baseline in zip(times["ours, resident"], times[best], strict=True)
    )
    verdict = "pass" if ratio >= GATE else "FAIL"
    return [
        *lines,
        "",
        f"Gate: resident at least {GATE:g} x the better DataLoader: {ratio:.1f} x, {verdict}.",
    ]


def resident(rounds: int) -> list[float]:
    """Return our time of a pass on one core by that of the faster DataLoader, without a worker or with one."""
    images = pictures()
    with one_core():
        passes = {
            "ours": ours(Resident, images),
            **{str(workers): theirs(images, workers) for workers in (0, 1)},
        }
        contestants = {name: Contestant(work, check=_check_count) for name, work in passes.items()}
        times = compete(contestants, rounds, seed=0)
    return ratios_to_fastest(times, "ours")


def tables(rounds: int, seed: int) -> list[str]:
    """Return the lines of the page."""
    images = pictures()
    with one_core():
        passes = {
            "DataLoader, no worker": theirs(images, 0),
            "DataLoader, no worker, again": theirs(images, 0),
            "DataLoader, one worker": theirs(images, 1),
            "ours, resident": ours(Resident, images),
            "ours, prefetched": ours(Prefetched, images),
        }
        contestants = {name: Contestant(work, check=_check_count) for name, work in passes.items()}
        times = compete(contestants, rounds, seed)
    return [
        "## How fast training images come",
        "",
        f"Images a second on one core, most and median; crop and flip of 32 x 32 color images, batches of {BATCH}.",
        "",
        "| | most | median | of the better DataLoader |",
        "|---|---:|---:|---:|",
        *table(times),
    ]


def _check_count(count: object) -> None:
    expect("images of a pass", count, IMAGES)


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process and its workers to one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
