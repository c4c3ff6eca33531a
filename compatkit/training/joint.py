"""Joint losses of several tasks: computed once a round, before the steps of its tasks, and part of each of them.

A round is one step of every task. The gradients of the joint losses are those at the weights before the round. A task's
network is moved only by the task's own step, so the networks take one step along the gradient of the sum of all losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.errors import PluginError, UnknownName, UsageError
from compatkit.plugins import RunPlugins
from compatkit.plugins.calls import Bound
from compatkit.training.distributed import World
from compatkit.training.gradient_checks import check_all_trained
from compatkit.training.objective import wide
from compatkit.training.plugin_setup import SetUp
from compatkit.training.precision import Precision
from compatkit.training.randomness import Stream, generator, reseed
from compatkit.training.step import Step, StepResult, combine_results
from compatkit.training.task_state import trained_parameters

JOINT = "joint"
"""Name of the gradients of all joint losses among those of single losses."""


@attrs.frozen(eq=False)
class JointStep:
    """Steps of all tasks in a round, before their forward passes.

    Attributes:
        seed: Seed of the run.
        number: Number of the round, from 0: the step of every task.
        piece: Number of the micro-batch in the round, from 0.
        steps: Step of each task by name, in the order of training, with the batch that its own network will see;
            features and logits are not computed yet.
        precision: Precision of the run.
    """

    seed: int
    number: int
    piece: int
    steps: Mapping[str, Step]
    precision: Precision

    def extract(self, task: str, images: Tensor, *, source: str) -> Tensor:
        """Run a task's extractor on images of any task, as in a step, without writing running statistics.

        Args:
            task: Name of the task whose extractor runs.
            images: Images ``(batch, channels, height, width)``, normalized as those of ``source``.
            source: Name of the task by whose mean and standard deviation they are normalized; they are normalized anew
                for ``task``.

        Returns:
            Features in float32, ``(batch, *feature_shape)``, with their graph.

        Raises:
            UnknownName: There is no such task.
            UsageError: The tasks take images of other sizes or channels.
        """
        for name in (task, source):
            if name not in self.steps:
                raise UnknownName(
                    f"This run has no task {name!r}; it has {', '.join(self.steps)}.", subject=name
                )
        state, given, wanted = self.steps[task].task, self.steps[source].task.data, self.steps[task].task.data
        if (given.size, given.channels) != (wanted.size, wanted.channels):
            raise UsageError(
                f"Images of task {source!r} are {given.channels} of {given.size}, and the extractor of {task!r} takes "
                f"{wanted.channels} of {wanted.size}. Set Task.size, or train on images of one kind.",
                subject=source,
            )
        if (given.mean, given.std) != (wanted.mean, wanted.std):
            values = (given.mean, given.std, wanted.mean, wanted.std)
            mean, std, own_mean, own_std = (images.new_tensor(each).view(1, -1, 1, 1) for each in values)
            images = (images * std + mean - own_mean) / own_std
        with self.precision.autocast():
            return wide(state.extract(images, write_statistics=False))

    def rng(self, *key: str | int) -> torch.Generator:
        """Return a CPU generator for this round and micro-batch; ``key`` starts with the plugin's instance name."""
        index = f"{self.number}.{self.piece}" if self.piece else self.number
        return generator(self.seed, "joint", index, *key)


