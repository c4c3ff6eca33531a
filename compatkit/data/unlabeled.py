"""Images of which no label is known: a folder of image files, or a pack that holds images alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from compatkit.data.damaged import check_damaged, readable_split
from compatkit.data.formats import kind_of
from compatkit.data.imagefiles import ENDINGS
from compatkit.data.lazy import LazyImages
from compatkit.data.listing import listing
from compatkit.data.npz import images_of, opened, stem
from compatkit.data.split import NO_CLASSES, Split
from compatkit.data.transforms import Images
from compatkit.errors import DataError
from compatkit.foundation.addresses import local


def read_unlabeled(
    path: str | os.PathLike[str], *, name: str | None = None, damaged: str = "refuse"
) -> Split:
    """Read the images of a folder, or the training images of a pack; labels are ignored.

    Args:
        path: A folder, whose image files are read when they are asked for, in the order of their names, those of its
            folders included; or an ``.npz`` file with ``x_train`` (or ``webp_train`` and ``len_train``).
        name: Of the images; that of the folder or file by default.
        damaged: As for ``load``.

    Raises:
        DataError: Nothing is there, or the pack is damaged.
        EnvironmentFailure: It cannot be read.
    """
    check_damaged(damaged)
    place = Path(local(path, "a folder or file of images")).expanduser()
    if place.is_dir():
        root = place.resolve()
        split = _bare(images_in(root), name or root.name, place)
        return readable_split(split) if damaged == "skip" else split
    with opened(place) as pack:
        images = images_of(pack, "train", place)
    return _bare(images, name or f"{stem(place)}/train", place)


def is_bare(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a pack of images that lacks labels and classes of both splits.

    A pack with images of other parts, such as ``x_val``, does not count: they would be dropped silently.

    Raises:
        DataError: The file is damaged or no pack. A missing file is left to the reader.
    """
    place = Path(path).expanduser()
    if not place.is_file():
        return False
    with opened(place) as pack:
        keys = set(pack.files)
    images = {key for key in keys if key.lower().startswith(("x_", "webp_"))}
    known = {"x_train", "webp_train", "x_test", "webp_test"}
    return (
        bool(keys & {"x_train", "webp_train"})
        and images <= known
        and not {"y_train", "y_test", "classes"} <= keys
    )


def is_flat(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder of image files that no class folders divide."""
    place = Path(path).expanduser()
    return place.is_dir() and kind_of(place) == "flat"


def _bare(images: Images | LazyImages, name: str, place: Path) -> Split:
    try:
        return Split(images, np.zeros(len(images), dtype=np.int64), NO_CLASSES, name)
    except DataError as error:
        raise DataError(f"{place}: {error}", subject=place) from error


def images_in(folder: Path) -> LazyImages:
    """Return the image files of a folder, resolved, and of those in it, in the order of their names.

    Raises:
        DataError: There is none.
        EnvironmentFailure: It cannot be read.
    """
    files = listing(folder, [""])
    if not len(files.names):
        advice = files.left_out.advice(f"Expected are files that end in {', '.join(ENDINGS)}.")
        raise DataError(f"{folder} holds no images. {advice}", subject=folder)
    files.left_out.tell(folder)
    return files.images
