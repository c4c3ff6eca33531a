"""The steps of one task, resolved before the first: hooks as plain tuples, streams of seeds, optimizers."""

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
from compatkit.training.batches.sources import BatchSource
from compatkit.training.distributed import World
from compatkit.training.execution import Captured
from compatkit.training.extra_views import SEPARATE, ExtraViews, ViewBatching, choose_view_batching
from compatkit.training.objective import Compiled, Objective, Outcome
from compatkit.training.plugin_setup import SetUp
from compatkit.training.randomness import Stream, states
from compatkit.training.settings import Settings
from compatkit.training.step import Step
from compatkit.training.task_state import TaskState, trained_parameters

NETWORK = "network/"
"""Prefix of a task's name in the name of the optimizer of its extractor and head."""
IN_STEPS = ("views", "further_views", "losses", "after_backward", "after_step", "after_epoch")
"""Events of a run that belong to its steps."""


@attrs.define(eq=False)
class TaskLoop:
    """The resolved hooks, seeds and optimizers for the steps of one task.

    Attributes:
        task: The task.
        source: Source of its batches.
        optimizers: Optimizers of its network and of every shared module.
        trainable: Those parameters.
        accumulation_steps: Number of micro-batches of a step.
        passes: Whether the extractor processes extra views in the pass of the batch.
        objective: The loss of its steps.
        forward: The same, or its compiled form.
        mixing: Mixes images and labels, or None.
        span: Steps for which the attributes below are valid: no plugin begins or ends in them.
        views_chained: Whether a step of the span was taken, after which pure views need no check.
        next_gradient_check: Step at which the graph of the loss is next checked for parameters that are not trained:
            the first of the span, then the powers of two; never without plugins.
        may_spoil_images: Whether images may not be finite: a loader's, or those that a plugin changed.
        captured: The complete step as a CUDA graph, once it has been captured.
        views: Hooks that change a batch, each with the seeds of its random numbers; pure ones have None, as they do
            not use torch's generators.
        seeds: Seeds of the random numbers of the network, then of each regularizer.
        others: Trained parameters of the other tasks' networks, by task, which no loss of these steps may depend on.
    """

    task: TaskState
    source: BatchSource
    optimizers: tuple[torch.optim.Optimizer, ...]
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
    may_spoil_images: bool = False
    captured: Captured | None = None
    views: tuple[tuple[Callable[..., Any], Stream | None], ...] = ()
    seeds: tuple[Stream, ...] = ()
    after_backward: tuple[Callable[..., Any], ...] = ()
    after_step: tuple[Callable[..., Any], ...] = ()
    after_epoch: tuple[Callable[..., Any], ...] = ()
    others: Mapping[str, tuple[Tensor, ...]] = attrs.field(factory=dict)

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
        own = tuple(
            optimizer
            for owner, optimizer in optimizers.items()
            if owner == NETWORK + name or not owner.startswith(NETWORK)
        )
        if not own:
            raise UsageError(
                f"Task {name!r} has nothing to train: all parameters of its network and of shared heads are frozen "
                "(requires_grad is False).",
                subject=name,
            )
        source = settings.image_placement.source(task, setup.seed, size, precision, world.share(size))
        recorder, passes = setup.recorders.get(name), SEPARATE
        if recorder is not None:
            recorder.dry_run((len(task.data.mean), *task.data.size), precision)
        if plugins.further_views:
            passes = choose_view_batching(settings.passes, task, precision.device, recorder)
        nothing, mixing = Objective(setup.owners, (), precision), None
        if task.task.mixes:
            if (share := size // world.size // settings.accumulate) % 2:
                raise UsageError(
                    f"Task {name!r} mixes images in pairs, and {share} images per micro-batch is an odd number. Set "
                    "batch_size to a multiple of 2 * accumulate * processes.",
                    subject=name,
                )
            mixing = Mixing(task.task.mixup, task.task.cutmix, task.task.smoothing, len(task.labels))
        trainable = tuple(p for optimizer in own for group in optimizer.param_groups for p in group["params"])
        run = settings.accumulate, setup, plugins, world.key
        return cls(task, source, own, trainable, *run, passes, nothing, nothing, mixing)

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
        """Resolve the plugins that are active at a step, and the span of steps in which they are; compile on request.

        Args:
            number: Number of the step, from 0.
            compiles: Whether to compile the losses.
        """
        plugins, name, setup = self._plugins, self.task.name, self._setup
        device = setup.precision.device
        phases = [bound.phase for event in IN_STEPS for bound in getattr(plugins, event)]
        edges = {edge for phase in phases for edge in (phase.start, phase.stop) if edge is not None}
        begin = max((edge for edge in edges if edge <= number), default=0)
        end = min((edge for edge in edges if edge > number), default=2**62)
        self.span, self.views_chained = range(begin, end), False
        self.next_gradient_check = number if plugins.members else 2**62
        others = {other: state for other, state in setup.tasks.items() if other != name and plugins.members}
        self.others = {other: tuple(trained_parameters(state)) for other, state in others.items()}
        bounds = {event: getattr(plugins, event) for event in IN_STEPS}
        active = {event: tuple(b for b in all_of if number in b.phase) for event, all_of in bounds.items()}
        self.views = tuple(
            (_watched(bound, device), None)
            if bound.effect == "pure"
            else (bound.call, Stream.of(setup.seed, bound.instance, "views", name, *self._key))
            for bound in active["views"]
        )
        self.may_spoil_images = bool(self.views) or self.task.task.loader is not None
        losses = active["losses"]
        further = ExtraViews.of(active["further_views"], self.task.data.size, self.passes.fused)
        # A plugin that changes the images of a batch would leave views of them unchanged.
        self.source.arrange(further.make if len(further) and not self.views else None)
        recorder = setup.recorders.get(name)
        recording = recorder.record(bound.instance for bound in losses) if recorder is not None else None
        self.objective = Objective(
            setup.owners, losses, setup.precision, further, recording=recording, gradients=setup.gradients
        )
        # An objective has no hooks; calling it as a module would only cost time.
        self.forward = Compiled(self.objective) if compiles else self.objective.forward
        self.captured = None
        drawing = [(name,), *((bound.instance, name) for bound in losses)]
        self.seeds = tuple(Stream.of(setup.seed, "network", *key, *self._key) for key in drawing)
        for event in ("after_backward", "after_step", "after_epoch"):
            setattr(self, event, after_chain(active[event], f"compatkit_{event}"))


def _watched(bound: Bound, device: str) -> Callable[..., Any]:
    """Return the call of a pure view, checked to draw nothing from torch's generator, which is not seeded for it."""

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
