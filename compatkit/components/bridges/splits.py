"""Splits of a bridge's images: for fitting, training with labels, choosing a rung, and pairing features."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.components.bridges.judging import classes_of
from compatkit.data.split import Split
from compatkit.errors import DataError
from compatkit.evaluation.component import Component

On = Literal["src", "dst", "mix"]
"""Where features are paired: images of the extractor's domain, of the head's, or equally many of both."""
HELD_OUT = 500
"""Maximum number of images held out for agreement; at most half of the images."""
MIN_IMAGES = 20
"""Minimum number of unlabeled images: ten to fit on and ten to choose by."""
MIN_PAIRED = 2
"""Minimum number of images of the head's domain for pairing features."""
CHECK_FRACTION = 5
"""One in five labeled images is held out from training, to see whether labels helped."""
MIN_LABELED, MIN_TRAINING = 10, 2
"""Minimum numbers of labeled images in all, and for training: batch statistics need two."""


def shuffled_unique(data: Split, seed: int, without: Container[bytes] = ()) -> NDArray[np.int64]:
    """Return a random order of a data set's images without duplicates.

    With duplicates, a copy of an image that is fitted to could be held out.

    Args:
        data: Images.
        seed: Seed of the order.
        without: Digests of images to leave out.

    Returns:
        Indices, int64 ``(n,)``.
    """
    digests, first, unique = data.image_digests, dict[bytes, int](), list[int]()
    for index in np.random.default_rng(seed).permutation(len(data)).tolist():
        if digests[index] not in without and first.setdefault(digests[index], index) == index:
            unique.append(index)
    return np.array(unique, dtype=np.int64)


def duplicates_note(data: Split) -> str:
    """Return a sentence on duplicate images, or empty."""
    count = len(data) - len(set(data.image_digests))
    return (
        f"{count:,} of the {len(data):,} images of {data.name} are copies of others and are left out."
        if count
        else ""
    )


def count_text(data: Split, order: NDArray[np.int64], what: str = "images") -> str:
    """Describe how many images there are, and how many are different.

    Args:
        data: Images.
        order: Indices of the distinct images.
        what: Word for the images in the text.
    """
    different = "" if len(order) == len(data) else f", {len(order)} of them different"
    return f"{len(data)} {what}{different}"


def split_held_out(data: Split, max_images: int, seed: int) -> tuple[Split, Split]:
    """Return distinct images to fit on and images to hold out.

    Args:
        data: Unlabeled images.
        max_images: Maximum number of images to fit on.
        seed: Seed of the draw.

    Raises:
        DataError: There are too few.
    """
    order = shuffled_unique(data, seed)
    if len(order) < MIN_IMAGES:
        raise DataError(
            f"{data.name} has {count_text(data, order)}; a bridge needs at least {MIN_IMAGES}: half to fit on, half to "
            "choose by."
        )
    plain, count = data.unlabeled(), min(HELD_OUT, len(order) // 2)
    return plain.take(order[count : count + max_images]), plain.take(order[:count])


def pairing_images(
    fit: Split, other: Split | None, max_images: int, on: On, seed: int, held_out: Split
) -> Split:
    """Return the images on which features are paired.

    Args:
        fit: Images of the extractor's domain.
        other: Images of the head's domain, or None.
        max_images: Maximum number of images of the head's domain with ``"dst"``.
        on: Images on which features are paired; ``"mix"`` uses equally many images of both domains.
        seed: Seed of the draw.
        held_out: Held-out images, which are excluded from ``other``.

    Raises:
        DataError: There are too few images of the head's domain.
    """
    if other is None:
        return fit
    plain, order = other.unlabeled(), shuffled_unique(other, seed, set(held_out.image_digests))
    if len(order) < MIN_PAIRED:
        raise DataError(
            f"{other.name} has {len(other)} images, {len(order)} of them different and not held out in {fit.name}; "
            f"pairing features needs at least {MIN_PAIRED}. Pass more, or others."
        )
    if on == "dst":
        return plain.take(order[:max_images])
    half = min(len(fit) // 2, len(order))
    theirs = plain.take(order[:half]).converted(fit.channels)
    if fit.size is not None:
        theirs = theirs.resized(fit.size)
    both = np.concatenate([fit.read(range(half)), theirs.read(range(half))])
    return attrs.evolve(
        fit, images=both, labels=np.zeros(len(both), dtype=np.int64), name=f"{fit.name}+{plain.name}"
    )


def split_labeled(
    labels: Split, head: Component, held_out: Split, seed: int
) -> tuple[Split, list[int], Split]:
    """Split labeled images into those to train on and those to check with.

    Images held out for agreement are never trained on; labeled ones among them are used for the check first. Duplicates
    are dropped.

    Args:
        labels: Labeled images.
        head: Component whose classes count.
        held_out: Images held out for agreement.
        seed: Seed of the draw.

    Returns:
        Images to train on, the wanted output of the head for each, and images to check with.

    Raises:
        DataError: There are too few, or they have classes that the head does not know.
    """
    outputs = dict(classes_of(labels, head))
    missing = [
        name for index, name in enumerate(labels.classes) if index not in outputs and labels.counts[index]
    ]
    if missing:
        raise DataError(
            f"{labels.name} has images of {', '.join(missing)}, which {head.reference} does not know. Leave these "
            "images out.",
            subject=missing,
        )
    order = shuffled_unique(labels, seed)
    if (count := len(order)) < MIN_LABELED:
        number = count_text(labels, order, "labeled images")
        raise DataError(f"{labels.name} has {number}; training a bridge takes at least {MIN_LABELED}.")
    held_out_digests, digests = set(held_out.image_digests), labels.image_digests
    is_held_out = np.array([digests[index] in held_out_digests for index in order])
    order = np.concatenate([order[is_held_out], order[~is_held_out]])
    check_count = max(count // CHECK_FRACTION, int(is_held_out.sum()))
    if count - check_count < MIN_TRAINING:
        raise DataError(
            f"{int(is_held_out.sum())} of the {count} labeled images of {labels.name} are held out to choose by, which "
            f"leaves {count - check_count} for training; at least {MIN_TRAINING} are needed. Pass more labeled "
            "images, or others."
        )
    used = labels.take(order[check_count:])
    return used, [outputs[int(label)] for label in used.labels], labels.take(order[:check_count])
