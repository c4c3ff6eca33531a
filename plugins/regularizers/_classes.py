"""Match the classes of a task with the outputs of another head by name; the loss over common classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import Label, match_classes

OUTSIDE = -1


def common_class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over the examples of common classes, divided by the batch size.

    Args:
        logits: Logits of the other head, ``(batch, classes)``.
        labels: Its output for the example's class, or ``-1`` for an example of no common class, ``(batch,)``.

    Returns:
        Scalar in nats; 0 where the batch holds no common class.
    """
    total = F.cross_entropy(logits.float(), labels, ignore_index=OUTSIDE, reduction="sum")
    return total / labels.shape[0]


def outputs_of(own: Sequence[Label], outputs: Sequence[Label], common: Sequence[Label]) -> Tensor | None:
    """Return the output for each class of a task, int64 ``(classes,)``; ``OUTSIDE`` for classes without one.

    Args:
        own: Classes of the task.
        outputs: Classes of the head.
        common: Those of the head's classes that count.

    Returns:
        None where there is no class in common.
    """
    counted = {shared for shared, _ in match_classes(outputs, common)}
    pairs = [(own_index, shared) for own_index, shared in match_classes(own, outputs) if shared in counted]
    indices = torch.full((len(own),), OUTSIDE, dtype=torch.int64)
    for own_index, shared in pairs:
        indices[own_index] = shared
    return indices if pairs else None


def names(labels: Sequence[Label]) -> str:
    """Return the first twelve names, and the total count if there are more."""
    shown = ", ".join(label.name for label in labels[:12])
    return shown + (f", ... ({len(labels)} in all)" if len(labels) > 12 else "")
