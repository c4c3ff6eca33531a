"""Cue conflict: images with the shape of one class and the texture of another, with edges and silhouettes.

The stimuli of Geirhos et al. (2019), "ImageNet-trained CNNs are biased towards texture", in one file
``cue_conflict_64.npz`` (any size): ``cue_conflict_x`` (1280 images of 16 classes), ``cue_conflict_shape``,
``edges_x``, ``edges_shape``, ``silhouettes_x``, ``silhouettes_shape`` and ``classes``. All three data sets are labeled
by shape and have the same training images; they differ in their test images.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit import DataSet, Split, hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ._files import Root, find_files

compatkit_api = 1
TEST_SHARE = 8
"""One image in eight of every class is for testing: 160 of 1,280, as in "Reviving Autoencoder Pretraining", C.1."""
KINDS = {
    "cue-conflict": "cue_conflict",
    "cue-conflict-edges": "edges",
    "cue-conflict-silhouettes": "silhouettes",
}
"""Test images by data set."""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``cue-conflict``, ``cue-conflict-edges`` and ``cue-conflict-silhouettes``."""
    for name in KINDS:
        register(name, partial(cue_conflict, name))


def cue_conflict(name: str, root: Root = None, download: bool = False) -> DataSet:
    """Read one of the data sets.

    Args:
        name: A key of ``KINDS``.
        root: Folder of data sets.
        download: Without effect.

    Raises:
        DataError: There is no file (``subject`` is the name), or it is damaged or holds something else.
    """
    file = find_files(name, ("cue_conflict*.npz",), root)[0]
    kind = KINDS[name]
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            classes = archive["classes"]
            images, labels = archive["cue_conflict_x"], archive["cue_conflict_shape"]
            test_images, test_labels = archive[f"{kind}_x"], archive[f"{kind}_shape"]
        if classes.dtype.kind != "U" or classes.ndim != 1:
            raise DataError(f"classes is one row of texts, got {classes.dtype} {classes.shape}.")
        names = tuple(map(str, classes))
        test = _drawn(Split(images, labels, names, f"{name}/train"))
        if kind == "cue_conflict":
            test_images, test_labels = images[test], labels[test]
        return DataSet.of(name, (images[~test], labels[~test]), (test_images, test_labels), names)
    except DAMAGE as error:
        raise DataError(f"{file} holds no cue-conflict stimuli: {error!s:.300}", subject=file) from error


DAMAGE = (
    *(DataError, OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""Errors of reading a damaged file, or arrays that do not form a data set."""


def _drawn(split: Split) -> NDArray[Any]:
    """Return a mask of the test images: one in eight of every class, always the same."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(split), dtype=bool)
    for label in range(len(split.classes)):
        indices = np.flatnonzero(split.labels == label)
        test[rng.permutation(indices)[: len(indices) // TEST_SHARE]] = True
    return test
