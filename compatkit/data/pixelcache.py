"""Decoded images of a split in one memory-mapped file of the user's cache folder.

``pixels`` contains the concatenated images, ``sizes.npy`` their heights, widths and channels. ``sizes.npy`` is written
last: if it is missing or does not match, both are written again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from compatkit.data.decoding import RULE
from compatkit.data.lazy import as_image, pixels_of
from compatkit.data.split import Split
from compatkit.foundation.bars import bar
from compatkit.foundation.cache import above
from compatkit.foundation.threads import each

if TYPE_CHECKING:
    from PIL.Image import Image

    from compatkit.data.transforms import Images

MAX_SPLITS = 8
"""Number of splits in the cache folder; the least recently used are removed."""


@attrs.frozen(eq=False)
class Pixels:
    """Images of a memory-mapped file; pickled as the path of the file.

    Attributes:
        path: Folder of the file.
        values: Concatenated pixels, uint8.
        sizes: Height, width and channels of each image, int64 ``(n, 3)``.
        ends: End of each image in ``values``, int64 ``(n,)``.
    """

    path: Path
    values: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    ends: NDArray[np.int64]

    def image(self, position: int) -> Image:
        """Return a copy of an image as a Pillow image."""
        return as_image(self.pixels(position))

    def pixels(self, position: int) -> Images:
        """Return an image as uint8 ``(height, width, channels)``, read when it is used."""
        size, end = self.sizes[position], int(self.ends[position])
        return self.values[end - int(size.prod()) : end].reshape(size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path instead of the pixels."""
        return _open, (self.path, len(self.sizes))


def folder() -> Path:
    """Return the folder of decoded images."""
    return above() / "pixels"


def fits(split: Split) -> bool:
    """Return whether images of one size take at most half of the free space of the cache folder's file system."""
    existing = next(path for path in (folder(), *folder().parents) if path.exists())
    height, width = split.size or (0, 0)
    n_bytes = len(split) * height * width * (1 if split.channels == "L" else 3)
    return n_bytes <= shutil.disk_usage(existing).free // 2


def decoded_once(split: Split) -> Pixels | None:
    """Return the images of a split from the cache folder; they are decoded and written on first use.

    Of several processes one writes and the others wait. If writing fails, warns and returns None.

    Raises:
        DataError: An image is damaged or missing.
        EnvironmentFailure: An image cannot be read.
    """
    path = folder() / hashlib.sha256(f"{split.digest} {RULE}".encode()).hexdigest()[:32]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            pixels = _open(path, len(split))
            if pixels is None:
                _write(path, split)
                pixels = _open(path, len(split))
            else:
                os.utime(path)
        return pixels
    except OSError as error:
        warnings.warn(
            f"The decoded images of {split.name} cannot be cached in {path.parent} ({error.strerror or error}); they "
            "are decoded in every epoch. Free some space, set COMPATKIT_CACHE to another disk, or use "
            "Trainer(cache='off').",
            stacklevel=2,
        )
        return None


def _open(path: Path, count: int) -> Pixels | None:
    """Map the images in a folder; return None if they are missing or incomplete."""
    try:
        sizes = np.load(path / "sizes.npy", allow_pickle=False)
        values = np.memmap(path / "pixels", dtype=np.uint8, mode="r")
    except (FileNotFoundError, ValueError, EOFError):
        return None
    if sizes.shape != (count, 3) or sizes.dtype != np.int64 or len(values) != sizes.prod(axis=1).sum():
        return None
    return Pixels(path, values, sizes, np.cumsum(sizes.prod(axis=1)))


def _write(path: Path, split: Split) -> None:
    """Write the images of a split; remove the least recently used splits."""
    others = [other for other in path.parent.iterdir() if other.is_dir() and other != path]
    others.sort(key=lambda other: other.stat().st_mtime)
    for old in (path, *others[: max(0, len(others) + 1 - MAX_SPLITS)]):
        shutil.rmtree(old, ignore_errors=True)
    path.mkdir()
    try:
        sizes: list[tuple[int, ...]] = []
        with (path / "pixels").open("wb") as file, bar() as report:
            for pixels in each(lambda number: pixels_of(split.image(number)), range(len(split))):
                file.write(np.ascontiguousarray(pixels).data)
                sizes.append(pixels.shape)
                report(len(sizes), len(split), f"decoding {split.name} once")
            file.flush()
            os.fsync(file.fileno())
        np.save(path / "sizes.npy", np.array(sizes, dtype=np.int64))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
