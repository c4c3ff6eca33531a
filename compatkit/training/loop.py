"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit.evaluation.preprocessing import normalise
from compatkit.plugins import RunPlugins
from compatkit.training.capture import Captured
from compatkit.training.context import Batch, SetUp, Step, TaskState
from compatkit.training.execution import EAGER, Execution
from compatkit.training.lanes import Lane
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

    @classmethod
    def create(
        cls,
        setup: SetUp,
        plugins: RunPlugins,
        optimisation: Optimisation,
        schedule: Schedule,
        steps: int,
        batch_size: int,
    ) -> Loop:
        """Make the loop of a run whose owners are complete."""
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
            )
            for name, state in setup.tasks.items()
        }
        everything = tuple(one for each in moved.values() for one in each)
        return cls(setup, plugins, optimisation, schedule, steps, optimisers, lanes, everything)

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
        step, terms, answers = self.work(lane, number)
        for call in lane.after_step:
            call(step)
        if lane.after_epoch and (number + 1) % lane.order.per_epoch == 0:
            for call in lane.after_epoch:
                call(step)
        return {**terms, "accuracy": (answers, step.batch.labels)}

    def work(self, lane: Lane, number: int) -> tuple[Step, dict[str, Tensor], Tensor]:
        """Do all of a step but what plugins do after it; see ``descend``."""
        if number not in lane.span:
            lane.resolve(number, compiles=self.execution.compiles)
        step = self.prepare(lane, number)
        self._set_rate(number)
        if not self.execution.captures:
            return step, *self.descend(lane, step, number)
        if lane.captured is None:
            lane.captured = Captured(self, lane, step.batch)
        return step, *lane.captured.replay(step.batch)

    def prepare(self, lane: Lane, number: int) -> Step:
        """Return a step with its batch, as the plugins of this lane want it."""
        step = self.begin(lane, number)
        for call, stream in lane.views:
            reseed(self.setup.precision.device, stream.at(number))
            step.batch = call(step, step.batch)
        return step

    def begin(self, lane: Lane, number: int) -> Step:
        """Return a step with its batch, which no plugin has seen."""
        return Step(self.setup.seed, lane.task, number, self._batch(lane, number), self.setup.precision)

    def descend(self, lane: Lane, step: Step, number: int) -> tuple[dict[str, Tensor], Tensor]:
        """Go forward, backward, and move this task's network and every shared module; what a CUDA graph can hold.

        Returns:
            The terms of the loss by name, and the classes that the head gives.
        """
        total, terms, answers = lane.forward(step, [one.at(number) for one in lane.seeds])
        total.backward()
        for call in lane.after_backward:
            call(step)
        for optimiser in lane.movers:
            optimiser.step()
        self.forget_gradients()
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
