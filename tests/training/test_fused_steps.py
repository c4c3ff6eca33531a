"""Steps by the functional form are torch's own, bit for bit, whatever happens between them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from compatkit.training.fused_steps import FusedUpdate, update_of

KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.1}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.01, "betas": (0.8, 0.99)}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "eps": 1e-4, "decoupled_weight_decay": True}),
}
Step = Callable[[], object]


def optimizer(kind: str, **settings: Any) -> torch.optim.Optimizer:
    """Return an optimizer of two groups of equal weights in every call."""
    torch.manual_seed(0)
    groups = [{"params": list(nn.Linear(5, 3).parameters())}, {"params": list(nn.Linear(3, 2).parameters())}]
    groups[1]["lr"] = 0.03  # type: ignore[assignment]
    make, arguments = KINDS[kind]
    return make(groups, lr=0.1, **{"fused": True, **arguments, **settings})


def weights(made: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in made.param_groups for parameter in group["params"]]


def give_gradients(made: torch.optim.Optimizer, number: int, without: int | None = None) -> None:
    draw = torch.Generator().manual_seed(number)
    for index, weight in enumerate(weights(made)):
        weight.grad = None if index == without else torch.randn(weight.shape, generator=draw)


def both(kind: str) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer, FusedUpdate]:
    own, other = optimizer(kind), optimizer(kind)
    update = update_of(other)
    assert isinstance(update, FusedUpdate)
    return own, other, update


def assert_same(own: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    for expected, actual in zip(weights(own), weights(other), strict=True):
        assert torch.equal(expected, actual)
        expected_state, state = own.state.get(expected, {}), other.state.get(actual, {})
        assert expected_state.keys() == state.keys()
        for name, value in expected_state.items():
            assert value is None is state[name] or torch.equal(value, state[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_torchs_own(kind: str) -> None:
    own, other, update = both(kind)
    own_steps: list[int] = []
    other.step = lambda: (own_steps.append(number), type(other).step(other))  # type: ignore[method-assign,assignment]
    for number in range(6):
        for made, step in ((own, own.step), (other, update)):
            give_gradients(made, number)
            for group in made.param_groups:
                group["lr"] *= 0.9
            step()
    assert_same(own, other)
    assert own_steps == [0]


@pytest.mark.parametrize(
    ("kind", "first"),
    [*((kind, False) for kind in KINDS), ("sgd", True), ("adam", True), ("amsgrad", True)],
)
def test_parameters_without_gradients_are_left_alone(kind: str, first: bool) -> None:
    # torch's own step with momentum fails where a first gradient comes later than those of others
    own, other, update = both(kind)
    for number in range(6):
        for made, step in ((own, own.step), (other, update)):
            give_gradients(made, number, without=2 if (number < 2) == first else None)
            step()
    assert_same(own, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_counts(kind: str) -> None:
    own, other, update = both(kind)
    steps: tuple[tuple[torch.optim.Optimizer, Step], ...] = ((own, own.step), (other, update))
    for made, step in steps:
        for number in range(3):
            give_gradients(made, number)
            step()
        saved = copy.deepcopy(made.state_dict())
        give_gradients(made, 3)
        step()
        made.load_state_dict(saved)
        give_gradients(made, 4)
        step()
    assert_same(own, other)


def test_hooks_on_optimizers_are_called() -> None:
    _, other, update = both("adam")
    seen: list[str] = []
    registered = [
        lambda: register_optimizer_step_post_hook(lambda *arguments: seen.append("all")),
        lambda: other.register_step_pre_hook(lambda *arguments: seen.append("own")),  # type: ignore[list-item]
    ]
    for register in registered:
        for number in range(2):
            give_gradients(other, number)
            update()
        handle = register()
        try:
            update()
        finally:
            handle.remove()
    update()
    assert seen == ["all", "own"]


def test_others_take_their_own_steps() -> None:
    plain = optimizer("sgd", fused=False)
    assert update_of(plain) == plain.step
    other = torch.optim.AdamW(nn.Linear(2, 2).parameters(), fused=True)
    assert update_of(other) == other.step
