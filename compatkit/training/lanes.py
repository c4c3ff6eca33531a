"""What the steps of one task need, found out before the first: hooks as plain tuples, streams of seeds, optimisers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
import torch

from compatkit.plugins import RunPlugins
from compatkit.plugins.calls import Bound
from compatkit.training.compilation import Compiled
from compatkit.training.context import SetUp, TaskState
from compatkit.training.objective import Objective, Outcome
from compatkit.training.randomness import Stream
from compatkit.training.resident import Order

if TYPE_CHECKING:
    from compatkit.training.capture import Captured


@attrs.define(eq=False)
class Lane:
    """One task's way through its steps.

    Attributes:
        task: Whose.
        order: Which images come when.
        movers: The optimisers that its steps move: its network's and every shared module's.
        pinned: Whether indices go to the device through page-locked memory.
        augment: Seeds of crops and flips.
        span: The steps for which the tuples below are right: no plugin begins or ends in them.
        views: What changes a batch, with the seeds of what it draws; the others as their hooks are named.
        objective: What the steps minimise.
        forward: The same, or its compiled form.
        captured: The whole step as a CUDA graph, once it has been captured.
        seeds: Of what the network draws in it, and of what each regularizer does.
    """

    task: TaskState
    order: Order
    movers: tuple[torch.optim.Optimizer, ...]
    pinned: bool
    augment: Stream
    _setup: SetUp
    _plugins: RunPlugins
    objective: Objective
    forward: Callable[..., Outcome]
    captured: Captured | None = None
    span: range = range(0)
    views: tuple[tuple[Callable[..., Any], Stream], ...] = ()
    seeds: tuple[Stream, ...] = ()
    after_backward: tuple[Callable[..., Any], ...] = ()
    after_step: tuple[Callable[..., Any], ...] = ()
    after_epoch: tuple[Callable[..., Any], ...] = ()

    @classmethod
    def of(
        cls,
        task: TaskState,
        setup: SetUp,
        plugins: RunPlugins,
        batch_size: int,
        movers: tuple[torch.optim.Optimizer, ...],
    ) -> Lane:
        """Return the lane of a task.

        Raises:
            DataError: There are fewer images than in a batch.
        """
        nothing = Objective(setup.owners, (), setup.precision)
        return cls(
            task,
            Order(len(task.examples), batch_size, setup.seed, task.name),
            movers,
            task.examples.images.device.type == "cuda",
            Stream.of(setup.seed, "augment", task.name),
            setup,
            plugins,
            nothing,
            nothing,
        )

    def resolve(self, number: int, *, compiles: bool = False) -> None:
        """Take in which plugins are active at a step, and until when that is so; compile the loss where wanted."""
        plugins, name, seed = self._plugins, self.task.name, self._setup.seed
        everything = (
            *plugins.views,
            *plugins.losses,
            *plugins.after_backward,
            *plugins.after_step,
            *plugins.after_epoch,
        )
        edges = {edge for one in everything for edge in (one.phase.start, one.phase.stop) if edge is not None}
        begin = max((edge for edge in edges if edge <= number), default=0)
        end = min((edge for edge in edges if edge > number), default=2**62)
        self.span = range(begin, end)
        self.views = tuple(
            (one.call, Stream.of(seed, one.instance, "views", name)) for one in _active(plugins.views, number)
        )
        losses = _active(plugins.losses, number)
        self.objective = Objective(self._setup.owners, losses, self._setup.precision)
        self.forward = Compiled(self.objective) if compiles else self.objective
        self.captured = None
        drawing = [(name,), *((one.instance, name) for one in losses)]
        self.seeds = tuple(Stream.of(seed, "network", *key) for key in drawing)
        self.after_backward = tuple(one.call for one in _active(plugins.after_backward, number))
        self.after_step = tuple(one.call for one in _active(plugins.after_step, number))
        self.after_epoch = tuple(one.call for one in _active(plugins.after_epoch, number))


def _active(hooks: Iterable[Bound], number: int) -> tuple[Bound, ...]:
    return tuple(one for one in hooks if number in one.phase)
