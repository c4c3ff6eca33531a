"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from compatkit.errors import UsageError
from compatkit.evaluation.preprocessing import normalise
from compatkit.plugins import RunPlugins
from compatkit.training.accumulation import pieces, together
from compatkit.training.averaging import Averages, Averaging
from compatkit.training.context import Batch, SetUp, Step, TaskState
from compatkit.training.lanes import Lane
from compatkit.training.optimisation import Optimisation
from compatkit.training.progress import Measured
from compatkit.training.randomness import reseed
from compatkit.training.resident import augment
from compatkit.training.schedules import Schedule

NETWORK = "network/"
"""Before a task's name: the optimiser of its extractor and head."""


@attrs.define(eq=False)
class Loop:
    """Takes steps; owns the optimisers, one a network and one a shared module.

    Attributes:
        steps: Steps of each task.
        optimisers: ``network/<task>`` moves extractor and head together; shared modules have one each, by owner.
        lanes: By task, what its steps need, resolved before the first.
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
    _parameters: tuple[Tensor, ...]
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
        return cls(
            setup,
            plugins,
            optimisation,
            schedule,
            steps,
            optimisers,
            lanes,
            everything,
            clip_norm=clip_norm,
            averages=averages,
        )

    def train_mode(self) -> None:
        """Put all modules into the mode they train in; frozen heads with stored statistics stay in eval."""
        for module in self.setup.owners.values():
            module.train()
        for head in self.setup.auxiliary.values():
            if head.frozen:
                head.module.train(head.statistics == "batch")

    def step(self, task: TaskState, number: int) -> Measured:
        """Take one step of one task.

        Returns:
            Its losses by name, and as ``"accuracy"`` the predicted and the true classes, all still on the device.
        """
        lane = self.lanes[task.task.name]
        if number not in lane.span:
            lane.resolve(number)
        batch = self._batch(lane, number)
        if lane.pieces == 1:
            step, measured = self._gradients(lane, number, batch)
        else:
            worked = [
                self._gradients(lane, number, one, piece)
                for piece, one in enumerate(pieces(batch, lane.pieces))
            ]
            step, measured = worked[-1][0], together([one for _, one in worked])
        for call in lane.after_backward:
            call(step)
        if self.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(lane.moved, self.clip_norm)
            measured = {**measured, "gradient_norm": norm}
        self._move(lane, number)
        if self.averages is not None:
            self.averages.follow(task.name, number)
        for call in lane.after_step:
            call(step)
        if lane.after_epoch and (number + 1) % lane.order.per_epoch == 0:
            for call in lane.after_epoch:
                call(step)
        return measured

    def rehearse(self, task: TaskState, number: int, count: int) -> None:
        """Compute the gradients of the first ``count`` images of a step; no optimiser moves.

        Buffers and the states of plugins change as in a step, and gradients stay behind.
        """
        lane = self.lanes[task.name]
        batch = self._batch(lane, number)
        self._gradients(lane, number, Batch(batch.images[:count], batch.labels[:count], batch.index[:count]))

    def _gradients(self, lane: Lane, number: int, batch: Batch, piece: int = 0) -> tuple[Step, Measured]:
        """Add the gradients of a step's batch, or of a piece of it, to what is there."""
        setup, device = self.setup, self.setup.precision.device
        step = Step(setup.seed, lane.task, number, batch, setup.precision, piece=piece)
        turn = number * lane.pieces + piece
        for call, stream in lane.views:
            reseed(device, stream.at(turn))
            step.batch = call(step, step.batch)
        total, terms, answers = lane.objective(step, [one.at(turn) for one in lane.seeds])
        if not total.requires_grad:
            raise UsageError(
                f"In step {number} task {lane.task.name!r} has a loss without any gradient: its network is frozen, and "
                "no regularizer that is active moves a shared head. Leave some parameters free, or begin later.",
                subject=lane.task.name,
            )
        if lane.pieces > 1:
            total = total / lane.pieces
        total.backward()
        return step, {**terms, "accuracy": (answers, step.batch.labels)}

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
