"""Divide images into training and test images where their source does not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.split import Split
from compatkit.data.splitnames import EXPECTED, held_out, part_name, tell_unused
from compatkit.errors import DataError

SHARE = 0.1
"""Of each class, what becomes test images by default."""


def divided(whole: Split, share: float = SHARE, seed: int = 0) -> DataSet:
    """Divide images into training and test images: the same share of each class, drawn by seed and class name.

    Args:
        whole: All images, named ``NAME/train``.
        share: Of each class that becomes test images, above 0 and below 1; at least one image and not all.
        seed: Of the draw.

    Raises:
        DataError: A class has one image.
    """
    name = whole.name.removesuffix("/train")
    test: list[NDArray[np.int64]] = []
    for label, (count, of_class) in enumerate(zip(whole.counts, whole.positions_by_class(), strict=True)):
        if count < 2:
            raise DataError(
                f"{name}: class {whole.classes[label]!r} has {count} image, of which none can be held out to test. Add "
                "images, or remove the class.",
                subject=whole.classes[label],
            )
        word = f"{seed} {whole.classes[label]}".encode("utf-8", "surrogateescape")
        draw = np.random.default_rng(int.from_bytes(hashlib.sha256(word).digest()[:8], "big"))
        places = draw.permutation(of_class)
        test.append(places[: min(max(1, round(share * count)), count - 1)])
    test_positions = np.concatenate(test)
    rest = np.setdiff1d(np.arange(len(whole)), test_positions)
    train, held_out = (
        attrs.evolve(whole.take(positions), sample=False) for positions in (rest, test_positions)
    )
    return DataSet(name, train, held_out.renamed(f"{name}/test"))


def parted(whole: Split, written: Sequence[str], name: str, where: object) -> DataSet:
    """Return training and test images by what each image's part is called; see ``part_name``.

    Args:
        whole: All images.
        written: Name of each image's part.
        name: Of the data set.
        where: Of the list, for messages.

    Raises:
        DataError: A part is called otherwise, one of the two is missing, or a class has no training image.
    """
    parts = {word: part_name(word) for word in dict.fromkeys(written)}
    kinds = {word: part.kind for word, part in parts.items() if part is not None and part.plain}
    unknown = next((word for word in parts if word not in kinds), None)
    of_tests = held_out(kinds.values())
    if unknown is not None or of_tests is None or "train" not in kinds.values():
        reason = (
            f"there is {unknown!r:.40}"
            if unknown is not None
            else f"there is {', '.join(sorted(kinds))} alone"
        )
        raise DataError(
            f"{where}: the parts of its images are {EXPECTED}; {reason}. Leave the parts out to hold out a share.",
            subject=unknown,
        )
    tell_unused({kind: word for word, kind in kinds.items()}, where)
    of_image = np.array([kinds[word] for word in written])
    data = DataSet(
        name,
        whole.take(np.flatnonzero(of_image == "train")).renamed(f"{name}/train"),
        whole.take(np.flatnonzero(of_image == of_tests)).renamed(f"{name}/test"),
    )
    bare = [label for label, count in zip(data.classes, data.train.counts, strict=True) if not count]
    if bare:
        raise DataError(
            f"{where}: {len(bare)} classes have no training image, such as {bare[0]!r}. Remove them, or give some.",
            subject=bare[0],
        )
    return DataSet(name, *(attrs.evolve(split, sample=False) for split in (data.train, data.test)))
