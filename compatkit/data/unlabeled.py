"""Images without labels: a folder of image files, or a pack that contains only images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from compatkit.data.damaged import check_damaged, skip_damaged_in_split
from compatkit.data.formats import folder_format
from compatkit.data.imagefiles import EXTENSIONS
from compatkit.data.lazy import LazyImages
from compatkit.data.listing import list_images
from compatkit.data.npz import images_of, open_pack, stem
from compatkit.data.split import NO_CLASSES, Split
from compatkit.data.transforms import Images
from compatkit.errors import DataError
from compatkit.foundation.addresses import local


def read_unlabeled(
    path: str | os.PathLike[str], *, name: str | None = None, damaged: str = "refuse"
) -> Split:
    """Read the images of a folder, or the training images of a pack; labels are ignored.

    Args:
        path: A folder, whose image files (also in its subfolders) are read on demand, in the order of their names; or
            an ``.npz`` file with ``x_train`` (or ``webp_train`` and ``len_train``).
        name: Name of the images; default: name of the folder or file.
        damaged: As for ``load``.

    Raises:
        DataError: The path does not exist, or the pack is damaged.
        EnvironmentFailure: It cannot be read.
    """
    check_damaged(damaged)
    path = Path(local(path, "a folder or file of images")).expanduser()
    if path.is_dir():
        root = path.resolve()
        split = _unlabeled(find_images(root), name or root.name, path)
        return skip_damaged_in_split(split) if damaged == "skip" else split
    with open_pack(path) as pack:
        images = images_of(pack, "train", path)
    return _unlabeled(images, name or f"{stem(path)}/train", path)


def is_unlabeled_pack(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a pack of images without labels and classes of both splits.

    A pack with images of other splits, such as ``x_val``, does not count, as they would be dropped silently.

    Raises:
        DataError: The file is damaged or not a pack.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        return False
    with open_pack(path) as pack:
        keys = set(pack.files)
    images = {key for key in keys if key.lower().startswith(("x_", "webp_"))}
    known = {"x_train", "webp_train", "x_test", "webp_test"}
    labeled = {"y_train", "y_test", "classes"} <= keys
    return bool(keys & {"x_train", "webp_train"}) and images <= known and not labeled


def is_image_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder of image files without class folders."""
    path = Path(path).expanduser()
    return path.is_dir() and folder_format(path) == "flat"


def _unlabeled(images: Images | LazyImages, name: str, path: Path) -> Split:
    try:
        return Split(images, np.zeros(len(images), dtype=np.int64), NO_CLASSES, name)
    except DataError as error:
        raise DataError(f"{path}: {error}", subject=path) from error


def find_images(folder: Path) -> LazyImages:
    """Return the image files of a resolved folder and its subfolders, in the order of their names.

    Raises:
        DataError: There are none.
        EnvironmentFailure: The folder cannot be read.
    """
    files = list_images(folder, [""])
    if not len(files.names):
        advice = files.skipped.advice(f"Expected files that end in {', '.join(EXTENSIONS)}.")
        raise DataError(f"{folder} holds no images. {advice}", subject=folder)
    files.skipped.warn(folder)
    return files.images
