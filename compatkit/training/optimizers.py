"""Optimizers of a run: one for each network and each shared module, with the trainer's settings or its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import CompatkitError, PluginError
from compatkit.training.optim import PAPERS, Schedule, make_optimizer, set_lr
from compatkit.training.plugin_setup import SetUp
from compatkit.training.settings import Settings
from compatkit.training.task_loop import NETWORK


@attrs.define(eq=False)
class Rate:
    """Learning rate of optimizers over the steps of a run.

    Attributes:
        optimizers: Optimizers with this rate.
        lr: Initial rate.
        schedule: Factor on it.
        steps: Steps of the run.
    """

    optimizers: tuple[torch.optim.Optimizer, ...]
    lr: float
    schedule: Schedule
    steps: int
    _set: float = -1.0

    def at(self, number: int) -> float:
        """Return the rate of a step, from 0."""
        return self.lr * self.schedule.at(number, self.steps)

    def set(self, number: int) -> None:
        """Set the rate of a step, if it differs from that of the step before."""
        rate = self.at(number)
        if rate != self._set:
            self._set = rate
            for optimizer in self.optimizers:
                set_lr(optimizer, rate)


@attrs.define(eq=False)
class RunOptimizers:
    """Optimizers of a run with their settings and rates.

    Attributes:
        optimizers: Optimizer of each network, by ``network/<task>``, and of each shared module, by owner.
        rules: Settings of each optimizer: the trainer's, with the changes of a plugin for its own module.
    """

    optimizers: dict[str, torch.optim.Optimizer]
    rules: dict[str, Settings]
    _rates: tuple[Rate, ...]
    settled: int | None = None

    @classmethod
    def of(cls, settings: Settings, setup: SetUp) -> RunOptimizers:
        """Create the optimizers of a run.

        Args:
            settings: Settings of the trainer.
            setup: Tasks and networks of the run.

        Raises:
            PluginError: The optimizer of a plugin's module cannot be made.
        """
        optimizers: dict[str, torch.optim.Optimizer] = {}
        rules: dict[str, Settings] = {}
        for name, trained in _parameters_by_optimizer(setup).items():
            changes = setup.optimizers.get(name)
            if not trained:
                continue
            rule = rules[name] = settings if changes is None else _changed(settings, name, changes)
            optimizers[name] = make_optimizer(
                _groups(rule, setup, name, trained),
                *(rule.optimizer, rule.lr, rule.momentum, rule.weight_decay),
                rule.optimizer_options,
            )
        main = tuple(optimizer for name, optimizer in optimizers.items() if rules[name] is settings)
        rates = [Rate(main, settings.lr, settings.decay, settings.steps)]
        for name, rule in rules.items():
            if rule is not settings:
                rates.append(Rate((optimizers[name],), rule.lr, rule.decay, rule.steps))
        return cls(optimizers, rules, tuple(rates))

    def rate(self, number: int) -> float:
        """Return the trainer's learning rate of a step, from 0."""
        return self._rates[0].at(number)

    def set(self, number: int) -> None:
        """Set the learning rates of a step, from 0."""
        for rate in self._rates:
            rate.set(number)
        if all(rate.schedule.settled(number) for rate in self._rates):
            self.settled = number


def _changed(settings: Settings, owner: str, changes: Mapping[str, Any]) -> Settings:
    """Return the trainer's settings with those of ``SetUp.own`` for a module."""
    instance, name = owner.removeprefix("plugin.").rsplit(".", 1)  # instances may have dots, names have none
    given = dict(changes)
    if given.get("optimizer", settings.optimizer) != settings.optimizer:
        given = {"optimizer_options": None, **given}
    if "schedule" in given:
        given["warmup"] = 0
    try:
        return attrs.evolve(settings, **given)
    except CompatkitError as error:
        raise PluginError(
            f"Plugin {instance!r}: setup.own({name!r}): {error}", plugin=instance, hook="compatkit_set_up"
        ) from error


def _parameters_by_optimizer(setup: SetUp) -> dict[str, list[Tensor]]:
    """Return the trained parameters by name of the optimizer."""
    networks = {f"{name}.{side}": NETWORK + name for name in setup.tasks for side in ("extractor", "head")}
    by_optimizer: dict[str, list[Tensor]] = {}
    for owner, module in setup.owners.items():
        parameters = by_optimizer.setdefault(networks.get(owner, owner), [])
        parameters.extend(parameter for parameter in module.parameters() if parameter.requires_grad)
    return by_optimizer


def _groups(settings: Settings, setup: SetUp, name: str, parameters: list[Tensor]) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer: one as in the papers, else those of timm."""
    task = setup.tasks.get(name.removeprefix(NETWORK)) if name.startswith(NETWORK) else None
    of_timm = settings.optimizer not in PAPERS
    if not of_timm and (settings.layer_decay is None or task is None):
        return [{"params": parameters}]
    from compatkit.adapters.optimizers import parameter_groups

    if task is not None:
        parts = [(task.extractor_blueprint, task.extractor), (task.head_blueprint, task.head)]
        trained = [part for part in parts if any(part[1] is module for module in setup.owners.values())]
        return parameter_groups(trained, settings.weight_decay, settings.layer_decay, spare=of_timm)
    shared = setup.auxiliary.get(name.removeprefix("shared.")) if name.startswith("shared.") else None
    return parameter_groups([(shared and shared.blueprint, setup.owners[name])], settings.weight_decay)
