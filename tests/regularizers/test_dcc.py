"""Discriminating common classes: the masked loss, matching by name, and every refusal."""

from __future__ import annotations

import math

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit_plugins.regularizers._classes import OUTSIDE, common_class_loss


def reference(logits: torch.Tensor, labels: list[int]) -> float:
    """Sum of -log softmax over the examples of common classes, over the batch size, in plain Python."""
    total = 0.0
    for row, wanted in zip(logits.tolist(), labels, strict=True):
        if wanted >= 0:
            total += math.log(sum(math.exp(value) for value in row)) - row[wanted]
    return total / len(labels)


def test_equals_the_formula_written_out() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = [0, 3, OUTSIDE, 2, OUTSIDE, 1]
    got = common_class_loss(logits, torch.tensor(labels))
    assert float(got) == pytest.approx(reference(logits.double(), labels), rel=1e-6)


def test_known_value_worked_out_by_hand() -> None:
    # Two examples, one of a common class, equal logits of two classes: log(2) / 2, not log(2) / 1.
    got = common_class_loss(torch.zeros(2, 2), torch.tensor([1, OUTSIDE]))
    assert float(got) == pytest.approx(math.log(2) / 2)


def test_a_batch_without_common_classes_costs_nothing_and_is_finite() -> None:
    logits = torch.randn(3, 2, requires_grad=True)
    loss = common_class_loss(logits, torch.full((3,), OUTSIDE))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert torch.equal(logits.grad, torch.zeros(3, 2))  # type: ignore[arg-type]


def test_classes_are_matched_by_name_through_the_alias_table() -> None:
    # CIFAR-10 says automobile, STL-10 says car; frog and monkey have no partner.
    left = data_set("left", classes=("airplane", "automobile", "frog"))
    right = data_set("right", classes=("car", "monkey", "airplane"))
    fit = quick(steps=1).fit(
        [
            ck.Task("left", left, "resnet8_cifar", "layer2", size=16),
            ck.Task("right", right, "resnet8_cifar", "layer2", size=16),
        ],
        ["dcc"],
    )
    assert [label.name for label in fit.auxiliary["dcc"].labels or ()] == ["airplane", "automobile"]


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (("c", "d"), r"2 at least; here tasks share none\. left: a, b; right: c, d"),
        (("a", "d"), r"2 at least; here tasks share a\. left: a, b; right: a, d"),
    ],
)
def test_fewer_than_two_common_classes_are_one_clear_error(theirs: tuple[str, ...], message: str) -> None:
    left, right = data_set("left", classes=("a", "b")), data_set("right", classes=theirs)
    tasks = [
        ck.Task("left", left, "resnet8_cifar", "layer2", size=16),
        ck.Task("right", right, "resnet8_cifar", "layer2", size=16),
    ]
    with pytest.raises(PluginError, match=message):
        quick(steps=1).fit(tasks, ["dcc"])


def test_an_unknown_class_name_is_refused_with_what_is_shared() -> None:
    data = data_set("left", classes=("a", "b"))
    tasks = [ck.Task(name, data, "resnet8_cifar", "layer2", size=16) for name in ("one", "two")]
    with pytest.raises(PluginError, match="'z' is no class that the tasks share; they share a, b"):
        quick(steps=1).fit(tasks, [ck.use("dcc", classes=["z"])])
