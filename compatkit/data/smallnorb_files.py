"""SmallNORB (LeCun et al. 2004): 50 toys of five kinds from 9 elevations and 18 azimuths, in 6 lights; gray.

Three files a split in the authors' binary format, ``*-training-{dat,cat,info}.mat`` and ``*-testing-...``: a magic
number that says the type, the count of axes, their lengths (at least three numbers), the values, all little-endian. Of
the two cameras the first is read, as in Locatello et al. (2019).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compatkit.data.dataset import DataSet
from compatkit.data.factored import Factored, counted, found, resized
from compatkit.errors import DataError

PATTERNS = ("smallnorb*.mat", "smallnorb/*.mat")
SPLITS = ("training", "testing")
KINDS = ("animal", "human", "airplane", "truck", "car")
TYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4"), 0x1E3D4C51: np.dtype("<f4")}
COUNTS = {"instance": 10, "elevation": 9, "azimuth": 18, "lighting": 6}
"""Values of what ``info`` holds, in order; azimuths are stored as even numbers."""


def matrix(file: Path) -> NDArray[Any]:
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
    shape = tuple(int(one) for one in np.frombuffer(data[8 : 8 + 4 * axes], dtype="<i4"))
    if len(shape) != axes or min(shape) < 1 or len(data) - start != prod(shape) * dtype.itemsize:
        raise DataError(
            f"{file} is damaged: {len(data) - start} bytes of values for an array {shape} of {dtype}.",
            subject=file,
        )
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def smallnorb(
    files: Sequence[str | os.PathLike[str]], *, size: int = 64, name: str = "smallnorb"
) -> Factored:
    """Read the toys; the authors' test images are those for testing.

    Args:
        files: The six files, in any order.
        size: Pixels a side of what is returned.
        name: Of the data sets.

    Raises:
        DataError: A file is missing or damaged, or they do not go together.
    """
    paths, images, kinds, infos = [Path(one) for one in files], [], [], []
    for split in SPLITS:
        given = [
            [one for one in paths if split in one.name and one.name.endswith(f"{what}.mat")]
            for what in ("dat", "cat", "info")
        ]
        if not all(given):
            raise DataError(
                f"{name}: the {split} images are three files, *-{split}-dat.mat, -cat.mat and -info.mat; there are "
                f"{', '.join(one.name for one in paths) or 'none'}.",
                subject=name,
            )
        stereo, kind, info = (matrix(one[0]) for one in given)
        if stereo.ndim != 4 or kind.shape != (len(stereo),) or info.shape != (len(stereo), 4):
            raise DataError(
                f"{given[0][0]}: images {stereo.shape}, kinds {kind.shape} and infos {info.shape} do not go together.",
                subject=given[0][0],
            )
        images.append(np.stack([resized(Image.fromarray(one), size) for one in stereo[:, 0]]))
        kinds.append(kind)
        infos.append(info)
    whole = np.concatenate(infos).astype(np.int64)
    whole[:, 2] //= 2
    factors = {"kind": np.concatenate(kinds).astype(np.int64)}
    factors |= {one: whole[:, at] for at, one in enumerate(COUNTS)}
    values = {"kind": KINDS, **{one: counted(count) for one, count in COUNTS.items()}}
    test = len(images[0]) + np.arange(len(images[1]))
    return Factored(name, np.concatenate(images), factors, values, test)


def labeled_smallnorb(name: str, folders: Sequence[Path]) -> DataSet:
    """Return the toys by kind.

    Args:
        name: Of the data set.
        folders: Where to look for the files.

    Raises:
        DataError: No folder holds them, or as for ``smallnorb``.
    """
    return smallnorb(found(name, PATTERNS, folders), name=name).labeled("kind")
