"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from compatkit.errors import UsageError
from compatkit.evaluation.preprocessing import normalise
from compatkit.plugins import RunPlugins
from compatkit.training.accumulation import labels, pieces, together
from compatkit.training.averaging import Averages, Averaging
from compatkit.training.capture import Captured
from compatkit.training.context import Batch, SetUp, Step, TaskState
from compatkit.training.execution import EAGER, Execution
from compatkit.training.lanes import Lane
from compatkit.training.objective import Outcome
from compatkit.training.optimisation import Optimisation, set_rate
from compatkit.training.progress import Measured
from compatkit.training.randomness import reseed
from compatkit.training.resident import augment
from compatkit.training.schedules import Schedule

NETWORK = "network/"
"""Before a task's name: the optimiser of its extractor and head."""


@attrs.define(eq=False, slots=False)
class Loop:
    """Takes steps; owns the optimisers, one a network and one a shared module.

    Attributes:
        steps: Steps of each task.
        optimisers: ``network/<task>`` moves extractor and head together; shared modules have one each, by owner.
        lanes: By task, what its steps need, resolved before the first.
        moving: All parameters that some optimiser moves.
        execution: Whether steps are compiled or captured.
        clip_norm: Largest norm of all gradients that a step moves by; None leaves them as they are.
        averages: Moving averages of everything that is trained, or None.
    """

    setup: SetUp
    plugins: RunPlugins
    optimisation: Optimisation
    schedule: Schedule
    steps: int
    optimisers: dict[str, torch.optim.Optimizer]
    lanes: dict[str, Lane]
    moving: tuple[Tensor, ...]
    execution: Execution = EAGER
    _rate: float = -1.0
    clip_norm: float | None = None
    averages: Averages | None = None

    @classmethod
    def create(
        cls,
        setup: SetUp,
        plugins: RunPlugins,
        optimisation: Optimisation,
        schedule: Schedule,
        steps: int,
        batch_size: int,
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        averaging: Averaging | None = None,
    ) -> Loop:
        """Make the loop of a run whose owners are complete.

        Raises:
            UsageError: Nothing that a task's steps could move is left to move.
        """
        pairs = {f"{name}.{side}": NETWORK + name for name in setup.tasks for side in ("extractor", "head")}
        moved: dict[str, list[Tensor]] = {}
        for owner, module in setup.owners.items():
            kept = moved.setdefault(pairs.get(owner, owner), [])
            kept.extend(one for one in module.parameters() if one.requires_grad)
        optimisers = {name: optimisation.make(each) for name, each in moved.items() if each}
        lanes = {
            name: Lane.of(
                state,
                setup,
                plugins,
                batch_size,
                tuple(
                    made
                    for one, made in optimisers.items()
                    if one == NETWORK + name or not one.startswith(NETWORK)
                ),
                accumulate,
            )
            for name, state in setup.tasks.items()
        }
        everything = tuple(one for each in moved.values() for one in each)
        for name, lane in lanes.items():
            if not lane.movers:
                raise UsageError(
                    f"Task {name!r} has nothing to train: all parameters of its network, and of every head that is "
                    "shared, are frozen (requires_grad is False). Leave some of them free.",
                    subject=name,
                )
        averages = Averages.of(averaging, setup.owners, setup.tasks) if averaging is not None else None
        made = cls(setup, plugins, optimisation, schedule, steps, optimisers, lanes, everything)
        made.clip_norm, made.averages = clip_norm, averages
        return made

    def train_mode(self) -> None:
        """Put all modules into the mode they train in; frozen heads with stored statistics stay in eval."""
        for module in self.setup.owners.values():
            module.train()
        for head in self.setup.auxiliary.values():
            if head.frozen:
                head.module.train(head.statistics == "batch")

    def set_execution(self, execution: Execution) -> None:
        """Execute steps otherwise from now on."""
        self.execution = execution
        for lane in self.lanes.values():
            lane.span, lane.captured = range(0), None

    def step(self, task: TaskState, number: int) -> Measured:
        """Take one step of one task.

        Returns:
            Its losses by name, and as ``"accuracy"`` the predicted and the true classes, all still on the device.
        """
        lane = self.lanes[task.task.name]
        steps, terms, answers = self.work(lane, number)
        if self.averages is not None:
            self.averages.follow(task.name, number)
        step = steps[-1]
        for call in lane.after_step:
            call(step)
        if lane.after_epoch and (number + 1) % lane.order.per_epoch == 0:
            for call in lane.after_epoch:
                call(step)
        return {**terms, "accuracy": (answers, labels(steps))}

    def work(self, lane: Lane, number: int) -> tuple[list[Step], dict[str, Tensor], Tensor]:
        """Do all of a step but what plugins do after it; see ``descend``."""
        if number not in lane.span:
            lane.resolve(number, compiles=self.execution.compiles)
        steps = self.prepare(lane, number)
        self._set_rate(number)
        if not self.execution.captures:
            return steps, *self.descend(lane, steps, number)
        batches = [step.batch for step in steps]
        if lane.captured is None:
            lane.captured = Captured(self, lane, batches)
        return steps, *lane.captured.replay(batches)

    def prepare(self, lane: Lane, number: int) -> list[Step]:
        """Return the pieces of a step, mostly one, with their batches as the plugins of this lane want them."""
        steps = pieces(self.begin(lane, number), lane.pieces)
        for step in steps:
            self._show(lane, step)
        return steps

    def _show(self, lane: Lane, step: Step) -> None:
        """Let plugins change the batch of a step, or of a piece of it."""
        for call, stream in lane.views:
            reseed(self.setup.precision.device, stream.at(step.number * lane.pieces + step.piece))
            step.batch = call(step, step.batch)

    def begin(self, lane: Lane, number: int) -> Step:
        """Return a step with its batch, which no plugin has seen."""
        return Step(self.setup.seed, lane.task, number, self._batch(lane, number), self.setup.precision)

    def descend(self, lane: Lane, steps: list[Step], number: int) -> tuple[dict[str, Tensor], Tensor]:
        """Go forward, backward, and move this task's network and every shared module; what a CUDA graph can hold.

        Returns:
            The terms of the loss by name, and the classes that the head gives.
        """
        terms, answers = together([self._gradients(lane, lane.forward, step, number) for step in steps])
        for call in lane.after_backward:
            call(steps[-1])
        if self.clip_norm is not None:
            terms["gradient_norm"] = torch.nn.utils.clip_grad_norm_(lane.moved, self.clip_norm)
        for optimiser in lane.movers:
            optimiser.step()
        self.forget_gradients()
        return terms, answers

    def rehearse(self, task: TaskState, number: int, count: int) -> None:
        """Compute the gradients of the first ``count`` images of a step, uncompiled; no optimiser moves.

        Buffers and the states of plugins change as in a step, and gradients stay behind.
        """
        lane = self.lanes[task.name]
        if number not in lane.span:
            lane.resolve(number)
        step = self.begin(lane, number)
        batch = step.batch
        step.batch = Batch(batch.images[:count], batch.labels[:count], batch.index[:count])
        self._show(lane, step)
        self._gradients(lane, lane.objective, step, number)

    @staticmethod
    def _gradients(
        lane: Lane, objective: Callable[..., Outcome], step: Step, number: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Add the gradients of a step, or of a piece of it, to what is there; return terms and answers."""
        turn = number * lane.pieces + step.piece
        total, terms, answers = objective(step, [one.at(turn) for one in lane.seeds])
        if not total.requires_grad:
            raise UsageError(
                f"In step {number} task {lane.task.name!r} has a loss without any gradient: its network is frozen, and "
                "no regularizer that is active moves a shared head. Leave some parameters free, or begin later.",
                subject=lane.task.name,
            )
        (total if lane.pieces == 1 else total / lane.pieces).backward()
        return terms, answers

    def forget_gradients(self) -> None:
        """Drop all gradients: a loss may have reached another task's network."""
        for one in self.moving:
            one.grad = None

    def _batch(self, lane: Lane, number: int) -> Batch:
        task, device = lane.task, self.setup.precision.device
        index = lane.order.at(number)
        if lane.pinned:
            index = index.pin_memory().to(device, non_blocking=True)
        images = task.examples.images[index]
        if task.task.augment:
            images = augment(images, task.task.augment, lane.augment.at(number))
        pixels = normalise(images, task.data)
        if self.setup.precision.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return Batch(pixels, task.examples.labels[index], index)

    def _set_rate(self, number: int) -> None:
        rate = self.optimisation.lr * self.schedule.at(number, self.steps)
        if rate != self._rate:
            self._rate = rate
            for optimiser in self.optimisers.values():
                set_rate(optimiser, rate)
