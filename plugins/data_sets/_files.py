"""Find the files of a published data set, and bring images to one size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compatkit.errors import DataError

Root = str | os.PathLike[str] | None
"""A folder of data sets; None for that of the environment variable ``COMPATKIT_DATA``, if it is set."""


def folder_of(root: Root) -> Path | None:
    """Return the folder of data sets, or None."""
    folder = os.environ.get("COMPATKIT_DATA") if root is None else root
    return Path(folder).expanduser() if folder else None


def find_files(name: str, patterns: Sequence[str], root: Root) -> list[Path]:
    """Return the files that match the first pattern with any match, sorted.

    Args:
        name: Name of the data set, for the message.
        patterns: Globs relative to the folder.
        root: Folder of data sets.

    Raises:
        DataError: No file matches (``subject`` is the name).
    """
    folder = folder_of(root)
    for pattern in patterns:
        if folder is not None and (files := sorted(folder.glob(pattern))):
            return files
    raise missing(name, " or ".join(patterns), root)


def missing(name: str, files: str, root: Root) -> DataError:
    """Return the error that a data set is not in the folder, which says what to put there.

    Args:
        name: Name of the data set.
        files: The files or folders that it is read from.
        root: Folder of data sets.
    """
    folder = folder_of(root)
    return DataError(
        f"Data set {name!r} is read from {files}, which {f'{folder} does not hold' if folder else 'needs a folder'}. "
        "Put them into a folder, and name the folder by root or COMPATKIT_DATA.",
        subject=name,
    )


def resized(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Return a square gray or RGB image at ``size`` x ``size`` by a Lanczos filter, ``(size, size, channels)``."""
    pixels = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
    return pixels if pixels.ndim == 3 else pixels[..., None]
