"""Training an ensemble from the first step to the last: its history, members that are masked, and what is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.func import functional_call

from compatkit.errors import TrainingError, UsageError
from compatkit.experiments.sweeps.ensembles import Ensemble, Stacked, Unsuited, quiet
from compatkit.hooks import Batch
from compatkit.training.prepare import PreparedRun
from compatkit.training.step import Step, StepResult


@attrs.define(eq=False)
class Ledgers:
    """The history of every member; reads the device once a row.

    Attributes:
        rows: By member, as ``Ledger.rows``.
        errors: By member, why it is masked: what it computes from then on is of no use, and touches no other.
    """

    rows: list[list[dict[str, Any]]]
    errors: dict[int, TrainingError] = attrs.field(factory=dict)
    _waiting: dict[str, list[StepResult]] = attrs.field(factory=dict)

    def add(self, task: str, result: StepResult) -> None:
        """Keep what one step measured."""
        self._waiting.setdefault(task, []).append(result)

    def close(self, step: int) -> None:
        """Write a row for every task and member; mask members of which a loss is not finite."""
        for task, waiting in self._waiting.items():
            names = list(dict.fromkeys(name for one in waiting for name in one.names))
            means = torch.stack([_means(waiting, name) for name in names])
            for member, values in enumerate(means.T.tolist()):
                losses = dict(zip(names, values, strict=True))
                self._check(member, task, losses, step - len(waiting), step)
                self.rows[member].append({"task": task, "step": step, "losses": losses})
        self._waiting.clear()

    def _check(self, member: int, task: str, losses: Mapping[str, float], start: int, stop: int) -> None:
        wrong = [name for name, value in losses.items() if value - value != 0]
        if wrong and member not in self.errors:
            self.errors[member] = TrainingError(
                f"The loss {wrong[0]!r} of task {task!r} is not finite between steps {start} and {stop}. Lower the "
                "learning rate, add warm-up steps, or use precision='float32'.",
                subject=wrong[0],
            )


def _means(results: Sequence[StepResult], name: str) -> Tensor:
    """Return each member's mean of a loss, or its share of right answers, as a run alone has them."""
    if name == "accuracy":
        predicted = torch.cat([one.predicted for one in results if one.predicted is not None], 1)
        true = torch.cat([one.true for one in results if one.true is not None], 1)
        return (predicted == true).float().mean(1)
    return torch.stack([one.losses[name].float() for one in results if name in one.losses]).mean(0)


def train(members: Sequence[PreparedRun]) -> tuple[list[list[dict[str, Any]]], dict[int, TrainingError]]:
    """Train runs at once that were begun; their modules hold the trained weights afterwards.

    Returns:
        The history of each, and by place the error of those whose loss is not finite.

    Raises:
        Unsuited: They cannot be trained at once, or a member's first loss is another than that of the run alone.
    """
    settings = members[0].loop.settings
    with quiet():
        ensemble = Ensemble.of(members)
        check_first(ensemble, members)
        ledgers = Ledgers([[] for _ in members])
        for number in range(settings.steps):
            for task in ensemble.batches:
                ledgers.add(task, attempt(ensemble, task, number))
            if (number + 1) % settings.log_every == 0 or number + 1 == settings.steps:
                ledgers.close(number + 1)
        ensemble.give_back(members)
    return ledgers.rows, ledgers.errors


def attempt(ensemble: Ensemble, task: str, number: int) -> StepResult:
    """Take a step.

    Raises:
        Unsuited: torch cannot do it for all members at once.
    """
    try:
        return ensemble.step(task, number)
    except (RuntimeError, NotImplementedError, UsageError) as error:
        raise Unsuited(f"torch.func.vmap does not take it: {str(error).strip().splitlines()[0]}") from error


TOLERANCE = 1e-4
"""How far a member's first loss may be from that of the run alone, relative to it and at least to 1."""


def check_first(ensemble: Ensemble, members: Sequence[PreparedRun]) -> None:
    """Compare every member's first losses with those of the run alone; nothing is moved.

    A plugin that drew numbers of its own for a seed gave them to the first member only, and would be wrong for others.

    Raises:
        Unsuited: They differ.
    """
    kept = {name: one.clone() for name, one in ensemble.buffers.items()}
    for task in ensemble.batches:
        task_loop = ensemble.loop.task_loops[task]
        ensemble.resolve(task_loop, 0)
        batch = ensemble.batches[task].at(0)
        try:
            together = ensemble.losses(task_loop, 0, *batch)[0].detach()
        except (RuntimeError, NotImplementedError, UsageError) as error:
            raise Unsuited(
                f"torch.func.vmap does not take it: {str(error).strip().splitlines()[0]}"
            ) from error
        for place, one in enumerate(members):
            alone = _first_loss(one, task, [part[place] for part in batch])
            if abs(float(together[place]) - alone) > TOLERANCE * max(1.0, abs(alone)):
                raise Unsuited(
                    f"the first loss of run {place + 1} of task {task!r} is {float(together[place]):.6g} where the run "
                    f"alone has {alone:.6g}: something in it depends on the seed in a way that cannot be stacked"
                )
    with torch.no_grad():
        for name, one in ensemble.buffers.items():
            one.copy_(kept[name])


def _first_loss(member: PreparedRun, task: str, batch: Sequence[Tensor]) -> float:
    """Return the loss of a run alone before its first step; weights and buffers stay as they are."""
    task_loop = member.loop.task_loops[task]
    task_loop.resolve(0)
    weights: Stacked = dict(task_loop.objective.named_parameters())
    buffers = {name: one.clone() for name, one in task_loop.objective.named_buffers()}
    step = Step(member.loop.setup.seed, task_loop.task, 0, Batch(*batch), member.loop.setup.precision)
    return float(functional_call(task_loop.objective, (weights, buffers), (step,))[0].detach())
