"""The loop itself: one step of one task, with hooks resolved before it starts and no host synchronisation."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit.evaluation.preprocessing import normalise
from compatkit.plugins import RunPlugins
from compatkit.training.context import Batch, SetUp, Step, TaskState
from compatkit.training.optimisation import Optimisation
from compatkit.training.randomness import reseed, seed_of
from compatkit.training.resident import Order, augment
from compatkit.training.schedules import Schedule


@attrs.define(eq=False)
class Loop:
    """Takes steps; owns the optimisers, one an owner module.

    Attributes:
        steps: Steps of each task.
        orders: Which images come when, by task.
        optimisers: By owner: ``<task>.extractor``, ``<task>.head``, ``shared.<name>``.
        movers: By task, the optimisers that its steps move: its network's and every shared module's.
    """

    setup: SetUp
    plugins: RunPlugins
    optimisation: Optimisation
    schedule: Schedule
    steps: int
    orders: dict[str, Order]
    optimisers: dict[str, torch.optim.Optimizer]
    movers: dict[str, tuple[torch.optim.Optimizer, ...]]

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
        orders = {
            name: Order(len(state.examples), batch_size, setup.seed, name)
            for name, state in setup.tasks.items()
        }
        optimisers = {
            owner: optimisation.make(module)
            for owner, module in setup.owners.items()
            if any(one.requires_grad for one in module.parameters())
        }
        networks = {name: (f"{name}.extractor", f"{name}.head") for name in setup.tasks}
        private = {owner for pair in networks.values() for owner in pair}
        movers = {
            name: tuple(made for owner, made in optimisers.items() if owner in pair or owner not in private)
            for name, pair in networks.items()
        }
        return cls(setup, plugins, optimisation, schedule, steps, orders, optimisers, movers)

    def train_mode(self) -> None:
        """Put all modules into the mode they train in; frozen heads with stored statistics stay in eval."""
        for module in self.setup.owners.values():
            module.train()
        for head in self.setup.auxiliary.values():
            if head.frozen:
                head.module.train(head.statistics == "batch")

    def step(self, task: TaskState, number: int) -> Mapping[str, Tensor]:
        """Take one step of one task and return its losses and accuracy, still on the device."""
        setup, plugins = self.setup, self.plugins
        step = Step(setup.seed, task, number, self._batch(task, number), setup.precision)
        for bound in plugins.views:
            if number in bound.phase:
                self._seed(bound.instance, "views", task.name, number)
                step.batch = bound.call(step, step.batch)
        self._seed("network", task.name, number)
        with setup.precision.autocast():
            features: Tensor = task.extractor(step.batch.images)
            logits: Tensor = task.head(features)
        step.features, step.logits = features, logits
        total = F.cross_entropy(logits.float(), step.batch.labels)
        measured = {"task": total.detach()}
        for bound in plugins.losses:
            if number in bound.phase:
                self._seed("network", bound.instance, task.name, number)
                with setup.precision.autocast():
                    losses = bound.call(step)
                for name, value in losses.items():
                    measured[f"{bound.instance}/{name}"] = value.detach()
                    total = total + bound.weight * value
        total.backward()
        for bound in plugins.after_backward:
            if number in bound.phase:
                bound.call(step)
        self._move(task, number)
        for bound in plugins.after_step:
            if number in bound.phase:
                bound.call(step)
        if (number + 1) % self.orders[task.name].per_epoch == 0:
            for bound in plugins.after_epoch:
                if number in bound.phase:
                    bound.call(step)
        measured["accuracy"] = (logits.detach().argmax(1) == step.batch.labels).float().mean()
        return measured

    def _seed(self, *key: str | int) -> None:
        """Seed what networks draw from (dropout), so that no call depends on what another one drew."""
        reseed(self.setup.precision.device, seed_of(self.setup.seed, *key))

    def _batch(self, task: TaskState, number: int) -> Batch:
        device = self.setup.precision.device
        index = self.orders[task.name].at(number)
        if torch.device(device).type == "cuda":
            index = index.pin_memory().to(device, non_blocking=True)
        else:
            index = index.to(device)
        images = task.examples.images[index]
        images = augment(images, task.task.augment, self.setup.seed, task.name, number)
        pixels = normalise(images, task.data).contiguous(memory_format=self.setup.precision.memory_format)
        return Batch(pixels, task.examples.labels[index], index)

    def _move(self, task: TaskState, number: int) -> None:
        """Move this task's network and every shared module that took part in the loss."""
        rate = self.optimisation.lr * self.schedule.at(number, self.steps)
        for optimiser in self.movers[task.name]:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
        for optimiser in self.optimisers.values():  # all: a loss may have reached another task's network
            optimiser.zero_grad(set_to_none=True)
