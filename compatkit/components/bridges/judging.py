"""How well a bridge does: whether it answers as the head's own network does, and whether it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from compatkit.contracts.evidence import Figure, figure, paired_interval_of_counts
from compatkit.contracts.labels import known_classes
from compatkit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.data.split import Split
    from compatkit.evaluation.component import Component

Says = Literal["fit", "doubtful", "no fit"]
GO, NO_GO = 5 / 9, 1 / 45
"""Kappa from which a bridge fits, and up to which it does not: shares of .6 and .12 of ten classes of equal size."""
ONE_CLASS = 0.9
"""Share of one answer from which the answers that are wanted tell nothing of the images."""
NOT_FINITE = -1
"""Stands for the answer of outputs that are not all finite; it agrees with none."""


@attrs.frozen
class Judged:
    """How often a bridge answers as it should, on images that nothing was fitted to.

    Attributes:
        figure: The share of them.
        chance: The share that answers without regard to the images would reach.
        largest: Share of the most frequent of the answers that are wanted.
    """

    figure: Figure
    chance: float
    largest: float

    @property
    def kappa(self) -> float | None:
        """Share of the way from chance to 1 (Cohen 1960); None where chance reaches 1."""
        return self._of_the_way(self.figure.accuracy) if self.chance < 1 else None

    @property
    def says(self) -> Says:
        """Whether it fits: only where the whole interval says so, and never where one answer is all that is wanted."""
        if self.kappa is None or self.largest >= ONE_CLASS:
            return "doubtful"
        if self._of_the_way(self.figure.low) >= GO:
            return "fit"
        # The interval of what agrees by chance always crosses the lower bound; it must not reach the upper one.
        return "no fit" if self.kappa <= NO_GO and self._of_the_way(self.figure.high) < GO else "doubtful"

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the best of several last."""
        return (self.kappa or 0.0, self.figure.accuracy)

    def _of_the_way(self, share: float) -> float:
        return (share - self.chance) / (1 - self.chance)


def agreement(answers: Tensor, wanted: Tensor) -> Judged:
    """Return how often two networks answer alike.

    Chance is what independent answers with the same shares of classes would agree on: the sum over all classes of the
    product of their shares (Cohen 1960).

    Args:
        answers: Of a bridge, int64 ``(n,)``; ``NOT_FINITE`` where there is none.
        wanted: Of the head's own network on the same images.
    """
    count, outputs = len(wanted), int(max(answers.max(), wanted.max())) + 1
    given, asked = (one[one >= 0].bincount(minlength=outputs) for one in (answers, wanted))
    chance = int((given * asked).sum()) / count**2
    return Judged(share(answers == wanted), chance, largest(wanted))


def largest(answers: Tensor) -> float:
    """Return the share of the most frequent answer."""
    return int(answers.bincount().max()) / len(answers)


def share(right: Tensor) -> Figure:
    """Return a share with its interval."""
    return figure(int(right.sum()), len(right))


def falls(after: Tensor, before: Tensor) -> bool:
    """Tell whether fewer are right than before, beyond what the images leave open."""
    return _change(after, before)[1] < 0


def rises(after: Tensor, before: Tensor) -> bool:
    """Tell whether more are right than before, beyond what the images leave open."""
    return _change(after, before)[0] > 0


def _change(after: Tensor, before: Tensor) -> tuple[float, float]:
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return paired_interval_of_counts(gained, lost, len(after))


def wanted_answers(logits: Tensor) -> Tensor:
    """Return the answers of the head's own network, classes as int64 ``(n,)``.

    Raises:
        DataError: Its logits are not finite.
    """
    if not bool(logits.isfinite().all()):
        raise DataError(
            "The head's own network gives outputs that are not finite on these images, so that nothing can agree "
            "with it; look at its weights."
        )
    return logits.argmax(dim=1)


def accuracy(logits: Tensor, images: Split, head: Component) -> Figure:
    """Return the accuracy on images of the classes that the head knows too, among these classes.

    Args:
        logits: Of all images, in their order.
        images: With labels.
        head: Says which outputs mean which classes.

    Raises:
        DataError: No image is of such a class.
    """
    return share(rightly(logits, images, head))


def rightly(logits: Tensor, images: Split, head: Component) -> Tensor:
    """Return whether each image is answered rightly, bool ``(n,)``, of the classes that the head knows too.

    Arguments and errors are those of ``accuracy``.
    """
    import torch

    from compatkit.evaluation.figures import Tally

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


def classes_of(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return classes of images with the head's outputs that mean the same.

    Raises:
        DataError: They have none in common.
    """
    known = head.labels
    pairs = shared(images, head)
    if not pairs:
        told = ", ".join(one.name for one in known) or "classes without names"
        raise DataError(
            f"{images.name} has the classes {', '.join(images.classes)}, and {head.reference} tells apart {told}: none "
            "in common. Leave the labels out: features are bridged without them.",
            subject=head.reference,
        )
    return pairs


def measurable(images: Split, head: Component) -> bool:
    """Tell whether an image is of a class that the head knows.

    Raises:
        DataError: Two classes have one name, or one means the same as two of the other side.
    """
    return any(images.counts[place] for place, _ in shared(images, head))


def shared(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return classes of images with the head's outputs that mean the same; none where they have none in common."""
    known = head.labels
    return known_classes(images.classes, known, whose=(images.name, head.reference))
