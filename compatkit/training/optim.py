"""Learning rate, optimizers, and moving averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import torch
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import WHOLE, Number, OneOf

Decay = Literal["step", "cosine", "constant"]
DECAYS: tuple[Decay, ...] = get_args(Decay)


@checks_arguments
@attrs.frozen
class Schedule:
    """Learning rate over the steps of a task.

    Attributes:
        kind: ``"step"`` divides every ``every`` steps, ``"cosine"`` decays to ``floor``, ``"constant"`` is fixed.
        warmup: Steps of linear rise from 0 (the first step has ``1 / (warmup + 1)``).
        every: Steps between divisions; None is a quarter of the run, as in Gygli et al. (5,000 of 20,000).
        factor: Factor of the rate at each division.
        floor: Final share of the rate under ``"cosine"``.

    Raises:
        UsageError: A value is invalid.
    """

    kind: Decay = attrs.field(default="step", validator=OneOf(DECAYS))
    warmup: int = attrs.field(default=0, validator=WHOLE)
    every: int | None = attrs.field(default=None, validator=Number(least=1, whole=True, optional=True))
    factor: float = attrs.field(default=0.1, validator=Number(least=0))
    floor: float = attrs.field(
        default=0.0, validator=Number(least=0, most=1), metadata={"manifest": "where on"}
    )

    def settled(self, step: int) -> bool:
        """Return whether the factor stays what it is at a step."""
        return self.kind == "constant" and step >= self.warmup

    def at(self, step: int, steps: int) -> float:
        """Return the factor on the initial learning rate at a step.

        Args:
            step: Step, from 0.
            steps: Steps of the run.

        Returns:
            Factor in [0, 1].
        """
        warmup = min(1.0, (step + 1) / (self.warmup + 1))
        if self.kind == "step":
            every = self.every or max(1, math.ceil(steps / 4))
            return warmup * self.factor ** (step // every)
        if self.kind == "cosine":
            span = max(1, steps - self.warmup)
            cosine = 0.5 * (1 + math.cos(math.pi * max(0, step - self.warmup) / span))
            return warmup * (self.floor + (1 - self.floor) * cosine)
        return warmup


PAPERS = ("adam", "sgd")
"""Optimizers as in the papers: weight decay is an L2 penalty on every parameter. All others are timm's."""
_LOOKAHEAD_STEP = "lookahead_step"
"""Key of Lookahead's step count of a group, which is also one of the optimizer's defaults."""
CAPTURED = (*PAPERS, "adamw")
"""Optimizers whose steps can be captured in a CUDA graph: the rate is a tensor, and all state is initially zero."""


def make_optimizer(
    groups: Sequence[dict[str, Any]],
    kind: str,
    lr: float,
    momentum: float,
    weight_decay: float,
    options: Mapping[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """Create the optimizer of one network, or of one shared module.

    On a GPU the learning rate of each group is a tensor, which a captured step reads at every replay.

    Args:
        groups: Parameter groups on one device.
        kind: ``"adam"`` or ``"sgd"`` as in the papers, or a name of timm.
        lr: Initial learning rate.
        momentum: Momentum, for optimizers that have one.
        weight_decay: Weight decay of the papers' optimizers; the groups of others contain theirs.
        options: Further arguments of the optimizer.
    """
    device = groups[0]["params"][0].device
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in (options or {}).items()
    }
    on_gpu = device.type == "cuda"
    if on_gpu and kind in CAPTURED:
        groups = [{**group, "lr": torch.tensor(lr, device=device)} for group in groups]
        arguments |= {"capturable": True} if kind != "sgd" else {}
    if kind not in PAPERS:
        from compatkit.adapters.optimizers import make

        return make(groups, kind, lr, momentum, arguments)
    arguments = {"weight_decay": weight_decay, "fused": True} | arguments
    if kind == "adam":
        return torch.optim.Adam(groups, lr=lr, **arguments)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, **arguments)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise unless an optimizer accepts these arguments.

    Args:
        kind: Name of the optimizer.
        options: Arguments by name.

    Raises:
        UsageError: The optimizer has no such argument, or refuses a value.
    """
    from compatkit.adapters import optimizers

    optimizers.check_options(kind, options)
    try:
        make_optimizer([{"params": [nn.Parameter(torch.zeros(2, 2))]}], kind, 0.1, 0.9, 0.0, options)
    except Exception as error:  # optimizers raise errors of any class
        raise UsageError(
            f"The optimizer {kind!r} does not take optimizer_options={dict(options)!r:.200}: {error}",
            subject=kind,
        ) from error


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of an optimizer, scaled for each group; rates that are tensors are filled in place.

    Args:
        optimizer: Optimizer to change.
        rate: Rate of groups without ``lr_scale``.
    """
    for group in optimizer.param_groups:
        scaled = rate * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return moments as ``<parameter>/<name>`` and counters of groups as ``group<number>/<name>``, without copying."""
    stored = optimizer.state_dict()
    values = {
        f"{index}/{name}": value for index, state in stored["state"].items() for name, value in state.items()
    }
    for number, group in enumerate(stored["param_groups"]):
        values |= {f"group{number}/{name}": group[name] for name in _counters(optimizer, group)}
    return {key: value for key, value in values.items() if isinstance(value, Tensor | int | float)}


def restore_state(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Restore the result of ``optimizer_state``, with moments in the memory layout of their parameters.

    Args:
        optimizer: Optimizer to change.
        values: Result of ``optimizer_state``.
    """
    stored = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    stored["state"] = {}
    for group in stored["param_groups"]:
        for name in _counters(optimizer, group) - {_LOOKAHEAD_STEP}:
            del group[name]
    for key, value in values.items():
        owner, name = key.split("/", 1)
        if owner.startswith("group"):
            stored["param_groups"][int(owner.removeprefix("group"))][name] = value
        else:
            stored["state"].setdefault(int(owner), {})[name] = _with_layout(value, parameters[int(owner)])
    optimizer.load_state_dict(stored)


