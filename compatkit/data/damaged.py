"""Leave damaged images out: all are decoded once, and what was found is remembered for these very bytes."""

from __future__ import annotations

import hashlib

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import recalled, remember
from compatkit.data.dataset import DataSet
from compatkit.data.decoding import RULE, decoded
from compatkit.data.lazy import LazyImages
from compatkit.data.split import Split
from compatkit.errors import DamagedImage, DataError
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

DAMAGED = ("refuse", "skip")
"""What may be done about damaged images: fail when one is read, or leave it out."""


def check_damaged(word: object) -> str:
    """Return what is to be done about damaged images: one of ``DAMAGED``.

    Raises:
        DataError: It is another word.
    """
    if not isinstance(word, str) or word not in DAMAGED:
        raise DataError(f"damaged is {' or '.join(DAMAGED)}, got {word!r}.", subject=word)
    return word


def readable(data: DataSet | Split, progress: Progress | None = None) -> DataSet | Split:
    """Return the images that can be decoded; ``Split.damaged`` counts those left out.

    Args:
        data: Images.
        progress: Called with images decoded, all images, and a description.

    Raises:
        DataError: A class has no other images, or a file is gone.
        EnvironmentFailure: A file cannot be read.
    """
    if isinstance(data, DataSet):
        return DataSet(data.name, *(readable_split(split, progress) for split in (data.train, data.test)))
    return readable_split(data, progress)


def readable_split(data: Split, progress: Progress | None = None) -> Split:
    """Return the images of a split that can be decoded; see ``readable``."""
    lost = damaged(data, progress)
    if not lost.any():
        return data
    intact = data.take(np.flatnonzero(~lost))
    empty = [
        name
        for name, before, now in zip(data.classes, data.counts, intact.counts, strict=True)
        if before and not now
    ]
    if empty:
        raise DataError(
            f"{data.name}: all images of class {empty[0]!r} are damaged. Fetch them again, or remove the class.",
            subject=empty[0],
        )
    return attrs.evolve(intact, sample=data.sample, damaged=int(lost.sum()))


def damaged(split: Split, progress: Progress | None = None) -> NDArray[np.bool_]:
    """Return a mask of the images that cannot be decoded, bool ``(n,)``.

    Args:
        split: Images; those in memory are never damaged.
        progress: Called as images are read.

    Returns:
        True where decoding fails.
    """
    from PIL import __version__

    if not isinstance(images := split.images, LazyImages):
        return np.zeros(len(split), dtype=np.bool_)
    hashed = hashlib.sha256(f"{__version__} {RULE}".encode())
    hashed.update(b"".join(split.digest_images(progress)))
    key = hashed.hexdigest()[:32]
    known = recalled(key).get("broken")
    if known is not None and known.dtype == np.bool_ and known.shape == (len(split),):
        return known

    def fails(place: int) -> bool:
        data = images.reader.read(place)
        try:
            decoded(data, images.reader.name(place))
        except DamagedImage:
            return True
        return False

    broken = np.zeros(len(split), dtype=np.bool_)
    with bar(progress) as tell:
        for place, lost in enumerate(each(fails, map(int, images.positions))):
            broken[place] = lost
            tell(place + 1, len(split), "decoding images")
    remember(key, broken=broken)
    return broken