@attrs.define(eq=False)
class Rounds:
    """Joint losses of the rounds of a run.

    Attributes:
        setup: Tasks and networks of the run.
        plugins: Plugins of the run.
        losses: Joint losses of the current round by name, without gradient or weight.
    """

    setup: SetUp
    plugins: RunPlugins
    losses: dict[str, Tensor] = attrs.field(factory=dict, init=False)
    _seeds: dict[str, Stream]
    _moved: dict[str, list[Tensor]]
    _number: int = attrs.field(default=-1, init=False)
    _steps: dict[str, list[Step]] = attrs.field(factory=dict, init=False)
    _gradients: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    _next_check: int = attrs.field(default=0, init=False)

    @classmethod
    def of(
        cls, setup: SetUp, plugins: RunPlugins, world: World, trainable: Iterable[Tensor]
    ) -> Rounds | None:
        """Return the rounds of a run; None without joint losses.

        Args:
            setup: Tasks and networks of the run.
            plugins: Plugins of the run.
            world: Processes of the run.
            trainable: Parameters of all optimizers.
        """
        if not plugins.joint_losses:
            return None
        networks: dict[str, list[Tensor]] = {
            name: [*trained_parameters(state)] for name, state in setup.tasks.items()
        }
        of_networks = {id(parameter) for parameters in networks.values() for parameter in parameters}
        trained = list(trainable)
        trained_ids = {id(parameter) for parameter in trained}
        moved: dict[str, list[Tensor]] = {
            name: [parameter for parameter in parameters if id(parameter) in trained_ids]
            for name, parameters in networks.items()
        }
        # The gradient of shared modules is that at the weights before the round, so it belongs to the first step.
        moved[next(iter(moved))] += [parameter for parameter in trained if id(parameter) not in of_networks]
        seeds = {
            bound.instance: Stream.of(setup.seed, bound.instance, "joint_losses", *world.key)
            for bound in plugins.joint_losses
        }
        return cls(setup, plugins, seeds, moved)

    def active(self, number: int) -> tuple[Bound, ...]:
        """Return the hooks that are active in a round."""
        return tuple(bound for bound in self.plugins.joint_losses if number in bound.phase)

    def steps(self, task: str, number: int, make: Callable[[str], list[Step]]) -> list[Step]:
        """Return the micro-batches of a task's step; in the first step of a round, compute the joint losses.

        Args:
            task: Name of the task.
            number: Number of the round, from 0.
            make: Function that makes the micro-batches of a task's step.
        """
        if number != self._number or task not in self._steps:
            self._number, self.losses, self._gradients = number, {}, {}
            active = self.active(number)
            self._steps = {name: make(name) for name in (self._moved if active else (task,))}
            if active:
                self._begin(active)
        return self._steps.pop(task)

    def assign(self, task: str) -> bool:
        """Set the joint gradients of the parameters that a task's step moves; return whether there are any."""
        found = [(parameter, self._gradients.pop(id(parameter), None)) for parameter in self._moved[task]]
        for parameter, gradient in found:
            parameter.grad = gradient
        return any(gradient is not None for _, gradient in found)

    def add(self, result: StepResult) -> StepResult:
        """Return the result of a step with the joint losses of its round.

        Args:
            result: Result of the step.

        Raises:
            PluginError: A plugin has a joint loss and another one of the same name.
        """
        for name in self.losses.keys() & result.losses.keys():
            instance = name.partition("/")[0]
            raise PluginError(
                f"Plugin {instance!r}: compatkit_joint_losses and compatkit_losses both name a loss "
                f"{name.partition('/')[2]!r}. Give each its own name.",
                plugin=instance,
                hook="compatkit_joint_losses",
            )
        return attrs.evolve(result, losses={**result.losses, **self.losses})

    def _begin(self, active: Sequence[Bound]) -> None:
        """Compute the joint losses of a round and keep their gradients."""
        pieces = len(next(iter(self._steps.values())))
        results: list[StepResult] = []
        for piece in range(pieces):
            steps = {name: made[piece] for name, made in self._steps.items()}
            joint = JointStep(self.setup.seed, self._number, piece, steps, self.setup.precision)
            total, terms = self._total(active, joint, pieces)
            results.append(StepResult(terms))
            if total is None or not total.requires_grad:
                continue
            self._check(total)
            (total / pieces).backward()
        self.losses = dict(combine_results(results).losses) if pieces > 1 else dict(results[0].losses)
        for parameters in self._moved.values():
            for parameter in parameters:
                if parameter.grad is not None:
                    self._gradients[id(parameter)], parameter.grad = parameter.grad, None

    def _total(
        self, active: Sequence[Bound], joint: JointStep, pieces: int
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the weighted sum of the joint losses of a micro-batch, or None, and their values by name."""
        total: Tensor | None = None
        terms: dict[str, Tensor] = {}
        for bound in active:
            reseed(
                joint.precision.device, self._seeds[bound.instance].at(joint.number * pieces + joint.piece)
            )
            if bound.autocast:
                with joint.precision.autocast():
                    losses = bound.call(joint)
            else:
                losses = bound.call(joint)
            for name, value in losses.items():
                terms[f"{bound.instance}/{name}"] = value.detach()
                weighted = bound.weight * wide(value)
                total = weighted if total is None else total + weighted
        return total, terms

    def _check(self, total: Tensor) -> None:
        """Raise if a parameter of the graph is not trained, in rounds 0, 1, 2, 4, 8, ..."""
        if self._number >= self._next_check:
            parts = [part for state in self.setup.tasks.values() for part in (state.extractor, state.head)]
            modules = [*self.setup.owners.values(), *parts]
            check_all_trained(
                total, [value for module in modules for value in module.parameters()], self.plugins.members
            )
            self._next_check = 1 << self._number.bit_length()