def _counters(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> set[str]:
    """Return the keys of a group that change between steps, except its rate."""
    return group.keys() - optimizer.defaults.keys() - {"params", "lr_scale"} | group.keys() & {
        _LOOKAHEAD_STEP
    }


def _with_layout(value: Any, parameter: Tensor) -> Any:
    """Return a value with the strides of its parameter, as fused optimizers iterate over both in memory order."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter).copy_(value)


def check_owners(owners: dict[str, nn.Module]) -> None:
    """Raise if a parameter has two owners.

    Raises:
        UsageError: A parameter has two owners; the message names all three.
    """
    owner_of: dict[int, str] = {}
    for owner, module in owners.items():
        for name, parameter in module.named_parameters():
            first = owner_of.setdefault(id(parameter), owner)
            if first != owner:
                raise UsageError(
                    f"The parameter {name!r} belongs to {owner!r} and to {first!r}; it needs exactly one owner. Share "
                    "modules through an auxiliary head."
                )


WARMUP_POWER = 2 / 3
"""Exponent of the warm-up, as in timm: the decay reaches .999 after 31,600 steps at the earliest."""


@attrs.frozen(eq=False)
class Averages:
    """Exponential moving averages of all trained modules.

    Floating-point values are averaged, including running statistics; counters are copied.

    Attributes:
        decay: Decay of the averages in a step.
        warmup: Whether the decay increases with the steps, as ``1 - (1 + step) ** (-2 / 3)``, up to ``decay``.
        values: State dict of averages by owner.
    """

    decay: float
    warmup: bool
    values: Mapping[str, dict[str, Tensor]] = attrs.field(repr=False)
    _pairs: Mapping[str, tuple[list[Tensor], ...]] = attrs.field(repr=False)

    @classmethod
    def of(
        cls, decay: float, warmup: bool, owners: Mapping[str, nn.Module], tasks: Iterable[str]
    ) -> Averages:
        """Create averages of modules by owner; ``<task>.extractor`` and ``<task>.head`` belong to one task.

        Args:
            decay: Decay of the averages in a step.
            warmup: Whether the decay increases in the first steps.
            owners: Modules by owner.
            tasks: Names of the tasks.
        """
        states = {owner: module.state_dict() for owner, module in owners.items()}
        values = {
            owner: {key: value.clone() for key, value in state.items()} for owner, state in states.items()
        }
        task_of = {f"{task}.{side}": task for task in tasks for side in ("extractor", "head")}
        pairs: dict[str, tuple[list[Tensor], ...]] = {}
        for task in dict.fromkeys(task_of.values()):
            averages, weights, copies, counters = pairs[task] = [], [], [], []
            for owner, state in states.items():
                if task_of.get(owner, task) != task:
                    continue
                for key, value in state.items():
                    floating = value.is_floating_point()
                    (averages if floating else copies).append(values[owner][key])
                    (weights if floating else counters).append(value)
        return cls(decay, warmup, values, pairs)

    def decay_at(self, step: int) -> float:
        """Return the decay of a step; it is 0 in step 0, so that averages begin with its weights."""
        if step == 0:
            return 0.0
        return min(self.decay, 1 - (1 + step) ** -WARMUP_POWER) if self.warmup else self.decay

    @torch.no_grad()
    def start_from(self, owners: Mapping[str, nn.Module]) -> None:
        """Set the averages to the current values of the modules, before the first step."""
        for owner, values in self.values.items():
            for name, value in owners[owner].state_dict().items():
                values[name].copy_(value)

    @torch.no_grad()
    def update(self, task: str, step: int) -> None:
        """Update the averages of the modules that a step of a task updates: its own network and all shared ones.

        Args:
            task: Name of the task.
            step: Step of the task, from 0.
        """
        averages, values, copies, counts = self._pairs[task]
        torch._foreach_lerp_(averages, values, 1 - self.decay_at(step))  # pyright: ignore[reportPrivateImportUsage]
        if counts:
            torch._foreach_copy_(copies, counts)  # pyright: ignore[reportPrivateImportUsage]
