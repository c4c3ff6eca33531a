"""Skip damaged images: all are decoded once, and the result is cached by the digests of their bytes."""

from __future__ import annotations

import hashlib

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import load, save
from compatkit.data.dataset import DataSet
from compatkit.data.decoding import RULE, decode
from compatkit.data.lazy import LazyImages
from compatkit.data.split import Split
from compatkit.errors import DamagedImage, DataError
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

DAMAGED = ("refuse", "skip")
"""Ways to handle damaged images: fail when one is read, or leave it out."""


def check_damaged(value: object) -> str:
    """Return an argument ``damaged``.

    Raises:
        DataError: It is not one of ``DAMAGED``.
    """
    if not isinstance(value, str) or value not in DAMAGED:
        raise DataError(f"damaged is {' or '.join(DAMAGED)}, got {value!r}.", subject=value)
    return value


def skip_damaged(data: DataSet | Split, progress: Progress | None = None) -> DataSet | Split:
    """Return the images that can be decoded; ``Split.damaged`` counts the others.

    Args:
        data: Images.
        progress: Called with images decoded, all images, and a description.

    Raises:
        DataError: A class has no other images, or a file is missing.
        EnvironmentFailure: A file cannot be read.
    """
    if isinstance(data, DataSet):
        return DataSet(
            data.name, *(skip_damaged_in_split(split, progress) for split in (data.train, data.test))
        )
    return skip_damaged_in_split(data, progress)


def skip_damaged_in_split(images: Split, progress: Progress | None = None) -> Split:
    """Return the images of a split that can be decoded; see ``skip_damaged``."""
    mask = damaged_mask(images, progress)
    if not mask.any():
        return images
    intact = images.take(np.flatnonzero(~mask))
    for name, before, after in zip(images.classes, images.counts, intact.counts, strict=True):
        if before and not after:
            raise DataError(
                f"{images.name}: all images of class {name!r} are damaged. Fetch them again, or remove the class.",
                subject=name,
            )
    return attrs.evolve(intact, sample=images.sample, damaged=int(mask.sum()))


def damaged_mask(split: Split, progress: Progress | None = None) -> NDArray[np.bool_]:
    """Return which images cannot be decoded, bool ``(n,)``.

    Args:
        split: Images; those in memory are never damaged.
        progress: Called with images decoded, all images, and a description.
    """
    from PIL import __version__

    if not isinstance(images := split.images, LazyImages):
        return np.zeros(len(split), dtype=np.bool_)
    hashed = hashlib.sha256(f"{__version__} {RULE}".encode())
    hashed.update(b"".join(split.digest_images(progress)))
    key = hashed.hexdigest()[:32]
    cached = load(key).get("broken")
    if cached is not None and cached.dtype == np.bool_ and cached.shape == (len(split),):
        return cached

    def fails(position: int) -> bool:
        data = images.reader.read(position)
        try:
            decode(data, images.reader.name(position))
        except DamagedImage:
            return True
        return False

    mask = np.zeros(len(split), dtype=np.bool_)
    with bar(progress) as report:
        for position, failed in enumerate(each(fails, map(int, images.positions))):
            mask[position] = failed
            report(position + 1, len(split), "decoding images")
    save(key, broken=mask)
    return mask
