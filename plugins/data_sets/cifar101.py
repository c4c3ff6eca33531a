"""CIFAR-10.1: new test images for CIFAR-10, collected as the original ones were (Recht et al. 2018).

Its authors publish ``cifar10.1_v6_data.npy`` and ``cifar10.1_v6_labels.npy`` (2,000 images, balanced), and the same of
version 4 (2,021 images).
"""

from __future__ import annotations

from functools import partial

import numpy as np

import compatkit as ck
from compatkit import DataSet, Split, hookimpl
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.hooks import Register

from ._files import Root, find_files

compatkit_api = 1
RELEASES = {"cifar10.1": "v6", "cifar10.1-v4": "v4"}


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``cifar10.1`` and ``cifar10.1-v4``."""
    for name in RELEASES:
        register(name, partial(cifar101, name))


def cifar101(name: str, root: Root = None, download: bool = False) -> DataSet:
    """Return CIFAR-10's training images with the test images of CIFAR-10.1.

    Args:
        name: A key of ``RELEASES``.
        root: Folder of data sets, which holds the two files and CIFAR-10.
        download: Whether torchvision may fetch CIFAR-10.

    Raises:
        DataError: The files are missing (``subject`` is the name) or damaged, or CIFAR-10 is missing.
        EnvironmentFailure: A file cannot be read.
    """
    arrays = []
    for content in ("data", "labels"):
        (file,) = find_files(name, (f"cifar10.1_{RELEASES[name]}_{content}.npy",), root)
        try:
            arrays.append(np.load(file, allow_pickle=False))
        except OSError as error:
            raise EnvironmentFailure(
                f"{file} cannot be read: {error.strerror or error}. Check the rights and the disk.",
                subject=file,
            ) from error
        except (ValueError, EOFError) as error:
            raise DataError(f"{file} is damaged, or no plain array: {error}", subject=file) from error
    images, labels = arrays
    plain = ck.data.load("cifar10", root=root, download=download)
    test = Split(images, labels, plain.classes, f"{name}/test")
    return DataSet(name, plain.train.renamed(f"{name}/train"), test)
