"""Backward-compatible training: a frozen released head also classifies the new extractor's features.

Paper: Shen, Xiong, Xia, Soatto (2020), "Towards Backward-Compatible Representation Learning", Sec. 3.2: the influence
    loss, the old classifier's loss on the new features.
Equations: L = CE(h_new(f_new(x)), y) + CE(h_old(f_new(x)), y), the second over the examples whose class the old head
    knows, divided by the batch size, which keeps the weight of an example. ``forward`` times
    CE(h_new(f_old(x)), y) is added where it is above 0, so that old features stay readable too.
Deviation: gradients pass through the old head to the features and end there: no weight of it moves, and its batch
    normalization uses stored statistics (``frozen_statistics="stored"``).
Cost: one more head forward and backward a step; with ``forward`` an extractor's forward and a second pass of the head.
Limits: it needs labels, and a released head that takes features of the new extractor's shape and shares a class with
    the task. It holds the new features near the old ones, so accuracy may rise less than without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch.nn.functional as F
from torch import Tensor

from compatkit import AuxiliaryHead, SetUp, Step, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

from ._classes import common_class_loss, names, outputs_of

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``backward_compatibility``."""
    register("backward_compatibility", BackwardCompatibility)


@attrs.define(eq=False)
class BackwardCompatibility:
    """Trains an extractor for its own head and for a released one.

    Attributes:
        forward: Weight of the loss of the new head on the released extractor's features; 0 leaves it out.
    """

    forward: float = attrs.field(default=0.0, validator=Number(least=0))
    _head: AuxiliaryHead = attrs.field(init=False)
    _class_indices: dict[str, Tensor] = attrs.field(factory=dict, init=False)
    _old: dict[str, Callable[[Tensor], Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Take the released parts, and match every task's classes to the head's outputs by name.

        Raises:
            UsageError: There is no released head, or no released extractor for ``forward``; one of them does not fit a
                task; a task has no class of the head's, or no labels.
        """
        for state in setup.tasks.values():
            if not state.supervised:
                raise UsageError(
                    f"backward_compatibility needs labels; task {state.name!r} has none. Use feature_distillation."
                )
        self._head = setup.released_head()
        outputs = self._head.labels or ()
        for state in setup.tasks.values():
            class_indices = outputs_of(state.labels, outputs, outputs)
            if class_indices is None:
                raise UsageError(
                    f"backward_compatibility: task {state.name!r} and the released head have no class in common. The "
                    f"task has {names(state.labels)}; the head tells apart {names(outputs)}. Rename equal classes, or "
                    "use feature_distillation, which needs none."
                )
            self._class_indices[state.name] = class_indices.to(setup.precision.device)
            if self.forward:
                self._old[state.name] = setup.released_extractor(state)

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the released head's loss on the new features and, where asked for, the forward term."""
        name, labels = step.task.name, step.batch.labels
        losses = {"backward": common_class_loss(self._head(step.features), self._class_indices[name][labels])}
        if self.forward:
            logits = step.classify(self._old[name](step.batch.images))
            losses["forward"] = self.forward * F.cross_entropy(logits.float(), labels)
        return losses
