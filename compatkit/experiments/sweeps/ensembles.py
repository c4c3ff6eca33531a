"""Runs that differ in the seed only, trained at once: their weights are stacked, and one call computes all losses.

Each member has the images, the draws and the initial weights of the run alone; the optimiser's arithmetic is
elementwise, so that it is the run alone too. Sums inside the network may be taken in another order: figures agree
to rounding, not to the bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from compatkit.errors import CompatkitError
from compatkit.experiments.sweeps.batches import Batches
from compatkit.hooks import Batch
from compatkit.training.batches.stored import Resident
from compatkit.training.loop import NETWORK, Loop
from compatkit.training.objective import Objective
from compatkit.training.prepare import PreparedRun
from compatkit.training.step import Step, StepResult
from compatkit.training.task_loop import TaskLoop

Stacked = dict[str, Tensor]
USUAL = {
    **{"accumulate": 1, "clip_norm": None, "ema": None, "validation": None},
    **{"evaluate_every": None, "stop_early": None, "scalars": None, "deterministic": False},
}
"""Settings of the trainer that a stacked step does not know, as they must be."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return what torch's does, by operations that are fast for all members at once; torch's own is not."""
    return (torch.logsumexp(logits, 1) - logits.gather(1, labels[:, None])[:, 0]).mean()


class Unsuited(CompatkitError):
    """These runs cannot be trained at once; the message says what prevents it."""

    code = "unsuited"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from warning that an operation is slow for all members at once: the trial says whether it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
        yield


