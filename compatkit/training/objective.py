"""The loss of a step as a function of modules and a batch, and its compiled form."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.plugins.calls import Bound
from compatkit.training.extra_views import ExtraViews
from compatkit.training.layer_recording import NOTHING as NO_LAYERS
from compatkit.training.layer_recording import LayerRecording, Layers
from compatkit.training.precision import Precision
from compatkit.training.randomness import reseed
from compatkit.training.step import Step
from compatkit.training.task_state import TaskState, trained_parameters

LEAST_NORM = 1e-12
"""Smallest norm of a gradient in a ratio; the factor of smaller gradients is 0."""
NOTHING = ExtraViews()
Outcome = tuple[Tensor, dict[str, Tensor], Tensor | None]
"""The loss, a float32 scalar with its graph; its terms by name, detached; predicted classes, where the head ran."""


class Objective(nn.Module):
    """The cross-entropy of the target head plus the losses of regularizers.

    It is a module that contains everything trained, so that ``torch.func.functional_call`` can replace the weights,
    also for plugins, which use the same modules. No tensor's value is read.

    Attributes:
        owners: Modules of the run by owner, with ``/`` in place of the dots.
        losses: Regularizers that add to the loss, in order.
        further: Extra views that they need besides the batch itself.
        recording: Layers of the task that regularizers need, or None.
        gradients: See ``SetUp.gradients``.
    """

    def __init__(
        self,
        owners: Mapping[str, nn.Module],
        losses: tuple[Bound, ...],
        precision: Precision,
        further: ExtraViews = NOTHING,
        recording: LayerRecording | None = None,
        gradients: Mapping[str, bool] | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        self.owners = nn.ModuleDict({owner.replace(".", "/"): module for owner, module in owners.items()})
        self.losses, self.precision, self.further = losses, precision, further
        self.recording, self.gradients = recording, gradients or {}

    def unchecked(self) -> Objective:
        """Return the same without checks of plugins' return values, for a compiler."""
        objective = copy.copy(self)
        objective.losses = tuple(attrs.evolve(bound, call=bound.function) for bound in self.losses)
        objective.further = self.further.unchecked()
        return objective

    def forward(self, step: Step, seeds: Sequence[int] = ()) -> Outcome:
        """Compute the loss of ``step``, and store features and logits in it.

        Args:
            step: Step with its batch.
            seeds: Seeds for the network, then for each regularizer; without seeds torch's generators are left alone.

        Returns:
            See ``Outcome``.
        """
        if seeds:
            reseed(self.precision.device, seeds[0])
        seen, calls = self._target_pass(step)
        terms: dict[str, Tensor] = {}
        logits, predicted = step.logits, None
        if logits is None:
            total = step.features.new_zeros((), dtype=torch.float32)
        else:
            full = logits if logits.dtype is torch.float32 else logits.float()
            if step.mixed_labels is None:
                total = F.cross_entropy(full, step.batch.labels, label_smoothing=step.task.task.smoothing)
            else:
                total = self._mixed_loss(step, full, step.mixed_labels)
            terms["task"], predicted = total.detach(), logits.detach().argmax(1)
        if self.losses:
            total = self._regularized(step, total, terms, seen, calls, seeds)
        return total, terms, predicted

    def _mixed_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of mixed images; with regularizers they take their own pass, which updates no statistics."""
        if step.mixed_images is not None:
            with self.precision.autocast():
                logits = step.classify(step.extract(step.mixed_images, write_statistics=False)).float()
        return F.cross_entropy(logits, targets)

    def _regularized(
        self,
        step: Step,
        total: Tensor,
        terms: dict[str, Tensor],
        seen: Mapping[str, list[Tensor]],
        calls: Layers,
        seeds: Sequence[int],
    ) -> Tensor:
        """Return ``total`` plus the losses of regularizers; add their terms to ``terms``."""
        unseen, of_task = self.further.separate(step.batch), total
        for number, bound in enumerate(self.losses, 1):
            if seeds:
                reseed(self.precision.device, seeds[number])
            with self.precision.autocast():
                step.views = seen.get(bound.instance) or [
                    step.extract(images, write_statistics=False) for images in unseen.get(bound.instance, ())
                ]
            step.layers = (
                self.recording.of(bound.instance, calls) if self.recording is not None else NO_LAYERS
            )
            losses = self._losses(bound, step)
            weight: float | Tensor = bound.weight
            balances = self.gradients.get(bound.instance)
            if losses and step.logits is not None and (balances or (balances is not None and step.reports)):
                own_loss: Tensor = sum(losses.values())  # type: ignore[assignment]
                own_norm, task_norm = gradient_norm(step.task, own_loss), gradient_norm(step.task, of_task)
                if balances:
                    weight = torch.where(own_norm > LEAST_NORM, weight * task_norm / own_norm, 0.0)
                    terms[f"{bound.instance}/factor"] = weight
                else:
                    terms[f"{bound.instance}/gradient_ratio"] = weight * own_norm / task_norm
            for name, value in losses.items():
                terms[f"{bound.instance}/{name}"] = value.detach()
                total = total + weight * wide(value)
        step.layers = NO_LAYERS
        return total

    def _losses(self, bound: Bound, step: Step) -> Mapping[str, Tensor]:
        """Return a regularizer's losses: in float32, or in the precision of the run if it is marked ``autocast``."""
        if bound.autocast or self.precision.dtype == "float32":
            with self.precision.autocast():
                return bound.call(step)
        features, logits = step.features, step.logits
        step.features, step.logits = wide(features), None if logits is None else wide(logits)
        step.views = [wide(view) for view in step.views]
        step.layers = {
            name: [call._replace(input=wide(call.input), output=wide(call.output)) for call in calls]
            for name, calls in step.layers.items()
        }
        losses = bound.call(step)
        step.features, step.logits = features, logits
        return losses

    def _target_pass(self, step: Step) -> tuple[dict[str, list[Tensor]], Layers]:
        """Run the network; return features of extra views by instance, and the records of layers."""
        recording = self.recording
        with self.precision.autocast():
            if recording is None:
                return self._run(step), NO_LAYERS
            recording.begin()
            try:
                seen = self._run(step, recording)
            finally:
                calls = recording.end()
            return seen, calls

    def _run(self, step: Step, recording: LayerRecording | None = None) -> dict[str, list[Tensor]]:
        """Run the extractor and, if it learns, the head; return features of extra views by instance."""
        with step.task.extracting():
            step.features, seen = self.further.seen(step.task.extractor, step.batch)
        if recording is not None and seen:
            recording.narrow(1 + len(self.further))
        if step.task.runs_head:
            step.logits = step.task.head(step.features)
        return seen


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 if it has a narrower floating-point type, else the tensor itself."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def gradient_norm(task: TaskState, loss: Tensor) -> Tensor:
    """Return the norm of a loss's gradient over the trained parameters of a task's network, at least ``LEAST_NORM``.

    The graph is kept for the backward pass.

    Args:
        task: State of the task.
        loss: A scalar.

    Returns:
        A float32 scalar on the device of the loss.
    """
    network = trained_parameters(task)
    if not network or not loss.requires_grad:
        return torch.full((), LEAST_NORM, device=loss.device)
    gradients = torch.autograd.grad(loss, network, retain_graph=True, allow_unused=True)
    squares = [gradient.float().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(squares or [loss.new_zeros(())]).sum().sqrt().clamp(min=LEAST_NORM)


BACKEND = "inductor"
VARIANTS = 64
"""Largest number of compiled forms of the loss per process, by architecture, regularizers and batch shape."""


class Compiled:
    """An objective compiled by torch.compile into one graph, without breaks and for fixed shapes.

    Weights, buffers and images are inputs of the graph, so that the next seed of a sweep compiles nothing. Random
    numbers of the network (dropout) are drawn in the graph, from torch's generator.
    """

    def __init__(self, objective: Objective) -> None:
        """Compile nothing yet: torch does so in the first call."""
        self.objective = objective.unchecked()

    def __call__(self, step: Step, seeds: Sequence[int] = ()) -> Outcome:
        """See ``Objective.forward``; the seeds are ignored.

        Raises:
            torch._dynamo.exc.TorchDynamoException: It cannot be compiled into one graph.
        """
        return _compiled(BACKEND)(self.objective, step)


def _loss(objective: Objective, step: Step) -> Outcome:
    return objective(step)


@functools.cache
def _compiled(backend: str) -> Callable[..., Outcome]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    return torch.compile(_loss, backend=backend, fullgraph=True, dynamic=False)
