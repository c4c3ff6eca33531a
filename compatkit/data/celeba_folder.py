"""CelebA (Liu et al. 2015): faces with 40 attributes, from the folder of aligned images and the list of attributes.

A folder ``celeba`` with ``img_align_celeba/*.jpg`` and ``list_attr_celeba.txt``, as torchvision has it too. Images are
cut to the square in their middle. There are 202,599; a sample is read, or all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from compatkit.data.dataset import DataSet
from compatkit.data.factored import Factored, found, resized
from compatkit.data.threads import each
from compatkit.errors import DataError

IMAGES, ATTRIBUTES = "img_align_celeba", "list_attr_celeba.txt"
PATTERNS = (ATTRIBUTES, f"celeba/{ATTRIBUTES}")
SAMPLE = 10_000
"""Images of the data set that ``compatkit.data.load`` gives."""


def celeba(
    folder: str | os.PathLike[str],
    *,
    count: int | None = None,
    size: int = 64,
    seed: int = 0,
    name: str = "celeba",
) -> Factored:
    """Read faces.

    Args:
        folder: With the images' folder and the list.
        count: Images to read, drawn at random; None for all.
        size: Pixels a side of what is returned.
        seed: Of the draw.
        name: Of the data sets.

    Raises:
        DataError: The list is damaged, or an image is missing or damaged.
    """
    folder = Path(folder)
    listed = folder / ATTRIBUTES
    try:
        lines = listed.read_text(encoding="utf-8").split("\n")
        names = tuple(lines[1].split())
        rows = [line.split() for line in lines[2:] if line.strip()]
        table = np.array([[int(one) for one in row[1:]] for row in rows], dtype=np.int64)
    except (OSError, IndexError, ValueError) as error:
        raise DataError(f"{listed} is no list of CelebA's attributes: {error}.", subject=listed) from error
    if not len(rows) or table.shape != (len(rows), len(names)) or not np.isin(table, (-1, 1)).all():
        raise DataError(
            f"{listed}: each line is a file and {len(names)} numbers, 1 or -1; got an array {table.shape}.",
            subject=listed,
        )
    kept = np.arange(len(rows))
    if count is not None and count < len(kept):
        kept = np.sort(np.random.default_rng(seed).permutation(kept)[:count])

    def read(place: int) -> np.ndarray:
        file = folder / IMAGES / rows[place][0]
        try:
            with Image.open(file) as opened:
                face = opened.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} cannot be read as an image: {error}.", subject=file) from error
        side = min(face.size)
        left, top = (face.width - side) // 2, (face.height - side) // 2
        return resized(face.crop((left, top, left + side, top + side)), size)

    images = np.stack(list(each(read, kept.tolist())))
    factors = {one: (table[kept, at] > 0).astype(np.int64) for at, one in enumerate(names)}
    return Factored(name, images, factors, dict.fromkeys(names, ("no", "yes")))


def labeled_celeba(name: str, folders: Sequence[Path]) -> DataSet:
    """Return a sample of the faces by ``Male``.

    Args:
        name: Of the data set.
        folders: Where to look for the folder.

    Raises:
        DataError: No folder holds it, or as for ``celeba``.
    """
    listed = found(name, PATTERNS, folders)[0]
    return celeba(listed.parent, count=SAMPLE, name=name).labeled("Male")
