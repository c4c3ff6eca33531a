"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit.plugins import RunPlugins
from compatkit.training.context import SetUp, Step, TaskState
from compatkit.training.lanes import Lane
from compatkit.training.optimisation import Optimisation
from compatkit.training.progress import Measured
from compatkit.training.randomness import reseed
from compatkit.training.schedules import Schedule
from compatkit.training.sources import Placing

NETWORK = "network/"
"""Before a task's name: the optimiser of its extractor and head."""


@attrs.define(eq=False)
class Loop:
    """Takes steps; owns the optimisers, one a network and one a shared module.

    Attributes:
        steps: Steps of each task.
        optimisers: ``network/<task>`` moves extractor and head together; shared modules have one each, by owner.
        lanes: By task, what its steps need, resolved before the first.
    """

    setup: SetUp
    plugins: RunPlugins
    optimisation: Optimisation
    schedule: Schedule
    steps: int
    optimisers: dict[str, torch.optim.Optimizer]
    lanes: dict[str, Lane]
    _parameters: tuple[Tensor, ...]
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
        placing: Placing,
    ) -> Loop:
        """Make the loop of a run whose owners are complete.

        Raises:
            DataError: There are fewer images than in a batch.
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
                placing.source(state, setup.seed, batch_size, setup.precision),
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

    def go_on_from(self, number: int) -> None:
        """Get every task's images ready for a step that another run would take.

        Raises:
            TrainingError: A loader cannot be repeated up to there.
        """
        for lane in self.lanes.values():
            lane.source.go_on_from(number)

    def close(self) -> None:
        """Give back what fetches images; no step follows."""
        for lane in self.lanes.values():
            lane.source.close()

    def step(self, task: TaskState, number: int) -> Measured:
        """Take one step of one task.

        Returns:
            Its losses by name, and as ``"accuracy"`` the predicted and the true classes, all still on the device.
        """
        setup, lane = self.setup, self.lanes[task.task.name]
        if number not in lane.span:
            lane.resolve(number)
        precision = setup.precision
        step = Step(setup.seed, task, number, lane.source.batch(number), precision)
        for call, stream in lane.views:
            reseed(precision.device, stream.at(number))
            step.batch = call(step, step.batch)
        total, terms, answers = lane.objective(step, [one.at(number) for one in lane.seeds])
        total.backward()
        for call in lane.after_backward:
            call(step)
        self._move(lane, number)
        for call in lane.after_step:
            call(step)
        if lane.after_epoch and lane.source.ends_epoch(number):
            for call in lane.after_epoch:
                call(step)
        return {**terms, "accuracy": (answers, step.batch.labels)}

    def _move(self, lane: Lane, number: int) -> None:
        """Move this task's network and every shared module that took part in the loss."""
        rate = self.optimisation.lr * self.schedule.at(number, self.steps)
        if rate != self._rate:
            self._rate = rate
            for optimiser in self.optimisers.values():
                for group in optimiser.param_groups:
                    group["lr"] = rate
        for optimiser in lane.movers:
            optimiser.step()
        for one in self._parameters:  # all: a loss may have reached another task's network
            one.grad = None
