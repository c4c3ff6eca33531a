"""ScalarFlow: photographs of rising smoke, a folder of images for each capture.

Eckert, Um, Thuerey (2019), "ScalarFlow: A Large-Scale Volumetric Data Set of Real-World Scalar Transport Flows". Its
videos are kept as images here, ``scalar-flow/CAPTURE/*.png``: 2,500 of them, a tenth for training, in "Reviving
Autoencoder Pretraining", C.2. Whole captures are for training or for testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

from compatkit.data.dataset import DataSet
from compatkit.data.folders import read_folder
from compatkit.data.split import Split
from compatkit.errors import DataError

CLASSES = ("earlier", "later")


def scalar_flow(name: str, folders: Sequence[Path]) -> DataSet:
    """Return the images of captures in the order of their names; ``Task(size=64)`` brings them to one size.

    Args:
        name: Of the data set, and of its folder.
        folders: Where to look; the first one that holds it counts.

    Raises:
        DataError: No folder holds it, it has fewer than two captures, or it holds arrays in the place of images.
    """
    places = [folder / name for folder in folders]
    found = next((one for one in places if one.is_dir()), None)
    if found is None:
        raise DataError(
            f"Data set {name!r} is a folder of that name with a folder of images for each capture; it is none of "
            f"{', '.join(map(str, places)) or 'no folder: none is named'}. Name the folder around it by root or "
            "COMPATKIT_DATA.",
            subject=name,
        )
    if next(found.glob("sim_*/*/**/*.npz"), None) is not None:
        raise DataError(
            f"{found} holds arrays of numpy, as ScalarFlow is published; images are read, {name}/CAPTURE/*.png. Save "
            "what its cameras saw, input/cam/imgsUnproc_*.npz, as images.",
            subject=name,
        )
    whole = read_folder(found)
    if not isinstance(whole, Split) or len(whole.classes) < 2:
        raise DataError(
            f"{found} holds fewer than two captures, a folder each, or folders train and test. Whole captures are "
            "divided here: lay their folders side by side.",
            subject=name,
        )
    count = max(1, len(whole.classes) // 10)
    parts = []
    for part, chosen in (("train", whole.labels < count), ("test", whole.labels >= count)):
        labels = whole.labels[chosen]
        # earlier and later half of each capture
        rank = np.concatenate([np.arange(size) * 2 // size for size in np.bincount(labels) if size])
        split = whole.take(np.flatnonzero(chosen))
        parts.append(attrs.evolve(split, labels=rank, classes=CLASSES, name=f"{name}/{part}", sample=False))
    return DataSet(name, *parts)
