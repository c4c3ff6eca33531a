"""Make two folders of photos to try the guide with: JPEGs of mixed sizes around 224 pixels, from the CIFAR-10 pack.

    python examples/photos.py photos --data-root DIR

``photos/studio`` and ``photos/phone`` hold different images of the same ten classes; those of the phone are darker,
of another hue, and blurred.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import compatkit as ck


def write(split: ck.data.Split, folder: Path, seed: int) -> None:
    """Write a split as ``folder/CLASS/NUMBER.jpg``."""
    draw = np.random.default_rng(seed)
    for number in range(len(split)):
        place = folder / split.classes[split.labels[number]]
        place.mkdir(parents=True, exist_ok=True)
        width, height = (int(one) for one in draw.integers(176, 273, 2))
        photo = split.image(number).resize((width, height), Image.Resampling.BICUBIC)
        photo.save(place / f"{number:05d}.jpg", quality=90)


def main() -> None:
    """Read the pack, and write both folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", default=None, help="folder of the CIFAR-10 pack")
    parser.add_argument("--train", type=int, default=4000, help="training photos of each folder")
    asked = parser.parse_args()
    studio, phone = ck.data.load("cifar10", root=asked.data_root).halves()
    shifted = phone.shifted(hue=0.1, brightness=0.8, blur=0.5)
    for name, data in (("studio", studio), ("phone", shifted)):
        some = data.subset(asked.train, asked.train // 4, seed=0)
        write(some.train, asked.folder / name / "train", 1)
        write(some.test, asked.folder / name / "val", 2)
        print(f"wrote {asked.folder / name}: {len(some.train):,} training and {len(some.test):,} test photos")


if __name__ == "__main__":
    main()
