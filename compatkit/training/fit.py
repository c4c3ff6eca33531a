"""What a run leaves behind: trained parts, auxiliary heads, losses, and the run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import Tensor, nn

from compatkit.errors import UnknownName
from compatkit.training.context import AuxiliaryHead, TaskState


@attrs.frozen(eq=False)
class Fit:
    """The result of ``Trainer.fit``.

    Attributes:
        tasks: By name: modules, blueprints, preprocessing, anchors.
        auxiliary: Auxiliary heads by name, those handed in frozen included.
        run: The run's manifest: plan, plugins, data digests, environment; the same for the same run.
        history: Losses: ``{"task", "step", "losses": {name: mean}}``.
        plan: Digest of the plan.
    """

    tasks: Mapping[str, TaskState]
    auxiliary: Mapping[str, AuxiliaryHead]
    run: Mapping[str, Any]
    history: list[dict[str, Any]]
    plan: str

    def _task(self, name: str) -> TaskState:
        if name not in self.tasks:
            raise UnknownName(
                f"This fit trained the tasks {', '.join(self.tasks)}; there is no task {name!r}."
            )
        return self.tasks[name]

    def network(self, name: str) -> nn.Sequential:
        """Return extractor and head of one task, not recombined."""
        state = self._task(name)
        return nn.Sequential(state.extractor, state.head)

    def weights(self, name: str) -> dict[str, Tensor]:
        """Return the state dict of one task's whole network, to start another task from (``Task.weights``)."""
        state = self._task(name)
        return {
            key: value.detach().clone()
            for part in (state.extractor, state.head)
            for key, value in part.state_dict().items()
        }
