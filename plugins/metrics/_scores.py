"""Common parts of scores before training: features or predictions of labeled examples, and the label control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, SEED, OneOf

from ._moments import drawn_keys

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
LABELS = ("as given", "permuted")
Seen = Mapping[str, tuple[Tensor, ...]]
"""Values ``(n, width)`` by layer; labels under ``LABELED``."""
LABELED = ""
ALIKE = 1e-12
"""Values that differ by less than this share of their size are the same but for rounding."""


@attrs.define(eq=False, kw_only=True)
class Score:
    """A score of values, ``(n, width)``, and labels, higher for what should transfer better.

    Attributes:
        permuted: Draws of permuted labels, whose mean is the control.
        seed: Seed of these draws.
    """

    permuted: int = attrs.field(default=3, validator=COUNT)
    seed: int = attrs.field(default=0, validator=SEED)
    name: ClassVar[str]
    unit: ClassVar[str]
    estimator: ClassVar[str]
    paper: ClassVar[str]
    equation: ClassVar[str]

    def prepared(self, values: Floats) -> tuple[Callable[[Labels], float], str]:
        """Return the score of values as a function of labels, and why it says little, or empty.

        What labels do not change is computed once.

        Args:
            values: Finite, ``(n, width)``.
        """
        raise NotImplementedError

    def estimated(self) -> str:
        """Return what the table says of the estimate."""
        return self.estimator

    def init(self) -> Seen:
        """Return the empty state."""
        return {}

    def merge(self, left: Seen, right: Seen) -> Seen:
        """Return the values of both parts."""
        return {name: (*left.get(name, ()), *right.get(name, ())) for name in {**left, **right}}

    def finalize(self, state: Seen) -> Table:
        """Return a table by layer, with labels as given and permuted."""
        names = [name for name in state if name != LABELED] or ["features"]
        cells = [TableCell(None, "undefined", "no examples")] * (len(names) * len(LABELS))
        count = 0
        if state:
            keys, labels = (torch.cat([pairs[:, at] for pairs in state[LABELED]]) for at in (0, 1))
            order = keys.argsort(stable=True)  # so that nothing depends on the order of the examples
            count = len(labels)
            classes = labels[order].cpu().numpy()
            cells = [
                cell
                for name in names
                for cell in self._cells(torch.cat(state[name])[order].double().cpu().numpy(), classes)
            ]
        return Table(
            name=self.name,
            axes={"layer": tuple(names), "labels": LABELS},
            cells=tuple(cells),
            unit=self.unit,
            direction="higher",
            estimator=f"{self.estimated()}; {self.permuted} permutations",
            count=count,
            paper=self.paper,
            equation=self.equation,
        )

    def _cells(self, values: Floats, labels: Labels) -> list[TableCell]:
        try:
            check(values, labels)
            labels = np.unique(labels, return_inverse=True)[1]  # only those that occur, from 0 up
            score, doubt = self.prepared(values)
            if labels.max() + 1 == len(labels):
                doubt = "every example has a class of its own"
            elif not np.ptp(values, axis=0).max() > ALIKE * np.abs(values).max():
                doubt = "no example differs from another"
            draw = np.random.default_rng(self.seed)
            shuffled = [score(labels[draw.permutation(len(labels))]) for _ in range(self.permuted)]
            status = "degenerate" if doubt else "ok"
            return [TableCell(value, status, doubt) for value in (score(labels), float(np.mean(shuffled)))]
        except DataError as error:
            return [TableCell(None, "undefined", str(error))] * len(LABELS)


@attrs.define(eq=False, kw_only=True)
class FeatureScore(Score):
    """A score of features: what the named layers give, maps averaged over their positions.

    Attributes:
        pool: ``"mean"`` over positions or tokens, or ``"flatten"``.
    """

    pool: str = attrs.field(default="mean", validator=OneOf(("mean", "flatten")))

    def update(self, state: Seen, positions: Tensor, labels: Tensor, outputs: Mapping[str, Tensor]) -> Seen:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices in the data set, ``(batch,)``.
            labels: Class indices, ``(batch,)``.
            outputs: Outputs of each layer: vectors ``(batch, d)``, maps ``(batch, d, height, width)`` or tokens
                ``(batch, tokens, d)``.
        """
        new = {LABELED: (_keyed(positions, labels),)}
        for name, output in outputs.items():
            output = output if output.dtype == torch.float64 else output.float()
            if output.ndim > 2 and self.pool == "mean":
                output = output.mean(1) if output.ndim == 3 else output.flatten(2).mean(2)
            new[name] = (output.detach().flatten(1),)
        return self.merge(state, new)


@attrs.define(eq=False, kw_only=True)
class PredictionScore(Score):
    """A score of the predictions of the source network, with the classes of its own head."""

    def update(self, state: Seen, positions: Tensor, labels: Tensor, logits: Tensor) -> Seen:
        """Return the state with one more batch.

        Args:
            state: State so far.
            positions: Indices in the data set, ``(batch,)``.
            labels: Class indices of the target, ``(batch,)``.
            logits: Logits of the source's classes, ``(batch, classes)``.
        """
        return self.merge(state, {LABELED: (_keyed(positions, labels),), "logits": (logits.detach(),)})


def _keyed(positions: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([drawn_keys(positions, 0), labels.long()], 1)


def check(values: Floats, labels: Labels) -> None:
    """Raise for values that no score is defined for.

    Raises:
        DataError: They are not finite or not one row a label; labels are negative, or of one class.
    """
    if values.ndim != 2 or len(values) != len(labels) or not values.size:
        raise DataError(f"a score expects one row of values a label; got {values.shape} and {labels.shape}")
    if not np.isfinite(values).all():
        raise DataError("some values are not finite")
    if labels.min() < 0 or len(np.unique(labels)) < 2:
        raise DataError(
            f"a score expects labels from 0 up, of two classes at least; got {np.unique(labels)[:3]}"
        )


def softmax(logits: Floats) -> Floats:
    """Return probabilities, rows summing to 1."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def joint(shares: Floats, labels: Labels) -> Floats:
    """Return the empirical joint distribution ``(target classes, source classes)``.

    Args:
        shares: Shares of each source class for each example, rows summing to 1, ``(n, source classes)``.
        labels: Target classes, ``(n,)``.
    """
    indicators = np.eye(int(labels.max()) + 1)[labels]
    return indicators.T @ shares / len(labels)


def conditional(both: Floats) -> Floats:
    """Return P(y | z) from P(y, z); columns of source classes that never occur are zero."""
    mass = both.sum(0)
    return np.divide(both, mass, out=np.zeros_like(both), where=mass > 0)