@attrs.define(eq=False)
class Ensemble:
    """Takes the steps of all members; shaped like the first member's loop, whose modules hold no weights of its own.

    Attributes:
        loop: Of the first member: its task_loops say what a step is made of.
        batches: By task, what each member sees when.
        weights: Parameters of all members, stacked, by their names in ``Objective``.
        buffers: The same.
        optimisers: As those of the loop, over stacked parameters.
    """

    loop: Loop
    batches: Mapping[str, Batches]
    weights: Stacked
    buffers: Stacked
    optimisers: Mapping[str, torch.optim.Optimizer]
    _stacked: dict[str, tuple[Objective, Callable[..., Any]]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, members: Sequence[PreparedRun]) -> Ensemble:
        """Stack runs that were begun; they are left as they are.

        Args:
            members: At least one. All see the first one's images, which are theirs too.

        Raises:
            Unsuited: A plugin or layer cannot be stacked; it is named.
        """
        loop = members[0].loop
        refuse(members[0])
        setups = [one.loop.setup for one in members]
        held = [Objective(one.owners, (), one.precision).train() for one in setups]
        weights, buffers = stack_module_state(held)  # type: ignore[arg-type]
        batches = {
            name: Batches([_resident(one, name) for one in members], loop.settings.batch_size)
            for name in loop.task_loops
        }
        return cls(loop, batches, weights, buffers, _optimisers(loop, weights))

    def __len__(self) -> int:
        return len(next(iter(self.batches.values())))

    def step(self, task: str, number: int) -> StepResult:
        """Take one step of one task, for all members.

        Returns:
            Losses by name ``(members,)``, predicted and true classes ``(members, batch)``, still on the device.
        """
        task_loop = self.loop.task_loops[task]
        self.resolve(task_loop, number)
        images, labels, index = self.batches[task].at(number)
        totals, terms, answers = self.losses(task_loop, number, images, labels, index)
        totals.backward(torch.ones_like(totals))  # members share nothing: each gets the gradient of its own
        self._move(task_loop, number)
        return StepResult(terms, answers, labels)

    def losses(
        self, task_loop: TaskLoop, number: int, images: Tensor, labels: Tensor, index: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return what ``Objective`` gives, with a first dimension of members in everything."""
        if self._stacked.get(task_loop.task.name, (None,))[0] is not task_loop.objective:
            self._stacked[task_loop.task.name] = task_loop.objective, self._for_all(task_loop)
        held = (*self.weights.values(), *self.buffers.values())
        return self._stacked[task_loop.task.name][1](number, *held, images, labels, index)

    def _for_all(self, task_loop: TaskLoop) -> Callable[..., Any]:
        """Return ``losses`` for one member as a function that takes all of them."""
        setup, task = self.loop.setup, task_loop.task
        # Checks of what a plugin returns ask for gradients, which are not to be seen inside of vmap.
        objective = task_loop.objective.unchecked(cross_entropy)
        weights, buffers = list(self.weights), list(self.buffers)

        every = sum(1 for _ in objective.named_parameters(remove_duplicate=False))
        tied = every != len(weights)  # looking for ties takes as long as the forward pass of a small network

        def one(number: int, *given: Tensor) -> Any:
            state = dict(zip((*weights, *buffers), given, strict=False))
            step = Step(setup.seed, task, number, Batch(*given[len(state) :]), setup.precision)
            return functional_call(objective, state, (step,), tie_weights=tied)

        dimensions = (None, *(0 for _ in (*weights, *buffers)), 0, 0, 0)
        return vmap(one, in_dims=dimensions, randomness="error")

    def resolve(self, task_loop: TaskLoop, number: int) -> None:
        """Take in which plugins are active at a step; further views are made of the batch, not gathered with it."""
        if number not in task_loop.span:
            task_loop.resolve(number)
        if self._stacked.get(task_loop.task.name, (None,))[0] is not task_loop.objective:
            task_loop.source.arrange(None)

    def _move(self, task_loop: TaskLoop, number: int) -> None:
        self.loop.set_lr(number, self.optimisers.values())
        for owner, optimiser in self.optimisers.items():
            if owner == NETWORK + task_loop.task.name or not owner.startswith(NETWORK):
                optimiser.step()
        for one in self.weights.values():
            one.grad = None

    def give_back(self, members: Sequence[PreparedRun]) -> None:
        """Put every member's weights into its own modules."""
        for place, one in enumerate(members):
            held = Objective(one.loop.setup.owners, (), one.loop.setup.precision)
            own = {**dict(held.named_parameters()), **dict(held.named_buffers())}
            with torch.no_grad():
                for name, stacked in (*self.weights.items(), *self.buffers.items()):
                    own[name].copy_(stacked[place])


def refuse(prepared: PreparedRun) -> None:
    """Refuse what a stacked step cannot do; dropout and branches on values are found when it is tried.

    Raises:
        Unsuited: Names the plugin.
    """
    settings, plugins = prepared.loop.settings, prepared.loop.plugins
    for name, usual in USUAL.items():
        if getattr(settings, name) != usual:
            raise Unsuited(f"the trainer's {name} is for one run at a time")
    if settings.steps == 0:
        raise Unsuited("there is no step to take")
    for instance, balanced in prepared.loop.setup.gradients.items():
        if balanced:
            raise Unsuited(
                f"the regularizer {instance!r} balances its gradient against the task's of one run at a time"
            )
    for event in ("pretrain", "views", "after_backward", "after_step", "after_epoch"):
        for bound in getattr(plugins, event):
            raise Unsuited(
                f"the regularizer {bound.instance!r} takes part in {event}, which is called for one run at a time"
            )
    for bound in plugins.losses:
        if bound.effect == "host":
            raise Unsuited(
                f"the losses of the regularizer {bound.instance!r} have side effects in Python (its hook is not "
                "declared @effect('pure'))"
            )


def share_images(first: PreparedRun, other: PreparedRun) -> None:
    """Let a run hold the images of another, which are the same.

    Raises:
        Unsuited: Those of a task are not on the device.
    """
    for task in first.loop.task_loops:
        _resident(other, task).share(_resident(first, task))


def _resident(prepared: PreparedRun, task: str) -> Resident:
    source = prepared.loop.task_loops[task].source
    if not isinstance(source, Resident):
        raise Unsuited(f"the images of task {task!r} are not on the device: {source.describe()}")
    return source


def _optimisers(loop: Loop, weights: Stacked) -> dict[str, torch.optim.Optimizer]:
    """Return optimisers as the loop has them, each moving the stacked weights of the same owners."""
    names = {
        id(one): name
        for name, one in Objective(loop.setup.owners, (), loop.setup.precision).named_parameters()
    }
    return {
        owner: loop.settings.optimisation.make(
            [weights[names[id(one)]] for group in optimiser.param_groups for one in group["params"]]
        )
        for owner, optimiser in loop.optimisers.items()
    }
