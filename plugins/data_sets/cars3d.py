"""Cars3D (Reed et al. 2015): 183 cars seen from 4 elevations and 24 azimuths, in color; labeled by elevation.

One MATLAB file per car, ``cars/*.mat`` of the authors' archive, whose ``im`` is ``(height, width, 3, 24, 4)``. Cars are
in the order of their file names.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored, numbered
from ._files import Root, find_files, resized

compatkit_api = 1
PATTERNS = ("cars3d/**/*.mat", "cars/*.mat", "data/cars/*.mat")
AZIMUTHS, ELEVATIONS = 24, 4


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``cars3d``."""
    register("cars3d", lambda root=None, download=False: cars3d(root).labeled("elevation"))


def cars3d(root: Root = None, *, size: int = 64) -> Factored:
    """Read all cars.

    Args:
        root: Folder of data sets.
        size: Pixels per side of the returned images.

    Raises:
        DataError: There are no files, or one is not a MATLAB file or has another array.
    """
    from scipy.io import loadmat

    files, views = find_files("cars3d", PATTERNS, root), AZIMUTHS * ELEVATIONS
    images = np.empty((len(files) * views, size, size, 3), dtype=np.uint8)
    for car, file in enumerate(files):
        try:
            mesh = np.asarray(loadmat(file)["im"])
        except Exception as error:  # scipy raises its own errors, and struct's and zlib's, for damaged files
            raise DataError(f"{file} is no car of Cars3D: {error!r}.", subject=file) from error
        if mesh.shape[2:] != (3, AZIMUTHS, ELEVATIONS) or mesh.dtype != np.uint8:
            raise DataError(
                f"{file}: a car is uint8 (height, width, 3, {AZIMUTHS}, {ELEVATIONS}), got {mesh.dtype} {mesh.shape}.",
                subject=file,
            )
        pixels = mesh.transpose(3, 4, 0, 1, 2).reshape(views, *mesh.shape[:3])
        for view, image in enumerate(pixels):
            images[car * views + view] = resized(Image.fromarray(np.ascontiguousarray(image)), size)
    view = np.tile(np.arange(views), len(files))
    factors = {
        "elevation": view % ELEVATIONS,
        "azimuth": view // ELEVATIONS,
        "type": np.repeat(np.arange(len(files)), views),
    }
    values = {
        "elevation": numbered(ELEVATIONS),
        "azimuth": numbered(AZIMUTHS),
        "type": tuple(file.stem for file in files),
    }
    return Factored("cars3d", images, factors, values)
