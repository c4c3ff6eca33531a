"""Judge bridges by agreement with the head's own network and by accuracy.

A bridge joins an extractor to a head of another network: it inserts an adapter between them, refits the head, or only
re-estimates batch-norm statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from compatkit.contracts.evidence import Figure, figure, paired_interval_of_counts
from compatkit.contracts.labels import match_classes
from compatkit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.data.split import Split
    from compatkit.evaluation.component import Component

Verdict = Literal["fit", "doubtful", "no fit"]
FIT_KAPPA, NO_FIT_KAPPA = 5 / 9, 1 / 45
"""Kappa >= FIT_KAPPA means fit, <= NO_FIT_KAPPA means no fit.

With ten balanced classes these are agreements of 0.60 and 0.12.
"""
ONE_CLASS = 0.9
"""Share of one prediction from which the reference predictions are uninformative."""
NOT_FINITE = -1
"""Prediction for outputs that are not finite; it agrees with nothing."""


@attrs.frozen
class Judgment:
    """Agreement or accuracy of a bridge on held-out images.

    Attributes:
        figure: Agreement or accuracy.
        chance: Agreement or accuracy expected by chance.
        majority_share: Share of the most frequent reference prediction or class.
    """

    figure: Figure
    chance: float
    majority_share: float

    @property
    def kappa(self) -> float | None:
        """(value - chance) / (1 - chance); Cohen's kappa for agreement (Cohen 1960). None if chance is 1."""
        return self._above_chance(self.figure.accuracy) if self.chance < 1 else None

    @property
    def verdict(self) -> Verdict:
        """Verdict; definite only if the entire interval supports it and the reference predictions are informative."""
        if self.kappa is None or self.majority_share >= ONE_CLASS:
            return "doubtful"
        if self._above_chance(self.figure.low) >= FIT_KAPPA:
            return "fit"
        # For a bridge at chance the interval always contains NO_FIT_KAPPA, so the point estimate is tested there and
        # only the upper end must stay below FIT_KAPPA.
        no_fit = self.kappa <= NO_FIT_KAPPA and self._above_chance(self.figure.high) < FIT_KAPPA
        return "no fit" if no_fit else "doubtful"

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key; the best is last."""
        return (self.kappa or 0.0, self.figure.accuracy)

    def _above_chance(self, value: float) -> float:
        return (value - self.chance) / (1 - self.chance)


def agreement(predictions: Tensor, reference_predictions: Tensor) -> Judgment:
    """Judge a bridge by how often it predicts the same as the head's own network.

    Chance is the agreement of independent predictions with the same class shares: the sum over classes of the product
    of shares (Cohen 1960).

    Args:
        predictions: Predictions of a bridge, int64 ``(n,)``; ``NOT_FINITE`` where the outputs are not finite.
        reference_predictions: Predictions of the head's own network on the same images, int64 ``(n,)``.
    """
    images = len(reference_predictions)
    outputs = int(max(predictions.max(), reference_predictions.max())) + 1
    counts, reference_counts = (
        classes[classes >= 0].bincount(minlength=outputs) for classes in (predictions, reference_predictions)
    )
    chance = int((counts * reference_counts).sum()) / images**2
    agreed = proportion(predictions == reference_predictions)
    return Judgment(agreed, chance, majority_share(reference_predictions))


def majority_share(predictions: Tensor) -> float:
    """Return the share of the most frequent prediction."""
    return int(predictions.bincount().max()) / len(predictions)


def proportion(correct: Tensor) -> Figure:
    """Return the proportion of true values with its interval."""
    return figure(int(correct.sum()), len(correct))


def significantly_fewer(after: Tensor, before: Tensor) -> bool:
    """Return whether significantly fewer are correct than before.

    Args:
        after: Which images are correct with a bridge, bool ``(n,)``.
        before: Without it, for the same images.
    """
    return _change_interval(after, before)[1] < 0


def significantly_more(after: Tensor, before: Tensor) -> bool:
    """Return whether significantly more are correct than before.

    Args:
        after: Which images are correct with a bridge, bool ``(n,)``.
        before: Without it, for the same images.
    """
    return _change_interval(after, before)[0] > 0


def _change_interval(after: Tensor, before: Tensor) -> tuple[float, float]:
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
    return proportion(correct_mask(logits, images, head))


def correct_mask(logits: Tensor, images: Split, head: Component) -> Tensor:
    """Return for each image of a common class whether it is classified correctly.

    Arguments and errors as for ``accuracy``.

    Returns:
        bool ``(m,)``, m = images of common classes, in order.
    """
    import torch

    from compatkit.evaluation.tally import Tally

    pairs = classes_of(images, head)
    tally = Tally.start(torch.from_numpy(images.labels), pairs, len(images.classes))
    tally.add(torch.arange(len(images)), logits)
    if not tally.count:
        raise DataError(f"{images.name} holds no image of a class that {head.reference} knows.")
    return tally.restricted[tally.counted]


def accuracy_judgment(correct: Tensor, images: Split) -> Judgment:
    """Judge a bridge by its accuracy; chance is the share of the most frequent class.

    Args:
        correct: Whether each image is classified correctly.
        images: Images with labels, of classes that the head knows.
    """
    majority = max(images.counts) / len(images)
    return Judgment(proportion(correct), majority, majority)


def classes_of(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return pairs (class index of the data set, output index of the head) of classes with the same label.

    Args:
        images: Images with labels.
        head: Component that names the outputs.

    Raises:
        DataError: No class matches.
    """
    head_labels = head.labels
    pairs = shared(images, head)
    if not head_labels:
        raise DataError(
            f"{head.reference} has no class names, so labeled images (test=, labels=) cannot be used. Leave them out: "
            "bridges are fitted and judged without labels.",
            subject=head.reference,
        )
    if not pairs:
        names = ", ".join(label.name for label in head_labels)
        raise DataError(
            f"{images.name} has the classes {', '.join(images.classes)}, and {head.reference} knows {names}: none in "
            "common. Leave the labels out; bridges are fitted and judged without them.",
            subject=head.reference,
        )
    return pairs


def has_known_class(images: Split, head: Component) -> bool:
    """Return whether some image belongs to a class that the head knows.

    Args:
        images: Labeled images.
        head: Component that names the outputs.

    Raises:
        DataError: Two classes have the same name, or one matches two of the other side.
    """
    return any(images.counts[index] for index, _ in shared(images, head))


def shared(images: Split, head: Component) -> list[tuple[int, int]]:
    """Return pairs (class index of the data set, output index of the head), possibly none.

    Args:
        images: Labeled images.
        head: Component that names the outputs.
    """
    return match_classes(images.classes, head.labels, owners=(images.name, head.reference))
