"""Compiling what a step minimises: one graph for all tasks and seeds that differ in weights alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from compatkit.training.objective import Objective, Outcome
from compatkit.training.step import Step

BACKEND = "inductor"
VARIANTS = 64
"""Compiled forms of the loss that one process keeps: architectures, sets of regularizers, batch shapes."""


class Compiled:
    """An objective that torch.compile has turned into one graph, without breaks and for fixed shapes.

    Weights, buffers and images are the graph's inputs, so that the next seed of a sweep compiles nothing. What the
    network draws at random (dropout) is drawn in the graph, from torch's generator.
    """

    def __init__(self, objective: Objective) -> None:
        """Compile nothing yet: torch does so in the first call."""
        self.objective = objective.unchecked()

    def __call__(self, step: Step, seeds: Sequence[int] = ()) -> Outcome:
        """See ``Objective.forward``; the seeds are those of the whole pass, of which the first counts.

        Raises:
            torch._dynamo.exc.TorchDynamoException: It cannot be compiled whole.
        """
        return _compiled(BACKEND)(self.objective, step)


def _loss(objective: Objective, step: Step) -> Outcome:
    return objective(step)


@functools.cache
def _compiled(backend: str) -> Callable[..., Outcome]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    return torch.compile(_loss, backend=backend, fullgraph=True, dynamic=False)
