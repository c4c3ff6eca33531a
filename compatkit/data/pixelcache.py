"""Decoded images of a split in one file of the user's cache folder, which is mapped and not read.

``pixels`` holds the images one after the other, ``sizes.npy`` their heights, widths and channels. The latter is written
last: where it is missing, or the two do not fit, both are written again.
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

KEPT = 8
"""Number of splits whose images stay in the cache folder; the least recently used are removed."""


@attrs.frozen(eq=False)
class Pixels:
    """Images of a mapped file; another process that is sent them maps the file itself.

    Attributes:
        place: Folder of the file.
        values: All of them, uint8.
        sizes: Height, width and channels of each, int64 ``(n, 3)``.
        ends: Where each ends, int64 ``(n,)``.
    """

    place: Path
    values: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    ends: NDArray[np.int64]

    def image(self, position: int) -> Image:
        """Return a Pillow image, in memory of its own."""
        size, end = self.sizes[position], int(self.ends[position])
        return as_image(self.values[end - int(size.prod()) : end].reshape(size))

    def __reduce__(self) -> tuple[Any, ...]:
        """Be sent as the name of the file, and not as its bytes."""
        return _mapped, (self.place, len(self.sizes))


def folder() -> Path:
    """Return where decoded images are kept."""
    return above() / "pixels"


def fits(split: Split) -> bool:
    """Return whether images of one size take at most half of what is free in the cache folder's file system."""
    existing = next(path for path in (folder(), *folder().parents) if path.exists())
    size = split.size or (0, 0)
    return (
        len(split) * size[0] * size[1] * (1 if split.channels == "L" else 3)
        <= shutil.disk_usage(existing).free // 2
    )


def decoded_once(split: Split) -> Pixels | None:
    """Return the images of a split from the cache folder, into which they are written first if they are not there.

    Of several processes one writes and the others wait. Where they cannot be written, that is one warning, and None.

    Raises:
        DataError: An image is damaged or gone.
        EnvironmentFailure: One cannot be read.
    """
    place = folder() / hashlib.sha256(f"{split.digest} {RULE}".encode()).hexdigest()[:32]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            pixels = _mapped(place, len(split))
            if pixels is None:
                _write(place, split)
                pixels = _mapped(place, len(split))
            else:
                os.utime(place)
        return pixels
    except OSError as error:
        warnings.warn(
            f"The decoded images of {split.name} cannot be kept in {place.parent} ({error.strerror or error}), and are "
            "decoded in every epoch. Free some space there, set COMPATKIT_CACHE to a folder of another disk, or "
            "Trainer(cache='off').",
            stacklevel=2,
        )
        return None


def _mapped(place: Path, count: int) -> Pixels | None:
    """Return what is there; None where it is not there, or not whole."""
    try:
        sizes = np.load(place / "sizes.npy", allow_pickle=False)
        values = np.memmap(place / "pixels", dtype=np.uint8, mode="r")
    except (FileNotFoundError, ValueError, EOFError):
        return None
    if sizes.shape != (count, 3) or sizes.dtype != np.int64 or len(values) != sizes.prod(axis=1).sum():
        return None
    return Pixels(place, values, sizes, np.cumsum(sizes.prod(axis=1)))


def _write(place: Path, split: Split) -> None:
    """Write the images of a split; remove those of splits that were used least recently."""
    others = sorted(
        (folder for folder in place.parent.iterdir() if folder.is_dir() and folder != place),
        key=lambda folder: folder.stat().st_mtime,
    )
    for folder in (place, *others[: max(0, len(others) + 1 - KEPT)]):
        shutil.rmtree(folder, ignore_errors=True)
    place.mkdir()
    try:
        sizes: list[tuple[int, ...]] = []
        with (place / "pixels").open("wb") as file, bar() as tell:
            for pixels in each(lambda number: pixels_of(split.image(number)), range(len(split))):
                file.write(np.ascontiguousarray(pixels).data)
                sizes.append(pixels.shape)
                tell(len(sizes), len(split), f"decoding {split.name} once")
            file.flush()
            os.fsync(file.fileno())
        np.save(place / "sizes.npy", np.array(sizes, dtype=np.int64))
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
