"""Predictions of a network: class and probability of each image."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, overload

import attrs
from torch import Tensor

from compatkit.foundation.display import Shown, aligned, visible
from compatkit.reports.tabular import Tabular


@attrs.frozen
class Prediction:
    """The prediction for one image.

    Attributes:
        label: Name of the most likely class.
        probability: Its softmax probability in [0, 1], not calibrated.
        position: Its index among the outputs.
        damaged: Why the image cannot be decoded; then there is no label, the probability is NaN, the position -1.
    """

    label: str
    probability: float
    position: int
    damaged: str = ""


_COLUMNS = ("label", "probability", "position")


@attrs.frozen(eq=False, repr=False)
class Predictions(Shown, Tabular):
    """Predictions for images in order: ``predictions[0].label``; ``predictions[:5]`` are the first five.

    Attributes:
        probabilities: float32 ``(n, classes)`` on the CPU; rows sum to 1, those of damaged images are NaN.
        classes: Class names in the order of the outputs, or their indices as text if unnamed.
        files: File of each image if all are files; else empty.
        damaged: Why an image could not be decoded, by its position; see ``predict(damaged="skip")``.
    """

    probabilities: Tensor
    classes: tuple[str, ...]
    files: tuple[str, ...] = ()
    damaged: Mapping[int, str] = attrs.field(factory=dict)

    _columns = ("image", *_COLUMNS)

    def _rows(self) -> list[dict[str, Any]]:
        """Return a row for each image: its file or number, and its most likely class, or why it is damaged."""
        return [
            {"image": image}
            | (
                {"damaged": best.damaged}
                if best.damaged
                else {name: getattr(best, name) for name in _COLUMNS}
            )
            for image, best in zip(self.files or range(len(self)), self, strict=True)
        ]

    @property
    def positions(self) -> Tensor:
        """Index of the most likely class of each image, int64 ``(n,)``; -1 for damaged images."""
        best = self.probabilities.argmax(dim=1)
        best[list(self.damaged)] = -1
        return best

    @property
    def labels(self) -> list[str]:
        """Name of the most likely class of each image; empty for damaged images."""
        return [self.classes[position] if position >= 0 else "" for position in self.positions.tolist()]

    def top(self, count: int = 5) -> list[list[Prediction]]:
        """Return the ``count`` most likely classes of each image, best first; none for damaged images."""
        if self.damaged:
            return [[] if at in self.damaged else self[at : at + 1].top(count)[0] for at in range(len(self))]
        best, indices = self.probabilities.topk(min(count, len(self.classes)), dim=1)
        return [
            [Prediction(self.classes[at], share, at) for share, at in zip(*row, strict=True)]
            for row in zip(best.tolist(), indices.tolist(), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.probabilities)

    @overload
    def __getitem__(self, image: int) -> Prediction: ...
    @overload
    def __getitem__(self, image: slice) -> Predictions: ...
    def __getitem__(self, image: int | slice) -> Prediction | Predictions:
        if isinstance(image, slice):
            positions = list(range(len(self)))[image]
            damaged = {new: self.damaged[old] for new, old in enumerate(positions) if old in self.damaged}
            return Predictions(self.probabilities[image], self.classes, self.files[image], damaged)
        row = self.probabilities[image]
        position = image % len(self)
        if position in self.damaged:
            return Prediction("", math.nan, -1, self.damaged[position])
        at = int(row.argmax())
        return Prediction(self.classes[at], float(row[at]), at)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[image] for image in range(len(self)))

    def __str__(self) -> str:
        front = len(os.path.commonpath([os.path.dirname(path) for path in self.files])) if self.files else 0
        names = [visible(path[front:].strip(os.sep)) for path in self.files] or map(str, range(len(self)))
        rows = [
            (name, f"not read: {visible(prediction.damaged)}", "")
            if prediction.damaged
            else (name, prediction.label, f"{prediction.probability:.3f}")
            for name, prediction in zip(names, self, strict=True)
        ]
        return "\n".join(aligned([("image", "class", "probability"), *rows]))
