"""dSprites (Higgins et al. 2017), as published: 737,280 white shapes on black of 64x64 pixels, five factors.

One file ``dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz``, of which ``imgs`` and ``latents_classes`` are read; its
description is a pickle, which is never loaded. Images are read in blocks, so that a sample of them needs no more
memory.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compatkit.data.dataset import DataSet
from compatkit.data.factored import Factored, counted, found
from compatkit.data.packs import array, opened
from compatkit.data.sprite_images import SHAPES
from compatkit.data.transforms import Images
from compatkit.errors import DataError

PATTERNS = ("dsprites_ndarray*.npz", "dsprites/dsprites_ndarray*.npz")
FORM = "dSprites' file holds imgs (n, height, width) of 0 and 1, and latents_classes (n, 6)"
SAMPLE = 20_000
"""Images of the data set that ``compatkit.data.load`` gives."""
_BLOCK = 1 << 25


def dsprites(
    file: str | os.PathLike[str], *, count: int | None = None, seed: int = 0, name: str = "dsprites"
) -> Factored:
    """Read the images.

    Args:
        file: The published file.
        count: Images to keep, drawn at random; None for all, which take 3 GB.
        seed: Of the draw.
        name: Of the data sets.

    Raises:
        DataError: The file is damaged, or holds something else.
        EnvironmentFailure: It cannot be read.
    """
    file = Path(file)
    with opened(file) as pack:
        classes = array(pack, "latents_classes", file, form=FORM)
        if classes.ndim != 2 or classes.shape[1] != 6 or classes.dtype.kind not in "iu" or not len(classes):
            raise DataError(
                f"{file}: latents_classes is {classes.dtype} {classes.shape}. {FORM}.", subject=file
            )
        kept = np.arange(len(classes))
        if count is not None and count < len(kept):
            kept = np.sort(np.random.default_rng(seed).permutation(kept)[:count])
        images = _rows(file, kept, len(classes))
    chosen = classes[kept, 1:].astype(np.int64)  # the first is the color, always white
    names = ("shape", "scale", "orientation", "x", "y")
    counts = classes[:, 1:].max(0) + 1
    values = {one: counted(int(most)) for one, most in zip(names, counts, strict=True)}
    if len(values["shape"]) == len(SHAPES):
        values["shape"] = SHAPES
    return Factored(name, images, {one: chosen[:, at] for at, one in enumerate(names)}, values)


def labeled_dsprites(name: str, folders: Sequence[Path]) -> DataSet:
    """Return a sample of the images by shape.

    Args:
        name: Of the data set.
        folders: Where to look for the file.

    Raises:
        DataError: No folder holds it, or as for ``dsprites``.
    """
    return dsprites(found(name, PATTERNS, folders)[0], count=SAMPLE, name=name).labeled("shape")


def _rows(file: Path, kept: np.ndarray, count: int) -> Images:
    """Return some images, white as 255, from the array's file inside the archive."""
    with zipfile.ZipFile(file) as archive:
        if "imgs.npy" not in archive.namelist():
            raise DataError(f"{file} has no imgs. {FORM}.", subject=file)
        with archive.open("imgs.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(stream)
            if len(shape) != 3 or shape[0] != count or fortran or dtype != np.uint8 or not all(shape):
                raise DataError(f"{file}: imgs is {dtype} {shape}. {FORM}.", subject=file)
            row = shape[1] * shape[2]
            made = np.empty((len(kept), shape[1], shape[2], 1), dtype=np.uint8)
            each = max(1, _BLOCK // row)
            for start in range(0, count, each):
                stop = min(count, start + each)
                block = np.frombuffer(stream.read((stop - start) * row), dtype=np.uint8)
                low, high = np.searchsorted(kept, (start, stop))
                made[low:high, ..., 0] = block.reshape(-1, *shape[1:])[kept[low:high] - start]
    if made.max() > 1:
        raise DataError(f"{file}: imgs has values up to {made.max()}. {FORM}.", subject=file)
    return made * np.uint8(255)
