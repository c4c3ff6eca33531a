"""Cars3D (Reed et al. 2015): 183 cars from 4 elevations and 24 azimuths, in color.

One MATLAB file a car, ``cars/*.mat`` of the authors' archive, whose ``im`` is ``(height, width, 3, 24, 4)``. The order
of the files is that of their names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from compatkit.data.dataset import DataSet
from compatkit.data.factored import Factored, counted, found, resized
from compatkit.errors import DataError

PATTERNS = ("cars3d/**/*.mat", "cars/*.mat", "data/cars/*.mat")
AZIMUTHS, ELEVATIONS = 24, 4


def cars3d(files: Sequence[str | os.PathLike[str]], *, size: int = 64, name: str = "cars3d") -> Factored:
    """Read the cars.

    Args:
        files: One a car, in order.
        size: Pixels a side of what is returned.
        name: Of the data sets.

    Raises:
        DataError: There is no file, or one is no MATLAB file, or holds something else.
    """
    from scipy.io import loadmat

    if not files:
        raise DataError(f"{name} expects MATLAB files, one a car; got none.", subject=name)
    files = [Path(one) for one in files]
    views = AZIMUTHS * ELEVATIONS
    images = np.empty((len(files) * views, size, size, 3), dtype=np.uint8)
    for car, file in enumerate(files):
        try:
            mesh = np.asarray(loadmat(file)["im"])
        except (
            Exception
        ) as error:  # scipy raises errors of its own, and of struct and zlib, over damaged files
            raise DataError(f"{file} is no car of Cars3D: {error!r}.", subject=file) from error
        if mesh.shape[2:] != (3, AZIMUTHS, ELEVATIONS) or mesh.dtype != np.uint8:
            raise DataError(
                f"{file}: a car is uint8 (height, width, 3, {AZIMUTHS}, {ELEVATIONS}), got {mesh.dtype} {mesh.shape}.",
                subject=file,
            )
        flat = mesh.transpose(3, 4, 0, 1, 2).reshape(views, *mesh.shape[:3])
        for view, one in enumerate(flat):
            images[car * views + view] = resized(Image.fromarray(np.ascontiguousarray(one)), size)
    view = np.tile(np.arange(views), len(files))
    factors = {
        "elevation": view % ELEVATIONS,
        "azimuth": view // ELEVATIONS,
        "type": np.repeat(np.arange(len(files)), views),
    }
    values = {
        "elevation": counted(ELEVATIONS),
        "azimuth": counted(AZIMUTHS),
        "type": tuple(file.stem for file in files),
    }
    return Factored(name, images, factors, values)


def labeled_cars3d(name: str, folders: Sequence[Path]) -> DataSet:
    """Return the cars by elevation.

    Args:
        name: Of the data set.
        folders: Where to look for the files.

    Raises:
        DataError: No folder holds them, or as for ``cars3d``.
    """
    return cars3d(found(name, PATTERNS, folders), name=name).labeled("elevation")
