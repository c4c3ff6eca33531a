"""Which images are fitted on, trained on with labels, held out to choose by, and paired for their features."""

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
"""Where features are paired: on images of the extractor's domain, of the head's, or on as many of both."""
HELD_OUT = 500
"""Images that agreement is measured on at most; half of those given where there are fewer."""
LEAST = 20
"""Images without labels: ten to fit on, and ten to choose by."""
FEWEST = 2
"""Images of the head's domain that features are paired on."""
CHECKED = 5
"""One labelled image of five is not trained on, to see whether labels helped."""
LEAST_LABELLED, LEFT = 10, 2
"""Labelled images in all, and those of them that are left to train on: statistics of a batch are of two or more."""


def drawn(data: Split, seed: int, without: Container[bytes] = ()) -> NDArray[np.int64]:
    """Return an order of a data set's images in which equal ones occur once.

    What is chosen by would else be what was fitted to: a copy of an image, and not a further one.

    Args:
        data: Images.
        seed: Of the order.
        without: Digests of images that are left out.
    """
    found, first, known = data.image_digests, dict[bytes, int](), list[int]()
    for place in np.random.default_rng(seed).permutation(len(data)).tolist():
        if found[place] not in without and first.setdefault(found[place], place) == place:
            known.append(place)
    return np.array(known, dtype=np.int64)


def repeated(data: Split) -> str:
    """Return a sentence on images that occur more than once; empty where none does."""
    count = len(data) - len(set(data.image_digests))
    return (
        f"{count:,} of the {len(data):,} images of {data.name} are copies of others and are left out."
        if count
        else ""
    )


def counted(data: Split, order: NDArray[np.int64], what: str = "images") -> str:
    """Return how many images there are, and how many different ones were drawn, in words."""
    different = "" if len(order) == len(data) else f", {len(order)} of them different"
    return f"{len(data)} {what}{different}"


def divided(data: Split, images: int, seed: int) -> tuple[Split, Split]:
    """Return images to fit on and images to choose by, drawn apart; of equal images one.

    Raises:
        DataError: There are too few.
    """
    order = drawn(data, seed)
    if len(order) < LEAST:
        raise DataError(
            f"{data.name} has {counted(data, order)}; a bridge needs {LEAST} at least, half of them to choose by."
        )
    plain, held = data.unlabelled(), min(HELD_OUT, len(order) // 2)
    return plain.take(order[held : held + images]), plain.take(order[:held])


def pairing(fit: Split, other: Split | None, images: int, on: On, seed: int, held: Split) -> Split:
    """Return the images on which features are paired.

    Args:
        fit: Images of the extractor's domain.
        other: Images of the head's domain, or None.
        images: How many of the head's at most, where they stand alone.
        on: Where features are paired; ``"mix"`` takes as many of both, however few the head's are.
        seed: Of the draw.
        held: Images that are chosen by; where the head's are among them, they are left out.

    Raises:
        DataError: There are too few of the head's.
    """
    if other is None:
        return fit
    plain, order = other.unlabelled(), drawn(other, seed, set(held.image_digests))
    if len(order) < FEWEST:
        raise DataError(
            f"{other.name} has {len(other)} images, {len(order)} of them different and not among those of {fit.name} "
            f"that are held out to choose by; features are paired on {FEWEST} at least. Pass more, or others."
        )
    if on == "dst":
        return plain.take(order[:images])
    half = min(len(fit) // 2, len(order))
    theirs = plain.take(order[:half]).converted(fit.channels)
    if fit.size is not None:
        theirs = theirs.resized(fit.size)
    both = np.concatenate([fit.read(range(half)), theirs.read(range(half))])
    return attrs.evolve(
        fit, images=both, labels=np.zeros(len(both), dtype=np.int64), name=f"{fit.name}+{plain.name}"
    )


def parted(labels: Split, head: Component, held: Split, seed: int) -> tuple[Split, list[int], Split]:
    """Return labelled images to train on, and others to see what it gave.

    An image that agreement is measured on is never trained on, also where it is among the labelled ones: such images
    are the first that are kept apart. Of equal images one is used.

    Args:
        labels: Labelled images.
        head: Says which classes it tells apart.
        held: Images that agreement is measured on.
        seed: Of the draw.

    Returns:
        Images to train on, the head's output that each of them should give, and images to see what it gave.

    Raises:
        DataError: There are too few, or classes that the head does not know.
    """
    outputs = dict(classes_of(labels, head))
    missing = [
        name for place, name in enumerate(labels.classes) if place not in outputs and labels.counts[place]
    ]
    if missing:
        raise DataError(
            f"{labels.name} has images of {', '.join(missing)}, which {head.reference} does not tell apart. "
            "Leave these images out.",
            subject=missing,
        )
    order = drawn(labels, seed)
    if (count := len(order)) < LEAST_LABELLED:
        told = counted(labels, order, "labelled images")
        raise DataError(f"{labels.name} has {told}; training a bridge takes {LEAST_LABELLED} at least.")
    known, found = set(held.image_digests), labels.image_digests
    among = np.array([found[place] in known for place in order])
    order = np.concatenate([order[among], order[~among]])
    apart = max(count // CHECKED, int(among.sum()))
    if count - apart < LEFT:
        raise DataError(
            f"{int(among.sum())} of the {count} labelled images of {labels.name} are among those held out to choose "
            f"by, which leaves {count - apart} to train on; it takes {LEFT} at least. Pass more labelled images, or "
            "others."
        )
    used = labels.take(order[apart:])
    return used, [outputs[int(one)] for one in used.labels], labels.take(order[:apart])
