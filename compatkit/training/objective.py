"""Loss of a step as a function of modules and a batch, eager and compiled."""

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

MIN_NORM = 1e-12
"""Norm of a gradient in a ratio at least; the factor of smaller gradients is 0."""
NO_VIEWS = ExtraViews()
Outcome = tuple[Tensor, dict[str, Tensor], Tensor | None]
"""Loss, a float32 scalar with its graph; detached terms by name; predicted classes, or None without a head."""


class Objective(nn.Module):
    """Cross-entropy of the target head plus the losses of regularizers.

    A module with all trained modules, so that ``torch.func.functional_call`` can replace their weights for plugins too.
    It reads no value of a tensor on the host.

    Attributes:
        owners: Modules of the run by owner, with ``/`` instead of dots.
        losses: Regularizers that add to the loss, in order.
        extra_views: Extra views of the batch for regularizers.
        recording: Recorded layers of the task for regularizers, or None.
        gradients: See ``SetUp.gradients``.
        sample_losses: Regularizers that change the task's loss of each image, in order.
    """

    def __init__(
        self,
        owners: Mapping[str, nn.Module],
        losses: tuple[Bound, ...],
        precision: Precision,
        extra_views: ExtraViews = NO_VIEWS,
        recording: LayerRecording | None = None,
        gradients: Mapping[str, bool] | None = None,
        sample_losses: tuple[Bound, ...] = (),
    ) -> None:
        """See the class."""
        super().__init__()
        self.owners = nn.ModuleDict({owner.replace(".", "/"): module for owner, module in owners.items()})
        self.losses, self.precision, self.extra_views = losses, precision, extra_views
        self.recording, self.gradients = recording, gradients or {}
        self.sample_losses = sample_losses

    def unchecked(self) -> Objective:
        """Return a copy without checks of plugins' return values, for a compiler."""
        objective = copy.copy(self)
        for event in ("losses", "sample_losses"):
            bounds = (attrs.evolve(bound, call=bound.function) for bound in getattr(self, event))
            setattr(objective, event, tuple(bounds))
        objective.extra_views = self.extra_views.unchecked()
        return objective

    def forward(self, step: Step, seeds: Sequence[int] = ()) -> Outcome:
        """Compute the loss of a step, and store features and logits in it.

        Args:
            step: Step with its batch.
            seeds: Seeds for the network, then for each of ``losses`` and ``sample_losses``; empty to not seed torch's
                generators.

        Returns:
            Loss, terms and predictions; see ``Outcome``.
        """
        losses, terms, predicted = self.each(step, seeds)
        return total_loss(step, losses), terms, predicted

    def each(
        self, step: Step, seeds: Sequence[int] = ()
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None]:
        """Compute the losses of a step one by one; see ``forward``.

        Returns:
            Losses with their weights and graphs by name; terms and predictions as in ``Outcome``.
        """
        # Weights are cast once for the network and for the losses of regularizers; a compiler does so by itself.
        keeps = self.losses and self.precision.dtype != "float32" and not torch.compiler.is_compiling()
        if keeps:
            torch.autocast_increment_nesting()
        try:
            if seeds:
                reseed(self.precision.device, seeds[0])
            if self.recording is None and self.precision.dtype == "float32":
                view_features, calls = self._run(step), NO_LAYERS
            else:
                view_features, calls = self._target_pass(step)
            losses: dict[str, Tensor] = {}
            terms: dict[str, Tensor] = {}
            logits, predicted = step.logits, None
            if logits is not None:
                full = logits if logits.dtype is torch.float32 else logits.float()
                if self.sample_losses:
                    loss = self._changed_loss(step, full, terms, seeds)
                elif step.mixed_labels is None:
                    loss = F.cross_entropy(full, step.batch.labels, label_smoothing=step.task.task.smoothing)
                else:
                    loss = F.cross_entropy(self._mixed_pass(step, full)[1], step.mixed_labels)
                losses["task"], terms["task"], predicted = loss, loss.detach(), logits.detach().argmax(1)
            if self.losses:
                self._add_losses(step, losses, terms, view_features, calls, seeds)
            return losses, terms, predicted
        finally:
            if keeps and torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()

    def _mixed_pass(self, step: Step, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of mixed images; with regularizers of another pass, which writes no statistics."""
        if step.mixed_images is None:
            return step.features, logits
        with self.precision.autocast():
            features = step.extract(step.mixed_images, write_statistics=False)
            return features, step.classify(features).float()

    def _changed_loss(
        self, step: Step, logits: Tensor, terms: dict[str, Tensor], seeds: Sequence[int]
    ) -> Tensor:
        """Return the mean of the task's losses of single images after the changes of regularizers."""
        features, own_logits = step.features, step.logits
        used_features, used_logits = self._mixed_pass(step, logits)
        mixed, smoothing = step.mixed_labels, step.task.task.smoothing
        if mixed is None:
            losses = F.cross_entropy(
                used_logits, step.batch.labels, reduction="none", label_smoothing=smoothing
            )
        else:
            losses = F.cross_entropy(used_logits, mixed, reduction="none")
        terms["cross_entropy"] = losses.detach().mean()
        step.features, step.logits = wide(used_features), used_logits
        for number, bound in enumerate(self.sample_losses, 1 + len(self.losses)):
            if seeds:
                reseed(self.precision.device, seeds[number])
            changed = bound.call(step, losses)
            losses = changed if bound.weight == 1 else losses + bound.weight * (changed - losses)
        step.features, step.logits = features, own_logits
        return wide(losses).mean()

    def _add_losses(
        self,
        step: Step,
        weighted: dict[str, Tensor],
        terms: dict[str, Tensor],
        view_features: Mapping[str, list[Tensor]],
        calls: Layers,
        seeds: Sequence[int],
    ) -> None:
        """Add the losses of regularizers to ``weighted``, and their terms to ``terms``."""
        view_images = self.extra_views.separate(step.batch)
        for number, bound in enumerate(self.losses, 1):
            if seeds:
                reseed(self.precision.device, seeds[number])
            with self.precision.autocast():
                step.views = view_features.get(bound.instance) or [
                    step.extract(images, write_statistics=False)
                    for images in view_images.get(bound.instance, ())
                ]
            step.layers = (
                self.recording.of(bound.instance, calls) if self.recording is not None else NO_LAYERS
            )
            losses = self._losses(bound, step)
            weight: float | Tensor = bound.weight
            balances = self.gradients.get(bound.instance)
            if losses and step.logits is not None and (balances or (balances is not None and step.reports)):
                loss: Tensor = sum(losses.values())  # type: ignore[assignment]
                norm, task_norm = gradient_norm(step.task, loss), gradient_norm(step.task, weighted["task"])
                if balances:
                    weight = torch.where(norm > MIN_NORM, weight * task_norm / norm, 0.0)
                    terms[f"{bound.instance}/factor"] = weight
                else:
                    terms[f"{bound.instance}/gradient_ratio"] = weight * norm / task_norm
            for name, value in losses.items():
                terms[f"{bound.instance}/{name}"] = value.detach()
                weighted[f"{bound.instance}/{name}"] = weight * wide(value)
        step.layers = NO_LAYERS

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
        """Run the network in the precision of the run; return what ``_run`` does, and the recorded calls of layers."""
        recording = self.recording
        with self.precision.autocast():
            if recording is None:
                return self._run(step), NO_LAYERS
            recording.begin()
            try:
                view_features = self._run(step, recording)
            finally:
                calls = recording.end()
            return view_features, calls

    def _run(self, step: Step, recording: LayerRecording | None = None) -> dict[str, list[Tensor]]:
        """Run the extractor and, if it learns, the head; return features of extra views by plugin instance."""
        task = step.task
        if not self.extra_views.hooks and not task.freezes_extractor:
            step.features, view_features = task.extractor(step.batch.images), {}
        else:
            with task.extracting():
                step.features, view_features = self.extra_views.extract(task.extractor, step.batch)
        if recording is not None and view_features:
            recording.narrow(1 + len(self.extra_views))
        if task.runs_head:
            step.logits = task.head(step.features)
        return view_features


def total_loss(step: Step, losses: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the losses of a step, a float32 scalar; 0 without losses.

    Args:
        step: Step after its forward pass.
        losses: Losses with their weights, by name.
    """
    total = losses.get("task")
    if total is None:
        total = step.features.new_zeros((), dtype=torch.float32)
    for name, loss in losses.items():
        if name != "task":
            total = total + loss
    return total


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 if it has a narrower floating-point dtype, else unchanged."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def gradient_norm(task: TaskState, loss: Tensor) -> Tensor:
    """Return the norm of a loss's gradient over the trained parameters of a task's network, at least ``MIN_NORM``.

    The graph is kept for the backward pass.

    Args:
        task: State of the task.
        loss: Loss, a scalar.

    Returns:
        Norm, a float32 scalar on the device of the loss.
    """
    network = trained_parameters(task)
    if not network or not loss.requires_grad:
        return torch.full((), MIN_NORM, device=loss.device)
    gradients = torch.autograd.grad(loss, network, retain_graph=True, allow_unused=True)
    squares = [gradient.float().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(squares or [loss.new_zeros(())]).sum().sqrt().clamp(min=MIN_NORM)


BACKEND = "inductor"
MAX_COMPILED = 64
"""Compiled forms of the loss in a process at most, by architecture, regularizers and batch shape."""


class Compiled:
    """Objective compiled by torch.compile into one graph, without breaks and for fixed shapes.

    Weights, buffers and images are inputs of the graph, so that the next seed of a sweep compiles nothing. Random
    numbers of the network (dropout) are drawn in the graph, from torch's generator.
    """

    def __init__(self, objective: Objective) -> None:
        """See the class; torch compiles in the first call."""
        self.objective = objective.unchecked()

    def __call__(self, step: Step, seeds: Sequence[int] = ()) -> Outcome:
        """See ``Objective.forward``; the seeds are ignored.

        Raises:
            torch._dynamo.exc.TorchDynamoException: The loss cannot be compiled into one graph.
        """
        return _compiled(BACKEND)(self.objective, step)


def _loss(objective: Objective, step: Step) -> Outcome:
    return objective(step)


@functools.cache
def _compiled(backend: str) -> Callable[..., Outcome]:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_COMPILED)
    return torch.compile(_loss, backend=backend, fullgraph=True, dynamic=False)
