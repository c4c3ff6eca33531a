"""What the steps of one task need, found out before the first: hooks as plain tuples, streams of seeds, optimisers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import PluginError, UsageError
from compatkit.hooks import Batch
from compatkit.plugins import RunPlugins
from compatkit.plugins.calls import Bound, after_chain, views_chain
from compatkit.training.batches.sources import BatchSource
from compatkit.training.distributed import World
from compatkit.training.execution import Captured
from compatkit.training.objective import Compiled, Objective, Outcome
from compatkit.training.randomness import Stream, states
from compatkit.training.set_up import SetUp
from compatkit.training.settings import Settings
from compatkit.training.state import TaskState
from compatkit.training.step import Step
from compatkit.training.views import SEPARATE, ExtraViews, ViewBatching, choose_view_batching

NETWORK = "network/"
"""Before a task's name: the optimiser of its extractor and head."""


@attrs.define(eq=False)
class TaskLoop:
    """One task's way through its steps.

    Attributes:
        task: Whose.
        source: Where its batches come from.
        optimisers: Of what its steps move: its network and every shared module.
        accumulation_steps: In how many micro-batches the batch of a step is worked through.
        span: The steps for which the tuples below are right: no plugin begins or ends in them.
        settled: Whether a step of the span was taken, and pure views need not be looked at any more.
        followed: Whether the loss of a step of the span was followed to what it reaches; nobody but plugins could lead
            it astray.
        views: What changes a batch, with the seeds of what it draws, None for a pure one, which draws nothing from
            torch's generators; the others as their hooks are named.
        objective: What the steps minimise.
        forward: The same, or its compiled form.
        captured: The whole step as a CUDA graph, once it has been captured.
        passes: Whether the extractor sees further views in the pass of the batch.
        seeds: Of what the network draws in it, and of what each regularizer does.
    """

    task: TaskState
    source: BatchSource
    optimisers: tuple[torch.optim.Optimizer, ...]
    accumulation_steps: int
    _setup: SetUp
    _plugins: RunPlugins
    _key: tuple[str | int, ...]
    passes: ViewBatching
    objective: Objective
    forward: Callable[..., Outcome]
    captured: Captured | None = None
    span: range = range(0)
    settled: bool = False
    followed: bool = False
    views: tuple[tuple[Callable[..., Any], Stream | None], ...] = ()
    seeds: tuple[Stream, ...] = ()
    after_backward: tuple[Callable[..., Any], ...] = ()
    after_step: tuple[Callable[..., Any], ...] = ()
    after_epoch: tuple[Callable[..., Any], ...] = ()

    @classmethod
    def of(
        cls,
        settings: Settings,
        setup: SetUp,
        plugins: RunPlugins,
        world: World,
        task: TaskState,
        optimisers: Mapping[str, torch.optim.Optimizer],
    ) -> TaskLoop:
        """Return the loop of a task before its first step.

        Raises:
            DataError: There are fewer images than in a batch.
            UsageError: Nothing that its steps could move is left to move; one pass for all views was asked for, and the
                extractor would mix them; or a layer cannot be recorded.
        """
        name, size = task.name, settings.batch_size
        own = tuple(
            made for one, made in optimisers.items() if one == NETWORK + name or not one.startswith(NETWORK)
        )
        if not own:
            raise UsageError(
                f"Task {name!r} has nothing to train: all parameters of its network, and of every head that is "
                "shared, are frozen (requires_grad is False). Leave some of them free.",
                subject=name,
            )
        source = settings.placing.source(task, setup.seed, size, setup.precision, world.share(size))
        recorder, seen = setup.recorders.get(name), SEPARATE
        if recorder is not None:
            recorder.dry_run((len(task.data.mean), *task.data.size), setup.precision)
        if plugins.further_views:
            seen = choose_view_batching(settings.passes, task, setup.precision.device, recorder)
        nothing = Objective(setup.owners, (), setup.precision)
        pieces = settings.accumulate
        return cls(task, source, own, pieces, setup, plugins, world.key, seen, nothing, nothing)

    @property
    def trainable(self) -> list[Tensor]:
        """The parameters that its steps move."""
        return [
            one
            for optimiser in self.optimisers
            for group in optimiser.param_groups
            for one in group["params"]
        ]

    def settle(self) -> None:
        """Call pure views in a row behind one guard from now on: each was looked at in the first step of a span."""
        bounds = _active(self._plugins.views, self.span.start)
        views: list[tuple[Callable[..., Any], Stream | None]] = []
        for pure, some in groupby(zip(bounds, self.views, strict=True), key=lambda one: one[1][1] is None):
            run = list(some)
            views += [(views_chain([one for one, _ in run]), None)] if pure else [view for _, view in run]
        self.views = tuple(views)
        self.settled = True

    def resolve(self, number: int, *, compiles: bool = False) -> None:
        """Take in which plugins are active at a step, and until when that is so; compile the loss where wanted."""
        plugins, name, seed = self._plugins, self.task.name, self._setup.seed
        everything = (
            *plugins.views,
            *plugins.further_views,
            *plugins.losses,
            *plugins.after_backward,
            *plugins.after_step,
            *plugins.after_epoch,
        )
        edges = {edge for one in everything for edge in (one.phase.start, one.phase.stop) if edge is not None}
        begin = max((edge for edge in edges if edge <= number), default=0)
        end = min((edge for edge in edges if edge > number), default=2**62)
        self.span, self.settled, self.followed = range(begin, end), False, not plugins.members
        self.views = tuple(
            (_watched(one, self._setup.precision.device), None)
            if one.effect == "pure"
            else (one.call, Stream.of(seed, one.instance, "views", name, *self._key))
            for one in _active(plugins.views, number)
        )
        losses = _active(plugins.losses, number)
        hooks = _active(plugins.further_views, number)
        further = ExtraViews.of(hooks, self.task.data.size, self.passes.fused)
        # Whatever changes images in a batch would leave views of them as they were.
        self.source.arrange(further.make if len(further) and not self.views else None)
        recorder = self._setup.recorders.get(name)
        recording = recorder.follow(one.instance for one in losses) if recorder is not None else None
        self.objective = Objective(
            self._setup.owners,
            losses,
            self._setup.precision,
            further,
            recording=recording,
            gradients=self._setup.gradients,
        )
        # Nobody hangs hooks on an objective, so that a module's call would only cost time.
        self.forward = Compiled(self.objective) if compiles else self.objective.forward
        self.captured = None
        drawing = [(name,), *((one.instance, name) for one in losses)]
        self.seeds = tuple(Stream.of(seed, "network", *key, *self._key) for key in drawing)
        self.after_backward = after_chain(_active(plugins.after_backward, number), "compatkit_after_backward")
        self.after_step = after_chain(_active(plugins.after_step, number), "compatkit_after_step")
        self.after_epoch = after_chain(_active(plugins.after_epoch, number), "compatkit_after_epoch")


def _active(hooks: Iterable[Bound], number: int) -> tuple[Bound, ...]:
    return tuple(one for one in hooks if number in one.phase)


def _watched(bound: Bound, device: str) -> Callable[..., Any]:
    """Return the call of a pure view, which is looked at once: it must draw nothing that nobody seeds for it."""

    def call(step: Step, batch: Batch) -> Batch:
        before = states(device)
        after = bound.call(step, batch)
        if any(not torch.equal(one, other) for one, other in zip(before, states(device), strict=True)):
            raise PluginError(
                f"Plugin {bound.instance!r}: compatkit_views is declared @effect('pure') and draws from torch's global "
                "generator, which is not seeded for it. Draw from step.rng(...), or declare @effect('device').",
                plugin=bound.instance,
                hook="compatkit_views",
            )
        return after

    return call
