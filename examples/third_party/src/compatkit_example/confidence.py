"""Confidence: the mean highest softmax probability, of correct and incorrect predictions.

Paper: Guo, Pleiss, Sun, Weinberger (2017), "On Calibration of Modern Neural Networks".
Equations: 1/N sum over x of max over c of softmax(z(x))_c.
Cost: one softmax of the logits.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.evaluation.metrics import Result
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``confidence``."""
    register("confidence", Confidence)


@attrs.frozen(eq=False)
class Total:
    """Sum of the highest probabilities, float64 of shape ``()`` on the device, and the count."""

    sum: Tensor
    count: int


class Confidence:
    """Mean highest probability, in ``(1 / classes, 1]``."""

    def init(self) -> Total:
        """Return an empty sum."""
        return Total(torch.zeros((), dtype=torch.float64), 0)

    def update(self, state: Total, logits: Tensor, labels: Tensor) -> Total:
        """Add logits ``(batch, classes)`` of a batch; labels are ignored."""
        highest = logits.detach().float().softmax(1).amax(1).double().sum()
        return Total(state.sum.to(highest.device) + highest, state.count + len(logits))

    def merge(self, left: Total, right: Total) -> Total:
        """Return the total of both."""
        return Total(left.sum + right.sum.to(left.sum.device), left.count + right.count)

    def finalize(self, state: Total) -> Result:
        """Return the mean."""
        return Result(
            name="confidence",
            value=float(state.sum) / state.count if state.count else None,
            unit="1",
            direction="none",
            estimator="plug-in",
            count=state.count,
            paper="Guo, Pleiss, Sun, Weinberger (2017), On Calibration of Modern Neural Networks",
            equation="Sec. 2",
            status="ok" if state.count else "undefined",
            reason="" if state.count else "no examples",
        )
