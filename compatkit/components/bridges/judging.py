"""Judge a bridge: agreement with the head's own network, and accuracy."""

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
"""Kappa from which a bridge fits, and up to which it does not: shares of .6 and .12 for ten equal classes."""
ONE_CLASS = 0.9
"""Share of one prediction from which the reference predictions are uninformative."""
NOT_FINITE = -1
"""Prediction for outputs that are not finite; it agrees with nothing."""


@attrs.frozen
class Judgement:
    """Share of correct predictions of a bridge on images that nothing was fitted to.

    Attributes:
        figure: The share.
        chance: Expected share of predictions independent of the images.
        largest: Share of the most frequent reference prediction.
    """

    figure: Figure
    chance: float
    largest: float

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa, the share of the way from chance to 1 (Cohen 1960); None if chance is 1."""
        return self._above_chance(self.figure.accuracy) if self.chance < 1 else None

    @property
    def says(self) -> Says:
        """Verdict; definite only if the whole interval supports it and the reference predictions are informative."""
        if self.kappa is None or self.largest >= ONE_CLASS:
            return "doubtful"
        if self._above_chance(self.figure.low) >= GO:
            return "fit"
        # The interval of chance agreement always crosses the lower bound; it must not reach the upper one.
        return "no fit" if self.kappa <= NO_GO and self._above_chance(self.figure.high) < GO else "doubtful"

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key; the best is last."""
        return (self.kappa or 0.0, self.figure.accuracy)

    def _above_chance(self, share: float) -> float:
        return (share - self.chance) / (1 - self.chance)


def agreement(answers: Tensor, wanted: Tensor) -> Judgement:
    """Return how often two networks predict the same.

    Chance is the agreement of independent predictions with the same class shares: the sum over classes of the product
    of shares (Cohen 1960).

    Args:
        answers: Predictions of a bridge, int64 ``(n,)``; ``NOT_FINITE`` if there is none.
        wanted: Predictions of the head's own network on the same images, int64 ``(n,)``.
    """
    count, outputs = len(wanted), int(max(answers.max(), wanted.max())) + 1
    predicted, expected = (
        predictions[predictions >= 0].bincount(minlength=outputs) for predictions in (answers, wanted)
    )
    chance = int((predicted * expected).sum()) / count**2
    return Judgement(share(answers == wanted), chance, largest(wanted))


def largest(answers: Tensor) -> float:
    """Return the share of the most frequent prediction."""
    return int(answers.bincount().max()) / len(answers)


def share(right: Tensor) -> Figure:
    """Return a share with its interval."""
    return figure(int(right.sum()), len(right))


def significantly_fewer(after: Tensor, before: Tensor) -> bool:
    """Return whether significantly fewer are right than before.

    Args:
        after: Which images are right with a bridge, bool ``(n,)``.
        before: Without it, for the same images.
    """
    return _change(after, before)[1] < 0


def significantly_more(after: Tensor, before: Tensor) -> bool:
    """Return whether significantly more are right than before.

    Args:
        after: Which images are right with a bridge, bool ``(n,)``.
        before: Without it, for the same images.
    """
    return _change(after, before)[0] > 0


def _change(after: Tensor, before: Tensor) -> tuple[float, float]:
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return paired_interval_of_counts(gained, lost, len(after))


def reference_predictions(logits: Tensor) -> Tensor:
    """Return the predictions of the head's own network, int64 ``(n,)``.

    Returns:
        Class numbers.

    Raises:
        DataError: Its logits are not finite.
    """
    if not bool(logits.isfinite().all()):
        raise DataError(
            "The outputs of the head's own network are not finite on these images, so there is no reference for "
            "agreement; check its weights."
        )
    return logits.argmax(dim=1)


def accuracy(logits: Tensor, images: Split, head: Component) -> Figure:
    """Return the accuracy on images of the common classes, argmax over these classes.

    Args:
        logits: Logits of all images, in order, ``(n, outputs)``.
        images: Images with labels.
        head: Component that names the outputs.

    Raises:
        DataError: No image belongs to a common class.
    """
    return share(correct_mask(logits, images, head))


def correct_mask(logits: Tensor, images: Split, head: Component) -> Tensor:
    """Return for each image of a common class whether it is classified correctly, bool ``(n,)``.

    Arguments and errors as for ``accuracy``.

    Returns:
        In the order of the images; those of other classes are left out.
    """
    import torch

    from compatkit.evaluation.figures import Tally

    pairs = classes_of(images, head)
    tally = Tally.start(torch.from_numpy(images.labels), pairs, len(images.classes))
    tally.add(torch.arange(len(images)), logits)
    if not tally.count:
        raise DataError(f"{images.name} holds no image of a class that {head.reference} knows.")
    return tally.restricted[tally.counted]


def correctness(right: Tensor, images: Split) -> Judgement:
    """Return the accuracy of a bridge; chance is the share of the most frequent class.

    Args:
        right: Whether each image is classified correctly.
        images: Images with labels, of classes that the head knows.
    """
    largest = max(images.counts) / len(images)
    return Judgement(share(right), largest, largest)


def classes_of(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return the matching (class of the images, output of the head).

    Args:
        images: Images with labels.
        head: Component that names the outputs.

    Raises:
        DataError: There are none.
    """
    known = head.labels
    pairs = shared(images, head)
    if not pairs:
        names = ", ".join(label.name for label in known) or "classes without names"
        raise DataError(
            f"{images.name} has the classes {', '.join(images.classes)}, and {head.reference} knows {names}: none in "
            "common. Leave the labels out; features are bridged without them.",
            subject=head.reference,
        )
    return pairs


def measurable(images: Split, head: Component) -> bool:
    """Return whether some image belongs to a class that the head knows.

    Args:
        images: With labels.
        head: The head.

    Raises:
        DataError: Two classes have the same name, or one matches two of the other side.
    """
    return any(images.counts[index] for index, _ in shared(images, head))


def shared(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return the matching (class of the images, output of the head), possibly none.

    Args:
        images: With labels.
        head: The head, with named classes.
    """
    known = head.labels
    return known_classes(images.classes, known, owners=(images.name, head.reference))
