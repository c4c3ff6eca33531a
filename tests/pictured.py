"""Small folders of photos, of several sizes and proportions, and readers that are watched."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

import compatkit as ck
from compatkit.data.lazy import LazyImages, Reader
from compatkit.data.split import Split
from compatkit.foundation.bars import Progress

CLASSES = ("cat", "dog", "owl")


def write_photos(folder: Path, count: int = 12, test: int = 4, seed: int = 0) -> Path:
    """Write JPEGs of ``train`` and ``val``, ``count`` and ``test`` a class, whose color tells the class."""
    draw = np.random.default_rng(seed)
    for part, many in (("train", count), ("val", test)):
        for label, name in enumerate(CLASSES):
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(many):
                height, width = 36 + 4 * (number % 3), 48 - 4 * (number % 4)
                pixels = draw.integers(0, 120, (height, width, 3)).astype(np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(place / f"{number:03}.jpg", quality=90)
    return folder


def photos(folder: Path, **settings: int) -> ck.data.DataSet:
    """Return the data set of a folder that is written if it is not there."""
    return ck.data.load(folder if folder.exists() else write_photos(folder, **settings))


@attrs.define(eq=False)
class Counted:
    """A reader that notes what is read of another."""

    reader: Reader
    seen: list[int] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, position: int) -> bytes:
        self.seen.append(position)
        return self.reader.read(position)

    def name(self, position: int) -> str:
        return self.reader.name(position)

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        return self.reader.digests(positions, progress)


def counted(split: Split) -> tuple[Split, list[int]]:
    """Return a split of files whose reads are noted, and the positions that were read."""
    assert isinstance(split.images, LazyImages)
    reader = Counted(split.images.reader)
    return attrs.evolve(split, images=attrs.evolve(split.images, reader=reader)), reader.seen


def task(data: ck.data.DataSet, name: str = "a", **settings: object) -> ck.Task:
    """Return a task of a small network over color images of 32 x 32."""
    return ck.Task(name, data, **{"model": "resnet8_cifar", "cut": "layer2", "size": 32, **settings})
