"""Labelled images: those that rungs are trained with, and those kept apart to see what it gave."""

from __future__ import annotations

import numpy as np
import torch

from compatkit.components.bridges.answering import classes_of
from compatkit.components.bridges.dividing import counted, drawn
from compatkit.components.bridges.ground import Ground
from compatkit.components.bridges.passes import Passes
from compatkit.components.bridges.training import Labelled
from compatkit.data.split import Split
from compatkit.errors import DataError

CHECKED = 5
"""One labelled image of so many is not trained on, to see whether labels helped."""
LEAST, LEFT = 10, 2
"""Labelled images in all, and those of them that are left to train on: statistics of a batch are of two or more."""


def parted(ground: Ground, labels: Split) -> tuple[Labelled, tuple[Passes, Split]]:
    """Return labelled images to train on, and others to see what it gave.

    An image that agreement is measured on is never trained on, also where it is among the labelled ones: such images
    are the first that are kept apart. Of equal images one is used.

    Raises:
        DataError: There are too few, or classes that the head does not know.
    """
    outputs = dict(classes_of(labels, ground.head))
    missing = [
        name for place, name in enumerate(labels.classes) if place not in outputs and labels.counts[place]
    ]
    if missing:
        raise DataError(
            f"{labels.name} has images of {', '.join(missing)}, which {ground.head.reference} does not tell apart. "
            "Leave these images out.",
            subject=missing,
        )
    order = drawn(labels, ground.seed)
    if (count := len(order)) < LEAST:
        told = counted(labels, order, "labelled images")
        raise DataError(f"{labels.name} has {told}; training a bridge takes {LEAST} at least.")
    known, found = set(ground.held.image_digests), labels.image_digests
    held = np.array([found[place] in known for place in order])
    order = np.concatenate([order[held], order[~held]])
    apart = max(count // CHECKED, int(held.sum()))
    if count - apart < LEFT:
        raise DataError(
            f"{int(held.sum())} of the {count} labelled images of {labels.name} are among those held out to choose by, "
            f"which leaves {count - apart} to train on; it takes {LEFT} at least. Pass more labelled images, or others."
        )
    used, checks = labels.take(order[apart:]), labels.take(order[:apart])
    targets = torch.tensor([outputs[int(one)] for one in used.labels])
    return Labelled(ground.passes(used, None), targets), (ground.passes(checks, None), checks)
