"""L2-SP: keeps fine-tuned weights near those that training started from.

Paper: Li, Grandvalet, Davoine (2018), "Explicit Inductive Bias for Transfer Learning with Convolutional Networks",
    Sec. 3, Eq. 2.
Equation: alpha / 2 |w - w0|^2 over all parameters that the network started from, plus beta / 2 |v|^2 over those that
    are new: of the class layer, or of a whole head behind a component's extractor. It takes the place of weight decay:
    set ``weight_decay=0``.
w0 is a copy of the parameters at the beginning of the run. Biases and normalization count, as in the public code of
    Transfer-Learning-Library.
Cost: a copy of the weights, and one pass over them a step.
Limits: it needs weights to start from; what is new has no start. The same strength for all layers does not suit every
    task, and it brought nothing on 100 images of USPS.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import SetUp, Step, TaskState, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``l2_sp``."""
    register("l2_sp", L2SP)


@attrs.define(eq=False)
class L2SP:
    """Pulls weights to where they started, and new ones to 0.

    Attributes:
        alpha: Strength for the weights that the network started from.
        beta: Strength for new weights.
    """

    alpha: float = attrs.field(default=0.01, validator=Number(least=0))
    beta: float = attrs.field(default=0.01, validator=Number(least=0))
    _starts: dict[str, dict[str, Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Copy the weights of every task.

        Raises:
            UsageError: A task starts from random weights.
        """
        for name, state in setup.tasks.items():
            if state.task.weights is None and state.task.extractor is None:
                raise UsageError(
                    f"l2_sp pulls weights to those that a network started from; task {name!r} starts from random "
                    "ones. Give it weights= (Fit.weights, a file), or components (registry.task).",
                    subject=name,
                )
            self._starts[name] = {
                path: parameter.detach().clone()
                for path, parameter in _parameters(state).items()
                if not _new(state, path)
            }

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return ``start`` and, where parameters are new, ``new``."""
        starts, squares = self._starts[step.task.name], dict[str, list[Tensor]]()
        for path, parameter in _parameters(step.task).items():
            if path in starts:
                squares.setdefault("start", []).append((parameter - starts[path]).float().square().sum())
            else:
                squares.setdefault("new", []).append(parameter.float().square().sum())
        strengths = {"start": self.alpha, "new": self.beta}
        return {name: strengths[name] / 2 * torch.stack(terms).sum() for name, terms in squares.items()}


def _parameters(state: TaskState) -> dict[str, Tensor]:
    parts = {"extractor": state.extractor} | ({"head": state.head} if state.runs_head else {})
    return {
        f"{side}.{path}": parameter
        for side, part in parts.items()
        for path, parameter in part.named_parameters()
    }


def _new(state: TaskState, path: str) -> bool:
    """Return whether a parameter is of a class layer, or of a head, that did not come with the weights."""
    keeps_head = state.task.keep_class_layer or state.task.head is not None
    if keeps_head or not path.startswith("head."):
        return False
    return state.task.weights is None or path.removeprefix("head.").startswith(tuple(state.class_layer))
