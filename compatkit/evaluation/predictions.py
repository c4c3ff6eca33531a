"""Predictions of a network for images: a class and its probability for each."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from torch import Tensor

from compatkit.contracts.display import Shown, aligned


@attrs.frozen
class Prediction:
    """The prediction for one image.

    Attributes:
        label: Name of the most likely class.
        probability: Of that class, in [0, 1]: the softmax of the logits, not calibrated.
        position: Of that class among the outputs.
    """

    label: str
    probability: float
    position: int


@attrs.frozen(eq=False, repr=False)
class Predictions(Shown):
    """Predictions for one image or many, in their order: ``predictions[0].label``.

    Attributes:
        probabilities: float32 ``(n, classes)`` on the CPU; rows sum to 1.
        classes: Names of the classes in the order of the outputs; their positions as text where the head names none.
    """

    probabilities: Tensor
    classes: tuple[str, ...]

    @property
    def positions(self) -> Tensor:
        """The most likely class of each image as its position, int64 ``(n,)``."""
        return self.probabilities.argmax(dim=1)

    @property
    def labels(self) -> list[str]:
        """The most likely class of each image by name."""
        return [self.classes[one] for one in self.positions.tolist()]

    def top(self, count: int = 5) -> list[list[Prediction]]:
        """Return for each image its most likely classes, the best first; all where there are fewer than ``count``."""
        best, places = self.probabilities.topk(min(count, len(self.classes)), dim=1)
        return [
            [Prediction(self.classes[at], share, at) for share, at in zip(*row, strict=True)]
            for row in zip(best.tolist(), places.tolist(), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, image: int) -> Prediction:
        row = self.probabilities[image]
        at = int(row.argmax())
        return Prediction(self.classes[at], float(row[at]), at)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[image] for image in range(len(self)))

    def __str__(self) -> str:
        rows = [(str(image), one.label, f"{one.probability:.3f}") for image, one in enumerate(self)]
        return "\n".join(aligned([("image", "class", "probability"), *rows]))
