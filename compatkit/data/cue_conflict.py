"""Cue conflict: images whose shape is of one class and whose texture is of another, with edges and silhouettes.

The stimuli of Geirhos et al. (2019), "ImageNet-trained CNNs are biased towards texture", in one file
``cue_conflict_64.npz`` (any size): ``cue_conflict_x`` (1280 images of 16 classes), ``cue_conflict_shape``,
``edges_x``, ``edges_shape``, ``silhouettes_x``, ``silhouettes_shape`` and ``classes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.packs import array, class_names, opened
from compatkit.data.split import Split
from compatkit.errors import DataError

PATTERN = "cue_conflict*.npz"
TEST_SHARE = 8
"""One image in eight of every class is for testing: 160 of 1,280, as in "Reviving Autoencoder Pretraining", C.1."""
FORM = "A file of cue-conflict stimuli holds cue_conflict, edges and silhouettes, each as _x and _shape, and classes"


def cue_conflict(name: str, folders: Sequence[Path]) -> DataSet:
    """Return one of three data sets, labeled by shape, whose training images are the same.

    Args:
        name: ``"cue-conflict"`` (test images with textures), ``"cue-conflict-edges"`` or
            ``"cue-conflict-silhouettes"``.
        folders: Where to look for the file; the first one counts.

    Raises:
        DataError: No folder holds it (``subject`` is the name), or it is damaged, or holds something else.
    """
    found = [file for folder in folders for file in sorted(folder.glob(PATTERN))]
    if not found:
        looked = ", ".join(map(str, folders)) or "no folder: none is named"
        raise DataError(
            f"Data set {name!r} is read from cue_conflict_64.npz, which is in none of these folders: {looked}. {FORM}. "
            "Put it into a folder, and name the folder by root or COMPATKIT_DATA.",
            subject=name,
        )
    file = found[0]
    kind = name.removeprefix("cue-conflict").strip("-") or "cue_conflict"
    with opened(file) as pack:
        classes = class_names(pack, file)
        images, labels = (array(pack, f"cue_conflict_{one}", file, form=FORM) for one in ("x", "shape"))
        others = [array(pack, f"{kind}_{one}", file, form=FORM) for one in ("x", "shape")]
    try:
        whole = Split(images, labels, classes, f"{name}/train")
        test = _for_testing(whole)
        training = ~test
        tested = (images[test], labels[test]) if kind == "cue_conflict" else (others[0], others[1])
        return DataSet.of(name, (images[training], labels[training]), tested, classes)
    except DataError as error:
        raise DataError(f"{file}: {error}", subject=file) from error


def _for_testing(whole: Split) -> NDArray[Any]:
    """Return which images are for testing: of every class one in eight, always the same."""
    draw = np.random.default_rng(0)
    test = np.zeros(len(whole), dtype=bool)
    for label in range(len(whole.classes)):
        mine = np.flatnonzero(whole.labels == label)
        test[draw.permutation(mine)[: len(mine) // TEST_SHARE]] = True
    return test
