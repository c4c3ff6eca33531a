"""Discriminating common classes (DCC): one shared head classifies the common classes on all extractors.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 3.1.
Equations: the sum over (x, y) of 1[y in C] CE(c(f_t(x)), y); with mini-batches the masked sum is divided by
    the batch size, not by the count of masked examples, which keeps the formula's weight per example.
Cost: one more head forward and backward a step; memory of one more head's activations.
Limits: it needs labels and at least two common classes, matched by name. It ties features only where the head looks:
    other classes may lie anywhere. Own accuracy was not lower with it in the studies here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch import Tensor

from compatkit import AuxiliaryHead, Label, SetUp, Step, autocast, effect, hookimpl, label, match_classes
from compatkit.errors import UnknownName, UsageError
from compatkit.hooks import Register

from ._classes import common_class_loss, names, outputs_of

compatkit_api = 1
LEAST = 2
"""Common classes: a head of one class has nothing to tell apart, and its loss is 0."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``dcc``."""
    register("dcc", DiscriminateCommonClasses)


@attrs.define(eq=False)
class DiscriminateCommonClasses:
    """Trains a shared head on the classes that the tasks have in common.

    Attributes:
        classes: Names to use in place of all common classes.
        like: The task whose head has the architecture of the shared head; None takes the first task's.
    """

    classes: Sequence[str] | None = None
    like: str | None = None
    _head: AuxiliaryHead = attrs.field(init=False)
    _class_indices: dict[str, Tensor] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Add the head (or take the frozen one) and match every task's classes to its outputs by name.

        Raises:
            UsageError: The tasks, or a task and the frozen head, have no class in common; a task has no labels.
        """
        for state in setup.tasks.values():
            if not state.supervised:
                raise UsageError(
                    f"dcc tells classes apart; task {state.name!r} has no labels. Use a self-supervised regularizer "
                    "(rotation_prediction) with a shared head of its own."
                )
        labels = self._shared_classes(setup)
        self._head = setup.add_auxiliary_head("dcc", classes=labels, like=self.like)
        outputs = self._head.labels or ()
        for state in setup.tasks.values():
            chosen = [label(name) for name in self.classes] if self.classes is not None else outputs
            class_indices = outputs_of(state.labels, outputs, chosen)
            if class_indices is None:
                raise UsageError(
                    f"dcc: task {state.name!r} has none of the common classes. It has "
                    f"{names(state.labels)}; the shared head tells apart {names(outputs)}."
                )
            self._class_indices[state.name] = class_indices.to(setup.precision.device)

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the loss of the shared head on this task's features."""
        logits = self._head(step.features)
        return {"loss": common_class_loss(logits, self._class_indices[step.task.name][step.batch.labels])}

    def _shared_classes(self, setup: SetUp) -> tuple[Label, ...]:
        if "dcc" in setup.frozen:
            known = setup.frozen["dcc"].labels or ()
            for name in self.classes or ():
                if not match_classes([label(name)], known):
                    raise UnknownName(
                        f"dcc: the frozen head does not know {name!r}; it tells apart {names(known)}."
                    )
            return known
        shared = setup.shared_classes()
        if len(shared) < LEAST:
            lists = "; ".join(f"{name}: {names(state.labels)}" for name, state in setup.tasks.items())
            raise UsageError(
                f"dcc tells classes apart that tasks share by name, {LEAST} at least; here tasks share "
                f"{names(shared) if shared else 'none'}. {lists}. "
                "Rename the classes of a data set (for photos, classes.txt), or leave dcc out."
            )
        if self.classes is None:
            return shared
        requested = [label(name) for name in self.classes]
        for requested_label in requested:
            if not match_classes([requested_label], shared):
                raise UnknownName(
                    f"dcc: {requested_label.name!r} is no class that the tasks share; they share {names(shared)}."
                )
        return tuple(requested)
