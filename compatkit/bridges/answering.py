"""How well a bridge does: whether it answers as the head's own network does, and whether it is right."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit.bridges.candidate import Candidate
from compatkit.bridges.ground import Ground
from compatkit.data.classes import common, label
from compatkit.data.split import Split
from compatkit.errors import DataError
from compatkit.evaluation.cells import Figure
from compatkit.evaluation.figures import Tally
from compatkit.evaluation.matrix import LoadedPart
from compatkit.evidence import figure, paired_interval_of_counts

ONE_CLASS = 0.9
"""Share of one answer from which the head's own network tells nothing of the images."""


@attrs.frozen(eq=False)
class Reference:
    """What the head's own network answers on the images that agreement is measured on.

    Attributes:
        answers: Classes, int64 ``(n,)``.
        largest: Share of its most frequent answer.
    """

    answers: Tensor
    largest: float

    @classmethod
    def of(cls, logits: Tensor) -> Reference:
        """Return what logits answer.

        Raises:
            DataError: They are not finite.
        """
        if not bool(torch.isfinite(logits).all()):
            raise DataError(
                "The head's own network gives outputs that are not finite on these images, so that nothing can agree "
                "with it; look at its weights."
            )
        answers = logits.argmax(dim=1)
        return cls(answers, float(answers.bincount().max()) / len(answers))

    def agreeing(self, candidate: Candidate, ground: Ground) -> Tensor:
        """Return of which images a bridge says the same, bool ``(n,)``; outputs that are not finite agree with none."""
        logits = candidate.answers(ground.held_features)
        return (logits.argmax(dim=1) == self.answers) & torch.isfinite(logits).all(dim=1)


def share(right: Tensor) -> Figure:
    """Return a share with its interval."""
    return figure(int(right.sum()), len(right))


def falls(after: Tensor, before: Tensor) -> bool:
    """Tell whether fewer agree than before, beyond what the images leave open."""
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return paired_interval_of_counts(gained, lost, len(after))[1] < 0


def accuracy(logits: Tensor, images: Split, head: LoadedPart) -> Figure:
    """Return the accuracy on images of the classes that the head knows too, among these classes.

    Args:
        logits: Of all images, in their order.
        images: With labels.
        head: Says which outputs mean which classes.

    Raises:
        DataError: No image is of such a class.
    """
    pairs = classes_of(images, head)
    tally = Tally.start(torch.from_numpy(images.labels), pairs, len(images.classes))
    tally.add(torch.arange(len(images)), logits)
    if not tally.count:
        raise DataError(f"{images.name} holds no image of a class that {head.reference} knows.")
    return figure(tally.correct()[0], tally.count)


def classes_of(images: Split, head: LoadedPart) -> list[tuple[int, int]]:
    """Return classes of images with the head's outputs that mean the same.

    Raises:
        DataError: They have none in common.
    """
    known = head.manifest.contract.data.labels or ()
    pairs = common(
        tuple(map(label, images.classes)), known, whose=(f"the classes of {images.name}", head.reference)
    )
    if not pairs:
        told = ", ".join(one.name for one in known) or "classes without names"
        raise DataError(
            f"{images.name} has the classes {', '.join(images.classes)}, and {head.reference} tells apart {told}: none "
            "in common. Leave the labels out: features are bridged without them.",
            subject=head.reference,
        )
    return pairs
