"""dSprites (Higgins et al. 2017): white shapes on black, 64x64; a sample of 20,000, labeled by shape.

One file ``dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz`` with 737,280 images and five factors, of which ``imgs`` and
``latents_classes`` are read; its description is a pickle, which is never loaded. Images are read in blocks, so that a
sample of them needs no more memory.
"""

from __future__ import annotations

import zipfile
import zlib
from typing import IO

import numpy as np
from numpy.typing import NDArray

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored, numbered
from ._files import Root, find_files

compatkit_api = 1
PATTERNS = ("dsprites_ndarray*.npz", "dsprites/dsprites_ndarray*.npz")
SHAPES = ("square", "ellipse", "heart")
SAMPLE = 20_000
BLOCK = 1 << 25
"""Bytes of images read at a time."""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``dsprites``."""
    register("dsprites", lambda root=None, download=False: dsprites(root, count=SAMPLE).labeled("shape"))


def dsprites(root: Root = None, *, count: int | None = None, seed: int = 0) -> Factored:
    """Read images.

    Args:
        root: Folder of data sets.
        count: Number of images to draw at random; None reads all, which take 3 GB.
        seed: Seed of the draw.

    Raises:
        DataError: There is no file, or it is damaged or holds something else.
    """
    file = find_files("dsprites", PATTERNS, root)[0]
    try:
        with zipfile.ZipFile(file) as archive:
            with archive.open("latents_classes.npy") as stream:
                classes = np.lib.format.read_array(stream, allow_pickle=False)
            if (
                classes.ndim != 2
                or classes.shape[1] != 6
                or classes.dtype.kind not in "iu"
                or not len(classes)
            ):
                raise ValueError(f"latents_classes is {classes.dtype} {classes.shape}, not integers (n, 6)")
            indices = np.arange(len(classes))
            if count is not None and count < len(indices):
                indices = np.sort(np.random.default_rng(seed).permutation(indices)[:count])
            with archive.open("imgs.npy") as stream:
                images = _read_rows(stream, indices, len(classes))
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} is no file of dSprites: {error!s:.300}", subject=file) from error
    chosen = classes[indices, 1:].astype(np.int64)  # the first is the color, always white
    factors = ("shape", "scale", "orientation", "x", "y")
    values = {
        factor: numbered(int(largest) + 1)
        for factor, largest in zip(factors, classes[:, 1:].max(0), strict=True)
    }
    if len(values["shape"]) == len(SHAPES):
        values["shape"] = SHAPES
    return Factored(
        "dsprites", images, {factor: chosen[:, column] for column, factor in enumerate(factors)}, values
    )


def _read_rows(stream: IO[bytes], indices: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Read the images at ``indices`` of an array of ``count`` images, and return white as 255."""
    version = np.lib.format.read_magic(stream)
    first = version == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if len(shape) != 3 or shape[0] != count or fortran or dtype != np.uint8 or not all(shape):
        raise ValueError(f"imgs is {dtype} {shape}, not uint8 ({count}, height, width)")
    row = shape[1] * shape[2]
    images = np.empty((len(indices), shape[1], shape[2], 1), dtype=np.uint8)
    step = max(1, BLOCK // row)
    for start in range(0, count, step):
        stop = min(count, start + step)
        block = np.frombuffer(stream.read((stop - start) * row), dtype=np.uint8)
        low, high = np.searchsorted(indices, (start, stop))
        images[low:high, ..., 0] = block.reshape(-1, *shape[1:])[indices[low:high] - start]
    if images.max() > 1:
        raise ValueError(f"imgs has values up to {images.max()}, not 0 and 1")
    return images * np.uint8(255)
