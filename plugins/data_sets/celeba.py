"""CelebA (Liu et al. 2015): faces with 40 attributes; a sample of 10,000, labeled by ``Male``.

A folder with ``img_align_celeba/*.jpg`` and ``list_attr_celeba.txt``, or a folder ``celeba`` with these, as torchvision
has it. The square in the middle of each of the 202,599 images is used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored
from ._files import Root, find_files, resized

compatkit_api = 1
IMAGES, ATTRIBUTES = "img_align_celeba", "list_attr_celeba.txt"
PATTERNS = (ATTRIBUTES, f"celeba/{ATTRIBUTES}")
SAMPLE = 10_000


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``celeba``."""
    register("celeba", lambda root=None, download=False: celeba(root, count=SAMPLE).labeled("Male"))


def celeba(root: Root = None, *, count: int | None = None, size: int = 64, seed: int = 0) -> Factored:
    """Read faces.

    Args:
        root: Folder of data sets.
        count: Number of images to draw at random; None reads all.
        size: Pixels per side of the returned images.
        seed: Seed of the draw.

    Raises:
        DataError: There are no files, the list is damaged, or an image is missing or damaged.
    """
    attributes = find_files("celeba", PATTERNS, root)[0]
    try:
        lines = attributes.read_text(encoding="utf-8").split("\n")
        names = tuple(lines[1].split())
        rows = [line.split() for line in lines[2:] if line.strip()]
        table = np.array([[int(value) for value in row[1:]] for row in rows], dtype=np.int64)
    except (OSError, IndexError, ValueError) as error:
        raise DataError(
            f"{attributes} is no list of CelebA's attributes: {error}.", subject=attributes
        ) from error
    if not len(rows) or table.shape != (len(rows), len(names)) or not np.isin(table, (-1, 1)).all():
        raise DataError(
            f"{attributes}: each line is a file and {len(names)} numbers, 1 or -1; got an array {table.shape}.",
            subject=attributes,
        )
    indices = np.arange(len(rows))
    if count is not None and count < len(indices):
        indices = np.sort(np.random.default_rng(seed).permutation(indices)[:count])

    def read(index: int) -> NDArray[np.uint8]:
        file = attributes.parent / IMAGES / rows[index][0]
        try:
            with Image.open(file) as image:
                face = image.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} cannot be read as an image: {error}.", subject=file) from error
        side = min(face.size)
        left, top = (face.width - side) // 2, (face.height - side) // 2
        return resized(face.crop((left, top, left + side, top + side)), size)

    with ThreadPoolExecutor() as pool:
        images = np.stack(list(pool.map(read, indices.tolist())))
    factors = {name: (table[indices, column] > 0).astype(np.int64) for column, name in enumerate(names)}
    return Factored("celeba", images, factors, dict.fromkeys(names, ("no", "yes")))
