"""Create two folders of photos for the guide: JPEGs of mixed sizes around 224 pixels, from the CIFAR-10 pack.

    python examples/photos.py photos --data-root DIR --classes airplane,automobile,frog,horse

``photos/studio`` and ``photos/phone`` contain different images of the same classes, all ten without ``--classes``;
photos of the phone are darker, blurred, and have another hue.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import compatkit as ck


def write(split: ck.data.Split, folder: Path, seed: int) -> None:
    """Write a split as ``folder/CLASS/NUMBER.jpg``."""
    generator = np.random.default_rng(seed)
    for number in range(len(split)):
        class_folder = folder / split.classes[split.labels[number]]
        class_folder.mkdir(parents=True, exist_ok=True)
        width, height = (int(side) for side in generator.integers(176, 273, 2))
        photo = split.image(number).resize((width, height), Image.Resampling.BICUBIC)
        photo.save(class_folder / f"{number:05d}.jpg", quality=90)


def main() -> None:
    """Read the pack, and write both folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", default=None, help="folder of the CIFAR-10 pack")
    parser.add_argument("--train", type=int, default=4000, help="training photos of each folder")
    parser.add_argument("--classes", default=None, help="names of some classes, separated by commas")
    options = parser.parse_args()
    data = ck.data.load("cifar10", root=options.data_root)
    if options.classes:
        data = data.of_classes(options.classes.split(","))
    studio, phone = data.halves()
    shifted = phone.shifted(hue=0.1, brightness=0.8, blur=0.5)
    for name, data in (("studio", studio), ("phone", shifted)):
        subset = data.subset(options.train, options.train // 4, seed=0)
        write(subset.train, options.folder / name / "train", 1)
        write(subset.test, options.folder / name / "val", 2)
        print(
            f"wrote {options.folder / name}: {len(subset.train):,} training and {len(subset.test):,} test photos"
        )


if __name__ == "__main__":
    main()
