"""Accuracy: the share of examples whose class is among the ``top`` highest logits.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 4: accuracy of recombined networks.
Equations: 1/N sum over (x, y) of 1[fewer than top classes rank above y]; a class ranks above y with a higher logit, or
    with an equal logit and a lower index, which is argmax for top = 1.
Cost: no extra pass; two comparisons of the logits.
Limits: it needs labels that the network's classes cover. Of one batch order or many it is the same only with stored
    statistics. Read it beside chance, which unequal classes raise.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Result
from compatkit.foundation.limits import COUNT
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``accuracy``."""
    register("accuracy", Accuracy)


def is_correct(logits: Tensor, labels: Tensor, *, top: int = 1) -> Tensor:
    """Return for each example whether its class is among the ``top`` highest.

    Args:
        logits: ``(batch, classes)``; an example with NaN is wrong.
        labels: Class indices in ``[0, classes)``, ``(batch,)``.
        top: Number of classes considered.

    Returns:
        bool ``(batch,)``, on the device of ``logits``.

    Example:
        >>> is_correct(torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]]), torch.tensor([2, 0])).tolist()
        [False, True]
    """
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    ahead = (logits > own) | ((logits == own) & (classes < labels[:, None]))
    return (ahead.sum(1) < top) & ~logits.isnan().any(1)


@attrs.frozen(eq=False)
class Counts:
    """Counts on the device, int64 scalars: examples, correct ones, with NaN, with labels out of range; and classes."""

    examples: int
    correct: Tensor
    unreadable: Tensor
    outside: Tensor
    classes: int = 0


@attrs.frozen
class Accuracy:
    """Top-``top`` accuracy.

    Attributes:
        top: Number of classes considered, >= 1; fewer than there are, or the figure says nothing.
    """

    top: int = attrs.field(default=1, validator=COUNT)

    def init(self) -> Counts:
        """Return zero counts."""
        none = torch.zeros((), dtype=torch.int64)
        return Counts(0, none, none, none)

    def update(self, state: Counts, logits: Tensor, labels: Tensor) -> Counts:
        """Return the counts with one more batch.

        Args:
            state: Counts so far.
            logits: ``(batch, classes)``.
            labels: ``(batch,)``, integers.

        Raises:
            DataError: The shapes or the type do not fit.
        """
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or labels.is_floating_point():
            raise DataError(
                f"accuracy expects logits (batch, classes) and integer labels (batch,); got "
                f"{tuple(logits.shape)} and {tuple(labels.shape)} {labels.dtype}."
            )
        labels = labels.long()
        outside = (labels < 0) | (labels >= logits.shape[1])
        right = is_correct(logits, labels.masked_fill(outside, 0), top=self.top) & ~outside
        return Counts(
            state.examples + len(labels),
            state.correct.to(logits.device) + right.sum(),
            state.unreadable.to(logits.device) + logits.isnan().any(1).sum(),
            state.outside.to(logits.device) + outside.sum(),
            logits.shape[1],
        )

    def merge(self, left: Counts, right: Counts) -> Counts:
        """Return the sums, on the device of ``left``."""
        device = left.correct.device
        return Counts(
            left.examples + right.examples,
            left.correct + right.correct.to(device),
            left.unreadable + right.unreadable.to(device),
            left.outside + right.outside.to(device),
            max(left.classes, right.classes),
        )

    def finalize(self, state: Counts) -> Result:
        """Return the share of correct examples; undefined above the number of classes, where every answer counts.

        Raises:
            DataError: Labels were out of range.
        """
        if int(state.outside):
            raise DataError(
                f"accuracy: {int(state.outside)} of {state.examples} labels are out of range of the logits. "
                "Give labels in the order of the head's outputs."
            )
        unreadable = int(state.unreadable)
        status, reason = "ok", ""
        if not state.examples:
            status, reason = "undefined", "no examples"
        elif self.top > state.classes:
            status, reason = (
                "undefined",
                f"top {self.top} of {state.classes} classes: every answer would be right",
            )
        elif self.top == state.classes:
            status, reason = "degenerate", f"top {self.top} of {state.classes} classes: every answer is right"
        elif unreadable:
            status = "degenerate"
            reason = (
                f"{unreadable} of {state.examples} examples have NaN among their logits and count as wrong"
            )
        return Result(
            name="accuracy" if self.top == 1 else f"accuracy@{self.top}",
            value=None if status == "undefined" else int(state.correct) / state.examples,
            unit="1",
            direction="higher",
            estimator="plug-in",
            count=state.examples,
            paper="Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components",
            equation="Sec. 4",
            status=status,
            reason=reason,
        )
