"""Accuracy against a slow float64 reference, by hand, in parts, and with labels and logits that are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Result
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.accuracy import Accuracy, is_correct


def reference(logits: Tensor, labels: Tensor, top: int) -> float:
    """Sort each example's classes, highest first, lower index first among equals; look for its own."""
    values = logits.double().numpy()
    right = 0
    for row, label in zip(values, labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda index: (-row[index], index))
        right += label in order[:top]
    return right / len(values)


def measured(logits: Tensor, labels: Tensor, top: int = 1) -> Result:
    metric = Accuracy(top)
    return metric.finalize(metric.update(metric.init(), logits, labels))


@pytest.mark.parametrize("top", [1, 3, 9, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_reference(top: int, dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(1)
    logits = torch.randn(200, 10, generator=source).mul(2).round().to(dtype)  # rounded: many equal logits
    labels = torch.randint(0, 10, (200,), generator=source)
    assert measured(logits, labels, top).value == reference(logits, labels, top)


def test_equals_arg_max() -> None:
    logits = torch.randn(500, 7, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(500) % 7
    assert torch.equal(is_correct(logits, labels), torch.from_numpy(logits.numpy().argmax(1)) == labels)


def test_known_value_and_what_goes_with_it() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 9.0], [1.0, 0.0, 0.0]])
    result = measured(logits, torch.tensor([1, 0, 2, 2]))
    assert (result.value, result.count, result.status, result.unit, result.direction) == (
        0.75,
        4,
        "ok",
        "1",
        "higher",
    )
    assert result.paper and result.equation and result.estimator == "plug-in"
    assert measured(logits, torch.tensor([1, 0, 2, 2]), top=3).name == "accuracy@3"


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 40), max_size=4), top=st.integers(1, 5))
def test_does_not_depend_on_the_batches(cuts: list[int], top: int) -> None:
    source = torch.Generator().manual_seed(3)
    logits, labels = torch.randn(40, 5, generator=source), torch.randint(0, 5, (40,), generator=source)
    metric, states = Accuracy(top), []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
        states.append(metric.update(metric.init(), logits[start:stop], labels[start:stop]))
    state = metric.init()
    for other in states:
        state = metric.merge(state, other)
    assert metric.finalize(state) == measured(logits, labels, top)


def test_conforms() -> None:
    assert_metric(Accuracy)
    assert_metric(Accuracy, top=2)


@pytest.mark.parametrize(
    ("top", "value", "status"), [(2, 0.5, "ok"), (3, 1.0, "degenerate"), (4, None, "undefined")]
)
def test_as_many_answers_as_classes_say_nothing(top: int, value: float | None, status: str) -> None:
    """Among all three classes the right one always is; of four there are none."""
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    result = measured(logits, torch.tensor([1, 2]), top)
    assert (result.value, result.status) == (value, status)
    assert ("of 3 classes" in result.reason) == (status != "ok")
    first = measured(torch.zeros(2, 1), torch.tensor([0, 0]))
    assert (first.value, first.status) == (1.0, "degenerate"), "of one class every answer is right"


def test_no_examples() -> None:
    result = Accuracy().finalize(Accuracy().init())
    assert (result.value, result.status, result.reason) == (None, "undefined", "no examples")


def test_nan_counts_as_wrong_and_is_told() -> None:
    logits = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [0.0, 1.0]])
    result = measured(logits, torch.tensor([0, 0, 1]))
    assert (result.value, result.status) == (2 / 3, "degenerate")
    assert result.reason == "1 of 3 examples have NaN among their logits and count as wrong"


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], [-100, 5]])
def test_labels_that_are_no_class(labels: list[int]) -> None:
    with pytest.raises(DataError, match=r"of 2 labels are out of range of the logits"):
        measured(torch.zeros(2, 3), torch.tensor(labels))


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (torch.zeros(2, 3, 1), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2)),
    ],
)
def test_shapes_that_do_not_fit(logits: Tensor, labels: Tensor) -> None:
    with pytest.raises(DataError, match=r"accuracy expects logits \(batch, classes\)"):
        measured(logits, labels)


@pytest.mark.parametrize("top", [0, -1, 1.0, True, np.nan])
def test_top_is_a_count(top: object) -> None:
    with pytest.raises(UsageError, match="'top' must be a whole number from 1 up"):
        Accuracy(top)  # type: ignore[arg-type]


def test_small_integer_labels_are_taken() -> None:
    assert measured(torch.eye(3), torch.arange(3, dtype=torch.uint8)).value == 1.0
