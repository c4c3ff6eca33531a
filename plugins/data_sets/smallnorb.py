"""SmallNORB (LeCun et al. 2004): 50 toys from 9 elevations and 18 azimuths, in 6 lights; gray, labeled by kind.

Three files for each split in the authors' binary format, ``*-training-{dat,cat,info}.mat`` and ``*-testing-...``: a
magic number for the type, the number of axes, their lengths (at least three numbers), the values, all little-endian. Of
the two cameras the first is read, as in Locatello et al. (2019).
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored, numbered
from ._files import Root, find_files, resized

compatkit_api = 1
PATTERNS = ("smallnorb*.mat", "smallnorb/*.mat")
KINDS = ("animal", "human", "airplane", "truck", "car")
TYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4"), 0x1E3D4C51: np.dtype("<f4")}
COUNTS = {"instance": 10, "elevation": 9, "azimuth": 18, "lighting": 6}
"""Number of values of each column of ``info``, in order; azimuths are stored as even numbers."""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``smallnorb``."""
    register("smallnorb", lambda root=None, download=False: smallnorb(root).labeled("kind"))


def smallnorb(root: Root = None, *, size: int = 64) -> Factored:
    """Read all toys; the authors' test images are those for testing.

    Args:
        root: Folder of data sets.
        size: Pixels per side of the returned images.

    Raises:
        DataError: A file is missing or damaged, or their arrays have different lengths.
    """
    files = find_files("smallnorb", PATTERNS, root)
    train, test = (_read_split(files, split) for split in ("training", "testing"))
    images = [
        np.stack([resized(Image.fromarray(image), size) for image in part[0]]) for part in (train, test)
    ]
    kinds, infos = (np.concatenate(pair).astype(np.int64) for pair in zip(train[1:], test[1:], strict=True))
    infos[:, 2] //= 2
    factors = {"kind": kinds, **{factor: infos[:, column] for column, factor in enumerate(COUNTS)}}
    values = {"kind": KINDS, **{factor: numbered(count) for factor, count in COUNTS.items()}}
    test_indices = len(images[0]) + np.arange(len(images[1]))
    return Factored("smallnorb", np.concatenate(images), factors, values, test_indices)


def _read_split(files: list[Path], split: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the first camera's images, the kinds and the other factors of a split."""
    paths = [
        next((file for file in files if file.name.endswith(f"{split}-{content}.mat")), None)
        for content in ("dat", "cat", "info")
    ]
    if None in paths:
        raise DataError(
            f"smallnorb: the {split} images are three files, *-{split}-dat.mat, -cat.mat and -info.mat; there are "
            f"{', '.join(file.name for file in files)}.",
            subject="smallnorb",
        )
    stereo, kinds, infos = (read_matrix(path) for path in paths if path)
    if stereo.ndim != 4 or kinds.shape != (len(stereo),) or infos.shape != (len(stereo), 4):
        raise DataError(
            f"{paths[0]}: the shapes of images {stereo.shape}, kinds {kinds.shape} and infos {infos.shape} differ.",
            subject=paths[0],
        )
    return stereo[:, 0], kinds, infos


def read_matrix(file: Path) -> NDArray[Any]:
    """Read one file of the format.

    Raises:
        DataError: It is damaged, or of another format.
    """
    data = file.read_bytes()
    head = np.frombuffer(data[:8], dtype="<i4") if len(data) >= 8 else np.zeros(2, dtype=np.int32)
    dtype, axes = TYPES.get(int(head[0])), int(head[1])
    if dtype is None or not 1 <= axes <= 4:
        raise DataError(f"{file} is no file of SmallNORB: it starts with {data[:8]!r}.", subject=file)
    start = 8 + 4 * max(axes, 3)
    shape = tuple(int(length) for length in np.frombuffer(data[8 : 8 + 4 * axes], dtype="<i4"))
    if len(shape) != axes or min(shape) < 1 or len(data) - start != prod(shape) * dtype.itemsize:
        raise DataError(
            f"{file} is damaged: {len(data) - start} bytes of values for an array {shape} of {dtype}.",
            subject=file,
        )
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)
