"""Steps of one task with hooks, seeds and optimizers that are resolved before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.adapters.mixing import Mixing
from compatkit.errors import PluginError, UsageError
from compatkit.hooks import Batch
from compatkit.plugins import RunPlugins
from compatkit.plugins.calls import Bound, after_chain, views_chain
from compatkit.training.batches.chosen_order import ChosenOrder
from compatkit.training.batches.sources import BatchSource
from compatkit.training.distributed import World
from compatkit.training.execution import Captured
from compatkit.training.extra_views import SEPARATE, ExtraViews, ViewBatching, choose_view_batching
from compatkit.training.fused_steps import update_of
from compatkit.training.objective import Compiled, Objective, Outcome
from compatkit.training.plugin_setup import SetUp
from compatkit.training.randomness import Stream, states
from compatkit.training.settings import Settings
from compatkit.training.step import Step
from compatkit.training.task_state import TaskState, trained_parameters

NETWORK = "network/"
"""Prefix of a task's name in the name of the optimizer of its extractor and head."""
STEP_EVENTS = (
    *("views", "further_views", "sample_losses", "losses"),
    *("combine_gradients", "after_backward", "after_step", "after_epoch"),
)
"""Events of a run that belong to its steps."""


@attrs.define(eq=False)
class TaskLoop:
    """Resolved hooks, seeds and optimizers for the steps of one task.

    Attributes:
        task: State of the task.
        source: Source of its batches.
        updates: Steps of the optimizers of its network and of every shared module.
        trainable: Parameters of the optimizers.
        accumulation_steps: Number of micro-batches of a step.
        passes: Whether the extractor processes extra views in the pass of the batch.
        objective: Loss of its steps.
        forward: Loss, or its compiled form.
        mixing: Mixing of images and labels, or None.
        span: Steps for which the attributes below are valid: no plugin begins or ends in them.
        views_chained: Whether a step of the span was taken, after which pure views need no check.
        next_gradient_check: Step of the next check of the loss's graph for parameters that are not trained: the first
            of the span, then the powers of two; never without plugins.
        loads_images: Whether images come from a loader, which may give some that are not finite.
        captured: Complete step as a CUDA graph, or None.
        views: Hooks that change a batch, each with the seeds of its random numbers; None for pure ones, which do not
            use torch's generators.
        seeds: Seeds of the random numbers of the network, then of each regularizer with losses, then of each one that
            changes the task's losses.
        combine: Hook that combines the gradients of single losses, or None.
        parameters: Parameters of the optimizers by owner and name, for that hook.
        other_parameters: Trained parameters of the other tasks' networks, by task, which no loss of these steps may
            depend on.
    """

    task: TaskState
    source: BatchSource
    updates: tuple[Callable[[], object], ...]
    trainable: tuple[Tensor, ...]
    accumulation_steps: int
    _setup: SetUp
    _plugins: RunPlugins
    _key: tuple[str | int, ...]
    passes: ViewBatching
    objective: Objective
    forward: Callable[..., Outcome]
    mixing: Mixing | None = None
    span: range = range(0)
    views_chained: bool = False
    next_gradient_check: int = 0
    loads_images: bool = False
    captured: Captured | None = None
    views: tuple[tuple[Callable[..., Any], Stream | None], ...] = ()
    seeds: tuple[Stream, ...] = ()
    combine: Bound | None = None
    parameters: Mapping[str, Tensor] = attrs.field(factory=dict)
    after_backward: tuple[Callable[..., Any], ...] = ()
    after_step: tuple[Callable[..., Any], ...] = ()
    after_epoch: tuple[Callable[..., Any], ...] = ()
    other_parameters: Mapping[str, tuple[Tensor, ...]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls,
        settings: Settings,
        setup: SetUp,
        plugins: RunPlugins,
        world: World,
        task: TaskState,
        optimizers: Mapping[str, torch.optim.Optimizer],
    ) -> TaskLoop:
        """Return the loop of a task before its first step; ``Loop`` documents its errors.

        Args:
            settings: Settings of the trainer.
            setup: Tasks and networks of the run.
            plugins: Regularizers of the run.
            world: Processes of the run.
            task: State of the task.
            optimizers: Optimizers of the run, by owner.
        """
        name, size, precision = task.name, settings.batch_size, setup.precision
        task_optimizers = tuple(
            optimizer
            for owner, optimizer in optimizers.items()
            if owner == NETWORK + name or not owner.startswith(NETWORK)
        )
        if not task_optimizers:
            raise UsageError(
                f"Task {name!r} has nothing to train: all parameters of its network and of shared heads are frozen "
                "(requires_grad is False).",
                subject=name,
            )
        choose = None
        if plugins.sampler:
            choose = ChosenOrder(plugins.sampler, task, setup.seed, precision.device, world)
        source = settings.image_placement.source(task, setup.seed, size, precision, world.share(size), choose)
        recorder, passes = setup.recorders.get(name), SEPARATE
        if recorder is not None:
            recorder.dry_run((len(task.data.mean), *task.data.size), precision)
        if plugins.further_views:
            passes = choose_view_batching(settings.passes, task, precision.device, recorder)
        objective, mixing = Objective(setup.owners, (), precision), None
        if task.task.mixes:
            if (share := size // world.size // settings.accumulate) % 2:
                raise UsageError(
                    f"Task {name!r} mixes images in pairs, and {share} images per micro-batch is an odd number. Set "
                    "batch_size to a multiple of 2 * accumulate * processes.",
                    subject=name,
                )
            mixing = Mixing(task.task.mixup, task.task.cutmix, task.task.smoothing, len(task.labels))
        groups = [group for optimizer in task_optimizers for group in optimizer.param_groups]
        trainable = tuple(parameter for group in groups for parameter in group["params"])
        run = settings.accumulate, setup, plugins, world.key
        updates = tuple(map(update_of, task_optimizers))
        return cls(task, source, updates, trainable, *run, passes, objective, objective, mixing)

    def chain_views(self) -> None:
        """Chain consecutive pure views behind one guard: each was checked in the first step of the span."""
        bounds = [bound for bound in self._plugins.views if self.span.start in bound.phase]
        views: list[tuple[Callable[..., Any], Stream | None]] = []
        pairs = zip(bounds, self.views, strict=True)
        for pure, group in groupby(pairs, key=lambda pair: pair[1][1] is None):
            run = list(group)
            views += [(views_chain([bound for bound, _ in run]), None)] if pure else [view for _, view in run]
        self.views = tuple(views)
        self.views_chained = True

    def resolve(self, number: int, *, compiles: bool = False) -> None:
        """Resolve the active plugins of a step, and the span of steps with the same active plugins.

        Args:
            number: Number of the step, from 0.
            compiles: Whether to compile the loss.
        """
        plugins, name, setup = self._plugins, self.task.name, self._setup
        device = setup.precision.device
        phases = [bound.phase for event in STEP_EVENTS for bound in getattr(plugins, event)]
        edges = {edge for phase in phases for edge in (phase.start, phase.stop) if edge is not None}
        begin = max((edge for edge in edges if edge <= number), default=0)
        end = min((edge for edge in edges if edge > number), default=2**62)
        self.span, self.views_chained = range(begin, end), False
        self.next_gradient_check = number if plugins.members else 2**62
        self.other_parameters = {
            other: tuple(trained_parameters(state))
            for other, state in setup.tasks.items()
            if other != name and plugins.members
        }
        active = {
            event: tuple(bound for bound in getattr(plugins, event) if number in bound.phase)
            for event in STEP_EVENTS
        }
        self.views = tuple(
            (_checked_pure(bound, device), None)
            if bound.effect == "pure"
            else (bound.call, Stream.of(setup.seed, bound.instance, "views", name, *self._key))
            for bound in active["views"]
        )
        self.loads_images = self.task.task.loader is not None
        losses, sample_losses = active["losses"], active["sample_losses"]
        extra_views = ExtraViews.of(active["further_views"], self.task.data.size, self.passes.fused)
        # Views that are gathered with a batch would not have the changes of a plugin to its images.
        self.source.arrange(extra_views.make if len(extra_views) and not self.views else None)
        recorder = setup.recorders.get(name)
        recording = recorder.record(bound.instance for bound in losses) if recorder is not None else None
        self.objective = Objective(
            setup.owners,
            losses,
            setup.precision,
            extra_views,
            recording=recording,
            gradients=setup.gradients,
            sample_losses=sample_losses,
        )
        # An objective has no hooks, so that calling it as a module would only cost time.
        self.forward = Compiled(self.objective) if compiles else self.objective.forward
        self.captured = None
        keys = [(name,), *((bound.instance, name) for bound in losses)]
        self.seeds = tuple(Stream.of(setup.seed, "network", *key, *self._key) for key in keys)
        self.seeds += tuple(
            Stream.of(setup.seed, bound.instance, "sample_losses", name, *self._key)
            for bound in sample_losses
        )
        self.combine = next(iter(active["combine_gradients"]), None)
        moved = {id(parameter) for parameter in self.trainable} if self.combine is not None else ()
        self.parameters = {
            f"{owner}.{parameter_name}": parameter
            for owner, module in setup.owners.items()
            for parameter_name, parameter in (module.named_parameters() if moved else ())
            if id(parameter) in moved
        }
        for event in ("after_backward", "after_step", "after_epoch"):
            setattr(self, event, after_chain(active[event], f"compatkit_{event}"))


def _checked_pure(bound: Bound, device: str) -> Callable[..., Any]:
    """Return the call of a pure view with a check that it draws nothing from torch's generator."""

    def call(step: Step, batch: Batch) -> Batch:
        before = states(device)
        after = bound.call(step, batch)
        if any(not torch.equal(state, other) for state, other in zip(before, states(device), strict=True)):
            raise PluginError(
                f"Plugin {bound.instance!r}: compatkit_views is declared @effect('pure') but draws from torch's "
                "global generator. Draw from step.rng(...), or declare @effect('device').",
                plugin=bound.instance,
                hook="compatkit_views",
            )
        return after

    return call
