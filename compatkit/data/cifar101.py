"""CIFAR-10.1: new test images for CIFAR-10, collected as its own were (Recht et al. 2018); read from local files.

Its authors publish ``cifar10.1_v6_data.npy`` and ``cifar10.1_v6_labels.npy`` (2,000 images, balanced), and the same of
version 4 (2,021 images).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet, Split
from compatkit.errors import DataError, EnvironmentFailure


def cifar101(name: str, folders: Sequence[Path]) -> DataSet:
    """Return CIFAR-10's training images with the test images of CIFAR-10.1.

    Args:
        name: ``"cifar10.1"`` (version 6) or ``"cifar10.1-v4"``.
        folders: Where to look for the two files; CIFAR-10 is looked for as always.

    Raises:
        DataError: No folder holds the files (``subject`` is the name), they are damaged, or CIFAR-10 is missing.
        EnvironmentFailure: A file cannot be read.
    """
    from compatkit.data.loading import load

    release = "v4" if name.endswith("v4") else "v6"
    files = [f"cifar10.1_{release}_{what}.npy" for what in ("data", "labels")]
    folder = next((one for one in folders if all((one / file).exists() for file in files)), None)
    if folder is None:
        looked = ", ".join(map(str, folders)) or "no folder: none is named"
        raise DataError(
            f"Data set {name!r} is read from {' and '.join(files)}, which are in none of these folders: {looked}. Get "
            "them from the CIFAR-10.1 repository of its authors, put both into a folder, and name the folder by root "
            "or COMPATKIT_DATA.",
            subject=name,
        )
    images, labels = (_array(folder / file) for file in files)
    plain = load("cifar10", root=folder)
    return DataSet(
        name, plain.train.renamed(f"{name}/train"), Split(images, labels, plain.classes, f"{name}/test")
    )


def _array(file: Path) -> NDArray[Any]:
    try:
        return np.load(file, allow_pickle=False)
    except OSError as error:
        raise EnvironmentFailure(
            f"{file} cannot be read: {error.strerror or error}. Check the rights and the disk.", subject=file
        ) from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{file} is damaged, or no plain array: {error}", subject=file) from error
