"""How fast images get from a folder to the device, beside timm's loader; from the cache; small ones beside torchvision.

Run ``python benchmarks/images.py [--images N] [--rounds N] [--workers N] [--device cpu]``. It writes a tree of JPEGs of
about 500 x 375 pixels into a temporary folder. Contestants take turns, each a pass over all images whose worker
processes begin and end with it; ratios are medians over the rounds. On a GPU timm's own prefetcher normalizes there.
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
from PIL import Image
from registry_measuring import Contestant, Times, compete, expect
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
AHEAD = 2
"""Batches that a worker prepares ahead: what timm's loader leaves at torch's default."""


def write_photos(folder: Path, images: int) -> Path:
    """Write photos of clouds with some grain, two classes, as cameras' JPEGs compress."""
    draw = np.random.default_rng(0)
    for number in range(images + 2):
        height, width = 375 + int(draw.integers(-40, 41)), 500 + int(draw.integers(-40, 41))
        clouds = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
            (width, height), 3
        )
        pixels = np.asarray(clouds, dtype=np.int16) + draw.integers(-6, 7, (height, width, 1), dtype=np.int16)
        place = folder / ("val" if number < 2 else "train") / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(place / f"{number:05}.jpg", quality=90)
    return folder


def of_timm(folder: Path, workers: int, device: str) -> Callable[[], int]:
    """Return what takes a pass through timm's loader and counts images."""
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
        use_prefetcher=device != "cpu",
        device=torch.device(device),
    )
    return lambda: sum(len(images.to(device)) for images, _ in loader)


def of_compatkit(
    folder: Path, workers: int, device: str, augment: str, cache: Cache = "off"
) -> Callable[[], int]:
    """Return what takes a pass through our batches and counts images."""
    split = ck.data.load(folder, root=None).train
    order = Sampler(len(split), BATCH, 0, "photos")
    drawn = image_augmentation((augment,) if augment != "none" else (), DATA.size, DATA.interpolation)
    epochs = count()

    def work() -> int:
        first = next(epochs) * order.batches_per_epoch
        steps = range(first, first + order.batches_per_epoch)
        given = split, DATA, order, drawn, Precision.choose(device, "float32", None), workers, cache
        with closing(Decoded(*given, steps.stop)) as source:
            return sum(len(source.batch(step).labels) for step in steps)

    return work


def ratio(times: Times, faster: str, slower: str) -> str:
    """Return a line of the table: how many times as fast, and by the processors' time."""
    pairs = list(zip(times[faster], times[slower], strict=True))
    wall = [other.wall / one.wall for one, other in pairs]
    return f"| {faster} | {slower} | {median(wall):.2f} | {min(wall):.2f} to {max(wall):.2f} |"


def main() -> None:
    """Measure, and print the table."""
    reads = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("images", 1024), ("rounds", 5), ("workers", 2), ("seed", 0)):
        reads.add_argument(f"--{name}", type=int, default=usual)
    reads.add_argument("--device", default="cpu")
    asked = reads.parse_args()
    decoded.AHEAD = AHEAD
    with tempfile.TemporaryDirectory() as place:
        os.environ["COMPATKIT_CACHE"] = str(Path(place) / "cache")
        folder, given = write_photos(Path(place) / "photos", asked.images), (asked.workers, asked.device)
        works = {
            "timm's create_loader, resized crops": of_timm(folder, *given),
            "folder, resized crops": of_compatkit(folder, *given, "imagenet"),
            "cache, resized crops": of_compatkit(folder, *given, "imagenet", "on"),
            "folder, not augmented": of_compatkit(folder, *given, "none"),
            "cache, not augmented": of_compatkit(folder, *given, "none", "on"),
        }

        def whole(came: Any) -> None:
            expect("images of a pass", came, asked.images // BATCH * BATCH)

        times = compete(
            {name: Contestant(work, check=whole) for name, work in works.items()}, asked.rounds, asked.seed
        )
    with one_core():
        small = {
            "resident, 32 x 32": ours(Resident, pictures()),
            "torchvision's DataLoader, 32 x 32": theirs(pictures(), 0),
        }
        checked = {
            name: Contestant(work, check=lambda came: expect("images", came, SMALL))
            for name, work in small.items()
        }
        times |= compete(checked, asked.rounds, asked.seed)
    what = f"{asked.images} photos, batches of {BATCH}, {asked.workers} workers, {asked.device}"
    print(f"{what}; medians of {asked.rounds} rounds")
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
