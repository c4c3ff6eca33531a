"""Gradual unfreezing: the class layer learns first, then one stage after the other down to the image.

Papers: Howard, Ruder (2018), "Universal Language Model Fine-tuning for Text Classification", Sec. 3.3: a layer more
    in each epoch. With ``stages=1``: Kumar, Raghunathan, Jones, Ma, Liang (2022), "Fine-Tuning can Distort Pretrained
    Features and Underperform Out-of-Distribution": the head alone, then everything.
Rule: the network has k stages below its class layer, the stem counted, by timm's coarse ``group_matcher``; joined in
    neighbors they make ``stages`` groups. After ``every`` steps the group nearest the class layer learns too, after
    twice as many the one below it. What does not learn yet has no gradient, so that no optimizer moves or decays it,
    and its batch normalization uses stored statistics.
Cost: none beside a step; gradients of what does not learn yet are computed and dropped.
Limits: networks without timm's ``group_matcher`` cannot be divided. Computation of frozen stages is not spared. Stage
    by stage was a little below plain fine-tuning on 100 images of USPS; head first was equal.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from compatkit import SetUp, Step, TaskState, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Batch, Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``gradual_unfreezing``."""
    register("gradual_unfreezing", GradualUnfreezing)


@attrs.define(eq=False)
class GradualUnfreezing:
    """Lets groups of stages learn one after the other.

    Attributes:
        every: Steps of a task between two groups.
        stages: Groups; None makes each stage one.
    """

    every: int = attrs.field(validator=COUNT)
    stages: int | None = attrs.field(default=None, validator=Number(least=1, whole=True, optional=True))
    _opens: dict[str, dict[str, int]] = attrs.field(factory=dict, init=False)
    _kept: list[tuple[nn.Parameter, Tensor]] = attrs.field(factory=list, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the step from which each parameter learns.

        Raises:
            UsageError: A network states no stages, or has fewer than the groups asked for.
        """
        for name, state in setup.tasks.items():
            stages = state.stages("gradual_unfreezing")
            below = max(stages.values())  # the last has the class layer
            groups = below if self.stages is None else self.stages
            if groups > below:
                raise UsageError(
                    f"gradual_unfreezing: {state.extractor_blueprint.model} has {below} stages below its class layer; "
                    f"task {name!r} cannot have {groups} groups of them.",
                    subject=name,
                )
            self._opens[name] = {
                path: 0 if stage == below else self.every * (groups - stage * groups // below)
                for path, stage in stages.items()
            }
            opening = sorted(set(self._opens[name].values()))
            setup.tell({f"{name} opens at steps": opening})

    @hookimpl
    def compatkit_views(self, step: Step, batch: Batch) -> Batch:
        """Put batch normalization that does not learn yet into eval mode."""
        for path, layer in _layers(step.task):
            if isinstance(layer, _BatchNorm) and layer not in step.task.frozen_norms:
                layer.train(self._open(step, f"{path}.weight"))
        return batch

    @hookimpl
    def compatkit_after_backward(self, step: Step) -> None:
        """Drop the gradients of what does not learn yet."""
        for parameter in self._closed(step):
            if step.number:
                parameter.grad = None
            else:  # optimizers begin with all parameters: torch's fused SGD cannot take in new ones later
                parameter.grad = torch.zeros_like(parameter)
                self._kept.append((parameter, parameter.detach().clone()))

    @hookimpl
    def compatkit_after_step(self, step: Step) -> None:
        """Undo the decay of weights in the first step."""
        with torch.no_grad():
            while self._kept:
                parameter, before = self._kept.pop()
                parameter.copy_(before)

    def _closed(self, step: Step) -> Iterator[nn.Parameter]:
        for path, layer in _layers(step.task):
            for name, parameter in layer.named_parameters(recurse=False):
                if not self._open(step, f"{path}.{name}" if path else name):
                    yield parameter

    def _open(self, step: Step, path: str) -> bool:
        return step.number >= self._opens[step.task.name].get(path, 0)


def _layers(state: TaskState) -> Iterator[tuple[str, nn.Module]]:
    """Yield what the run trains; a frozen extractor keeps its own mode."""
    for part in (state.head,) if state.freezes_extractor else (state.extractor, state.head):
        yield from part.named_modules()
