"""Measure image loading: from a folder and from the cache, against timm's loader; small images against torchvision's.

Run ``python benchmarks/images.py [--images N] [--rounds N] [--workers N] [--device cpu]``. It writes a tree of JPEGs of
about 500 x 375 pixels into a temporary folder. Contestants take turns; a turn is a pass over all images, with new
worker processes. Ratios are medians over the rounds. On a GPU timm's prefetcher normalizes on the device.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from contest import Contestant, Times, compete, expect, ratios_to_fastest, say
from PIL import Image
from timm.data import ImageDataset, create_loader
from trainer_data import IMAGES as SMALL
from trainer_data import one_core, ours, pictures, theirs

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.training.batches import decoded
from compatkit.training.batches.decoded import Cache, Decoded
from compatkit.training.batches.sampler import Sampler
from compatkit.training.batches.sources import image_augmentation
from compatkit.training.batches.stored import Resident
from compatkit.training.precision import Precision

SIDE, BATCH, SHARE = 224, 32, 0.875
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DATA = Data((SIDE, SIDE), "RGB", MEAN, STD, "bicubic", crop_pct=SHARE, crop_mode="center")
PHOTOS = 1024
"""Photos of a row of the floor."""
AHEAD = 2
"""Batches that a worker prepares ahead: torch's default, which timm's loader keeps."""


def write_photos(folder: Path, images: int) -> Path:
    """Write noisy photos of clouds in two classes, with the compressibility of camera JPEGs; return the folder."""
    generator = np.random.default_rng(0)
    for number in range(images + 2):
        height, width = 375 + int(generator.integers(-40, 41)), 500 + int(generator.integers(-40, 41))
        clouds = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            (width, height), 3
        )
        pixels = np.asarray(clouds, dtype=np.int16) + generator.integers(
            -6, 7, (height, width, 1), dtype=np.int16
        )
        class_folder = folder / ("val" if number < 2 else "train") / f"class{number % 2}"
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
            class_folder / f"{number:05}.jpg", quality=90
        )
    return folder


def timm_pass(folder: Path, workers: int, device: str, prefetch: bool, **settings: Any) -> Callable[[], int]:
    """Return a function that makes a pass through timm's loader and returns the number of images.

    Args:
        folder: Photos.
        workers: Processes that decode.
        device: Where batches end up.
        prefetch: Whether bytes leave the workers and are normalized on the device: timm's default.
        settings: Further arguments of ``create_loader``.
    """
    loader: Any = create_loader(
        ImageDataset(str(folder / "train")),
        (3, SIDE, SIDE),
        BATCH,
        is_training=True,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        persistent_workers=False,
        use_prefetcher=prefetch,
        device=torch.device(device),
        **settings,
    )
    return lambda: sum(len(images.to(device)) for images, _ in loader)


def compatkit_pass(
    folder: Path, workers: int, device: str, augment: tuple[str, ...] | dict[str, Any], cache: Cache = "off"
) -> Callable[[], int]:
    """Return a function that makes a pass through compatkit's batches and returns the number of images."""
    split = ck.data.load(folder, root=None).train
    order = Sampler(len(split), BATCH, 0, "photos")
    augmentation = image_augmentation(augment, DATA)
    epochs = count()

    def work() -> int:
        first = next(epochs) * order.batches_per_epoch
        steps = range(first, first + order.batches_per_epoch)
        precision = Precision.choose(device, "float32", None)
        source = Decoded(split, DATA, order, augmentation, precision, workers, cache, steps.stop)
        with closing(source):
            return sum(len(source.batch(step).labels) for step in steps)

    return work


def ratio(times: Times, faster: str, slower: str) -> str:
    """Return a line of the table: the speed-up on the clock, median and range."""
    pairs = list(zip(times[faster], times[slower], strict=True))
    ratios = [slow.wall / fast.wall for fast, slow in pairs]
    return f"| {faster} | {slower} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"


def loading(rounds: int, jitter: bool, cache: Cache) -> list[float]:
    """Return, for each round, our time of a pass over photos by that of timm's loader, two workers each, on a CPU.

    timm's is the faster of its loader with and without its prefetcher.

    Args:
        rounds: Number of rounds.
        jitter: Whether colors are jittered, as by default, after resized crops and flips.
        cache: Whether ours decodes once.
    """
    decoded.AHEAD = AHEAD
    color = {} if jitter else {"color_jitter": None}
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["COMPATKIT_CACHE"] = str(Path(temporary) / "cache")
        folder = write_photos(Path(temporary) / "photos", PHOTOS)
        passes = {
            "ours": compatkit_pass(folder, 2, "cpu", color, cache),
            "timm": timm_pass(folder, 2, "cpu", False, **color),
            "timm, prefetcher": timm_pass(folder, 2, "cpu", True, **color),
        }

        def check(count: Any) -> None:
            expect("images of a pass", count, PHOTOS // BATCH * BATCH)

        times = compete({name: Contestant(work, check=check) for name, work in passes.items()}, rounds, 0)
    for name, turns in times.items():
        wall, processor = (median(turn[field] for turn in turns) / PHOTOS for field in (0, 1))
        say(f"{name}: {1e6 * wall:,.0f} us an image on the clock, {1e6 * processor:,.0f} of processors")
    return ratios_to_fastest(times, "ours")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("images", 1024), ("rounds", 5), ("workers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    decoded.AHEAD = AHEAD
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["COMPATKIT_CACHE"] = str(Path(temporary) / "cache")
        folder = write_photos(Path(temporary) / "photos", options.images)
        arguments = options.workers, options.device
        passes = {
            "timm's create_loader, resized crops": timm_pass(folder, *arguments, options.device != "cpu"),
            "folder, resized crops": compatkit_pass(folder, *arguments, ("imagenet",)),
            "cache, resized crops": compatkit_pass(folder, *arguments, ("imagenet",), "on"),
            "folder, not augmented": compatkit_pass(folder, *arguments, ()),
            "cache, not augmented": compatkit_pass(folder, *arguments, (), "on"),
        }

        def check(count: Any) -> None:
            expect("images of a pass", count, options.images // BATCH * BATCH)

        times = compete(
            {name: Contestant(work, check=check) for name, work in passes.items()},
            options.rounds,
            options.seed,
        )
    with one_core():
        small = {
            "resident, 32 x 32": ours(Resident, pictures()),
            "torchvision's DataLoader, 32 x 32": theirs(pictures(), 0),
        }
        checked = {
            name: Contestant(work, check=lambda count: expect("images", count, SMALL))
            for name, work in small.items()
        }
        times |= compete(checked, options.rounds, options.seed)
    conditions = f"{options.images} photos, batches of {BATCH}, {options.workers} workers, {options.device}"
    print(f"{conditions}; medians of {options.rounds} rounds")
    print("\n| this | beside | times as fast | from, to |\n|---|---|---:|---:|")
    for pair in (
        ("folder, resized crops", "timm's create_loader, resized crops"),
        ("cache, resized crops", "timm's create_loader, resized crops"),
        ("cache, resized crops", "folder, resized crops"),
        ("cache, not augmented", "folder, not augmented"),
        ("resident, 32 x 32", "torchvision's DataLoader, 32 x 32"),
    ):
        print(ratio(times, *pair))


if __name__ == "__main__":
    main()
