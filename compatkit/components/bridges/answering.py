"""How well a bridge does: whether it answers as the head's own network does, and whether it is right."""

from __future__ import annotations

import torch
from torch import Tensor

from compatkit.components.bridges.candidate import Candidate
from compatkit.components.bridges.judging import NOT_FINITE, Judged, share
from compatkit.contracts.evidence import Figure
from compatkit.contracts.labels import known_classes
from compatkit.data.split import Split
from compatkit.errors import DataError
from compatkit.evaluation.figures import Tally
from compatkit.evaluation.matrix import LoadedPart


def wanted_answers(logits: Tensor) -> Tensor:
    """Return what the head's own network answers, classes as int64 ``(n,)``.

    Raises:
        DataError: Its logits are not finite.
    """
    if not bool(torch.isfinite(logits).all()):
        raise DataError(
            "The head's own network gives outputs that are not finite on these images, so that nothing can agree "
            "with it; look at its weights."
        )
    return logits.argmax(dim=1)


def held_answers(candidate: Candidate) -> Tensor:
    """Return what a bridge answers on held-out images, int64 ``(n,)``, through the adapters that it stands behind."""
    logits = candidate.answers(candidate.ground.held_features)
    return torch.where(torch.isfinite(logits).all(dim=1), logits.argmax(dim=1), NOT_FINITE)


def accuracy(logits: Tensor, images: Split, head: LoadedPart) -> Figure:
    """Return the accuracy on images of the classes that the head knows too, among these classes.

    Args:
        logits: Of all images, in their order.
        images: With labels.
        head: Says which outputs mean which classes.

    Raises:
        DataError: No image is of such a class.
    """
    return share(rightly(logits, images, head))


def rightly(logits: Tensor, images: Split, head: LoadedPart) -> Tensor:
    """Return whether each image is answered rightly, bool ``(n,)``, of the classes that the head knows too.

    Arguments and errors are those of ``accuracy``.
    """
    pairs = classes_of(images, head)
    tally = Tally.start(torch.from_numpy(images.labels), pairs, len(images.classes))
    tally.add(torch.arange(len(images)), logits)
    if not tally.count:
        raise DataError(f"{images.name} holds no image of a class that {head.reference} knows.")
    return tally.restricted[tally.counted]


def correctness(right: Tensor, images: Split) -> Judged:
    """Return how often a bridge is right; chance is the share of the most frequent class.

    Args:
        right: Of each image.
        images: With labels, of classes that the head knows.
    """
    largest = max(images.counts) / len(images)
    return Judged(share(right), largest, largest)


def classes_of(images: Split, head: LoadedPart) -> list[tuple[int, int]]:
    """Return classes of images with the head's outputs that mean the same.

    Raises:
        DataError: They have none in common.
    """
    known = head.manifest.contract.data.labels or ()
    pairs = shared(images, head)
    if not pairs:
        told = ", ".join(one.name for one in known) or "classes without names"
        raise DataError(
            f"{images.name} has the classes {', '.join(images.classes)}, and {head.reference} tells apart {told}: none "
            "in common. Leave the labels out: features are bridged without them.",
            subject=head.reference,
        )
    return pairs


def measurable(images: Split, head: LoadedPart) -> bool:
    """Tell whether an image is of a class that the head knows.

    Raises:
        DataError: Two classes have one name, or one means the same as two of the other side.
    """
    return any(images.counts[place] for place, _ in shared(images, head))


def shared(images: Split, head: LoadedPart) -> list[tuple[int, int]]:
    """Return classes of images with the head's outputs that mean the same; none where they have none in common."""
    known = head.manifest.contract.data.labels or ()
    return known_classes(images.classes, known, whose=(images.name, head.reference))
