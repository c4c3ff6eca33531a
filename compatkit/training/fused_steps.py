"""Steps of torch's fused optimizers on a CPU, by their functional form: the same kernel with less around it.

``Optimizer.step`` marks itself for profilers and looks up parameters and moments anew. For a network of four tensors
this takes several times as long as the kernel (``python -m benchmarks --only tiny-step-loop``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.optim.sgd import sgd

Group = Mapping[str, Any]
Moments = Sequence[list[Tensor]]


def update_of(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return a function that takes a step of an optimizer, bit for bit as ``optimizer.step`` does.

    Args:
        optimizer: Optimizer of any kind; another than a fused one of torch on a CPU takes its own steps.
    """
    kind, groups = type(optimizer), optimizer.param_groups
    on_cpu = all(parameter.device.type == "cpu" for group in groups for parameter in group["params"])
    if kind not in KINDS or not on_cpu or not all(group["fused"] for group in groups):
        return optimizer.step
    return FusedUpdate(optimizer, *KINDS[kind])


@attrs.define(eq=False)
class FusedUpdate:
    """Step of a fused optimizer, with the lists of its parameters and moments.

    The lists are made anew when a restored state replaces the optimizer's. torch's own step is taken for the first
    step, where a parameter has no gradient, and where hooks on optimizers are registered.

    Attributes:
        optimizer: Optimizer of torch.
    """

    optimizer: torch.optim.Optimizer
    _update: Callable[[Group, list[Tensor], list[Tensor], Moments], None]
    _names: Callable[[Group], tuple[str, ...]]
    _hooks: tuple[Mapping[int, Any], ...] = attrs.field(init=False)
    _state: object = attrs.field(init=False, default=None)
    _groups: list[tuple[Group, list[Tensor], Moments]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        own: Any = self.optimizer
        self._hooks = (
            *(own._optimizer_step_pre_hooks, own._optimizer_step_post_hooks),
            *(_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
        )

    def __call__(self) -> None:
        """Take a step."""
        if self.optimizer.state is not self._state or any(self._hooks):
            self._state = None
            self.optimizer.step()
            self._collect()
            return
        all_gradients: list[list[Tensor]] = []
        for _, parameters, _ in self._groups:
            gradients: list[Tensor] = []
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is None:
                    self.optimizer.step()
                    return
                gradients.append(gradient)
            all_gradients.append(gradients)
        with torch.no_grad():
            for (group, parameters, moments), gradients in zip(self._groups, all_gradients, strict=True):
                self._update(group, parameters, gradients, moments)

    def _collect(self) -> None:
        """List parameters and moments, if all parameters have them."""
        state = self.optimizer.state
        self._groups = []
        for group in self.optimizer.param_groups:
            parameters, names = group["params"], self._names(group)
            known = [state.get(parameter, {}) for parameter in parameters]
            if any(values.get(name) is None for values in known for name in names):
                return
            moments = [[values[name] for values in known] for name in names]
            self._groups.append((group, parameters, moments))
        self._state = state


def _sgd(group: Group, parameters: list[Tensor], gradients: list[Tensor], moments: Moments) -> None:
    names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
    buffers: Any = moments[0] if moments else []
    sgd(parameters, gradients, buffers, fused=True, **{name: group[name] for name in names})


def _adam(group: Group, parameters: list[Tensor], gradients: list[Tensor], moments: Moments) -> None:
    names = ("amsgrad", "lr", "weight_decay", "eps", "maximize", "decoupled_weight_decay")
    means, squares, steps, *largest = moments
    beta1, beta2 = group["betas"]
    adam(
        *(parameters, gradients, means, squares, largest[0] if largest else [], steps),
        fused=True,
        beta1=beta1,
        beta2=beta2,
        **{name: group[name] for name in names},
    )


KINDS: Mapping[type, tuple[Any, Any]] = {
    torch.optim.SGD: (_sgd, lambda group: ("momentum_buffer",) if group["momentum"] else ()),
    torch.optim.Adam: (
        _adam,
        lambda group: ("exp_avg", "exp_avg_sq", "step", *(("max_exp_avg_sq",) if group["amsgrad"] else ())),
    ),
}
"""Functional form of each optimizer, and the names of a parameter's moments."""
