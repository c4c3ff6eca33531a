"""ScalarFlow: photographs of rising smoke, a folder of images for each capture.

Eckert, Um, Thuerey (2019), "ScalarFlow: A Large-Scale Volumetric Data Set of Real-World Scalar Transport Flows". Its
videos are kept as images here, ``scalar-flow/CAPTURE/*.png``: 2,500 of them, a tenth for training, in "Reviving
Autoencoder Pretraining", C.2. Whole captures are for training or for testing.
"""

from __future__ import annotations

import attrs
import numpy as np

import compatkit as ck
from compatkit import DataSet, Split, hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ._files import Root, folder_of, missing

compatkit_api = 1
NAME = "scalar-flow"
CLASSES = ("earlier", "later")


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``scalar-flow``."""
    register(NAME, scalar_flow)


def scalar_flow(root: Root = None, download: bool = False) -> DataSet:
    """Return the images of captures in the order of their names; ``Task(size=64)`` brings them to one size.

    Args:
        root: Folder that holds a folder ``scalar-flow``.
        download: Without effect.

    Raises:
        DataError: There is no such folder, it has fewer than two captures, or it holds arrays instead of images.
    """
    around = folder_of(root)
    if around is None or not (around / NAME).is_dir():
        raise missing(NAME, f"a folder {NAME} with a folder of images for each capture", root)
    folder = around / NAME
    if next(folder.glob("sim_*/*/**/*.npz"), None) is not None:
        raise DataError(
            f"{folder} holds numpy arrays, as ScalarFlow is published; images are read, {NAME}/CAPTURE/*.png. Save "
            "what its cameras recorded, input/cam/imgsUnproc_*.npz, as images.",
            subject=NAME,
        )
    images = ck.data.read_folder(folder)
    if not isinstance(images, Split) or len(images.classes) < 2:
        raise DataError(
            f"{folder} needs two folders of images at least, one for each capture, side by side, without folders "
            "train and test around them.",
            subject=NAME,
        )
    count = max(1, len(images.classes) // 10)
    splits = []
    for part, chosen in (("train", images.labels < count), ("test", images.labels >= count)):
        sizes = np.bincount(images.labels[chosen])
        halves = np.concatenate([np.arange(size) * 2 // size for size in sizes if size])
        split = images.take(np.flatnonzero(chosen))
        splits.append(
            attrs.evolve(split, labels=halves, classes=CLASSES, name=f"{NAME}/{part}", sample=False)
        )
    return DataSet(NAME, *splits)
