"""Images of which no label is known: a folder of image files, or a pack that holds images alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from compatkit.data.checking import LARGEST_SIDE
from compatkit.data.files import ENDINGS, image_files, listed
from compatkit.data.kinds import kind_of
from compatkit.data.lazy import FORMATS, LazyImages
from compatkit.data.packs import images_of, opened, stem
from compatkit.data.split import NO_CLASSES, Split
from compatkit.data.transforms import Images
from compatkit.errors import DataError, EnvironmentFailure

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {"L": "L", "1": "L", "RGB": "RGB", "P": "RGB"}
"""How a file's pixels are taken, by their mode; transparency and more than eight bits are refused."""


def read_unlabelled(path: str | os.PathLike[str], *, name: str | None = None) -> Split:
    """Read the images of a folder, or the training images of a pack; labels are not looked at.

    Args:
        path: A folder, whose image files are read when they are asked for, in the order of their names, those of its
            folders included; or an ``.npz`` file with ``x_train`` (or ``webp_train`` and ``len_train``).
        name: Of the images; that of the folder or file by default.

    Raises:
        DataError: Nothing is there, or the pack is damaged.
        EnvironmentFailure: The system does not let it be read.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        root = place.resolve()
        return _bare(listed(root, files_of(root)), name or root.name, place)
    with opened(place) as pack:
        images = images_of(pack, "train", place)
    return _bare(images, name or f"{stem(place)}/train", place)


def is_bare(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a pack of images without all that a data set has: labels and classes of both splits.

    Raises:
        DataError: The file is damaged or no pack. One that does not exist is left to who reads it.
    """
    place = Path(path).expanduser()
    if not place.is_file():
        return False
    with opened(place) as pack:
        held = set(pack.files)
    return bool(held & {"x_train", "webp_train"}) and not {"y_train", "y_test", "classes"} <= held


def is_flat(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder of image files that no class folders divide."""
    place = Path(path).expanduser()
    return place.is_dir() and kind_of(place) == "flat"


def _bare(images: Images | LazyImages, name: str, place: Path) -> Split:
    try:
        return Split(images, np.zeros(len(images), dtype=np.int64), NO_CLASSES, name)
    except DataError as error:
        raise DataError(f"{place}: {error}", subject=place) from error


def files_of(folder: Path) -> list[str]:
    """Return the paths of the image files of a folder and of those in it, in the order of their names.

    Raises:
        DataError: There is none.
        EnvironmentFailure: It cannot be read.
    """
    files = sorted(image_files(folder))
    if not files:
        raise DataError(
            f"{folder} holds no images: expected files that end in {', '.join(ENDINGS)}.", subject=folder
        )
    return files


def read_image(file: Path) -> Images:
    """Return the pixels of a file, uint8 ``(height, width, 1 or 3)``.

    Raises:
        DataError: It is no readable image, has more than eight bits or transparency, or is too large.
        EnvironmentFailure: The system does not let it be read.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=FORMATS) as image:
            return pixels_of(image, file)
    except DataError:
        raise
    except PermissionError as error:
        raise EnvironmentFailure(f"{file} cannot be read: {error.strerror}. Check its rights.") from error
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
    ) as error:
        raise DataError(f"{file} is no readable image: {error}", subject=file) from error


def pixels_of(image: Image, owner: Path | str) -> Images:
    """Return the pixels of a PIL image, uint8 ``(height, width, 1 or 3)``.

    Args:
        image: Of any mode.
        owner: Its file, for messages.

    Raises:
        DataError: It has more than eight bits or transparency, or is too large.
    """
    if max(image.size) > LARGEST_SIDE:
        raise DataError(
            f"{owner} has {image.size[1]} x {image.size[0]} pixels, more than {LARGEST_SIDE} on a side. Scale it down "
            "first.",
            subject=owner,
        )
    if image.mode not in MODES:
        raise DataError(
            f"{owner} has mode {image.mode}; expected 8-bit grey or RGB. "
            + (
                "Scale its values to 0 to 255 and save them as 8 bits: image.convert('RGB') would clip them."
                if image.mode.startswith(("I", "F"))
                else "Convert it first: image.convert('RGB'), which drops transparency."
            ),
            subject=owner,
        )
    pixels = np.asarray(image.convert(MODES[image.mode]))
    return cast("Images", pixels[..., None] if pixels.ndim == 2 else pixels)
