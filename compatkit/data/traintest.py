"""Divide images into training and test images if their source does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.split import Split
from compatkit.data.splitnames import EXPECTED, heldout_kind, split_kind, warn_unused
from compatkit.errors import DataError

SHARE = 0.1
"""Default share of each class that becomes test images."""


def hold_out(images: Split, share: float = SHARE, seed: int = 0) -> DataSet:
    """Hold out test images: the same share of each class, drawn by seed and class name.

    Args:
        images: All images, named ``NAME/train``.
        share: Share of each class, in (0, 1); at least one image and not all of them.
        seed: Random seed.

    Raises:
        DataError: A class has fewer than two images.
    """
    name = images.name.removesuffix("/train")
    test: list[NDArray[np.int64]] = []
    for label, (count, of_class) in enumerate(zip(images.counts, images.positions_by_class(), strict=True)):
        if count < 2:
            raise DataError(
                f"{name}: class {images.classes[label]!r} has {count} image; at least 2 are needed to hold one out. "
                "Add images, or remove the class.",
                subject=images.classes[label],
            )
        text = f"{seed} {images.classes[label]}".encode("utf-8", "surrogateescape")
        generator = np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
        test.append(generator.permutation(of_class)[: min(max(1, round(share * count)), count - 1)])
    test_positions = np.concatenate(test)
    train_positions = np.setdiff1d(np.arange(len(images)), test_positions)
    return _data_set(images, name, train_positions, test_positions)


def divide_by_name(images: Split, names: Sequence[str], name: str, source: object) -> DataSet:
    """Return training and test images by the name of each image's split; see ``splitnames``.

    Args:
        images: All images.
        names: Name of the split of each image.
        name: Name of the data set.
        source: File that holds the names, for messages.

    Raises:
        DataError: A name is unknown, training or test images are missing, or a class has no training image.
    """
    kinds = {text: split_kind(text) for text in dict.fromkeys(names)}
    unknown = next((text for text, kind in kinds.items() if kind is None), None)
    known = {kind: text for text, kind in kinds.items() if kind is not None}
    test_kind = heldout_kind(known)
    if unknown is not None or test_kind is None or "train" not in known:
        reason = f"got {unknown!r:.40}" if unknown is not None else f"got only {', '.join(sorted(kinds))}"
        raise DataError(
            f"{source}: expected the splits {EXPECTED}; {reason}. Without splits, a share is held out.",
            subject=unknown,
        )
    warn_unused(known, source)
    image_kinds = np.array([kinds[text] for text in names])
    data = _data_set(images, name, *(np.flatnonzero(image_kinds == kind) for kind in ("train", test_kind)))
    empty = [label for label, count in zip(data.classes, data.train.counts, strict=True) if not count]
    if empty:
        raise DataError(
            f"{source}: {len(empty)} classes have no training image, such as {empty[0]!r}. Add some, or remove the "
            "classes.",
            subject=empty[0],
        )
    return data


def _data_set(
    images: Split, name: str, train_positions: NDArray[np.int64], test_positions: NDArray[np.int64]
) -> DataSet:
    train, test = (
        attrs.evolve(images.take(positions).renamed(f"{name}/{split}"), sample=False)
        for split, positions in (("train", train_positions), ("test", test_positions))
    )
    return DataSet(name, train, test)
