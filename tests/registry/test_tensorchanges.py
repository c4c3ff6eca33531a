"""How weights differ, tensor by tensor, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compatkit.registry.versions.tensors import TensorChange, TensorForm, tensor_changes
from compatkit.registry.weights.header import DTYPES
from compatkit.registry.weights.tensorfile import deserialize, serialize


def only(before: torch.Tensor, after: torch.Tensor) -> TensorChange:
    (result,) = tensor_changes({"w": before}, {"w": after})
    return result


def test_counts_and_largest_difference_are_those_of_float64():
    draw = np.random.default_rng(0)
    before = draw.standard_normal((7, 3, 5, 5)).astype(np.float32)
    after = before + (draw.random(before.shape) < 0.3) * draw.standard_normal(before.shape).astype(np.float32)
    after = after.astype(np.float32)
    result = only(torch.from_numpy(before), torch.from_numpy(after))
    distance = np.abs(before.astype(np.float64) - after.astype(np.float64))
    assert result.values == np.count_nonzero(distance) > 0
    assert result.largest == distance.max()
    assert result.before == result.after == TensorForm("float32", (7, 3, 5, 5))


def test_what_is_equal_bit_by_bit_is_left_out():
    state = {
        "w": torch.randn(3, 2),
        "nan": torch.tensor([float("nan")]),
        "none": torch.empty(0, 3),
        "n": torch.tensor(4),
    }
    assert tensor_changes(state, deserialize(serialize(state))) == ()
    assert tensor_changes(state, {name: value.clone() for name, value in state.items()}) == ()


def test_names_that_came_and_went_and_other_shapes():
    old = {"a": torch.zeros(2), "b": torch.zeros(2, 3), "d": torch.zeros(())}
    new = {"b": torch.zeros(3, 2), "c": torch.zeros(1, dtype=torch.int64), "d": torch.zeros(())}
    result = tensor_changes(old, new)
    assert [str(match) for match in result] == [
        "a: removed float32 2",
        "b: float32 2x3 -> float32 3x2",
        "c: added int64 1",
    ]
    assert all(match.values is None and match.largest is None for match in result)


def test_zero_and_minus_zero_differ_by_nothing():
    assert only(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == TensorChange(
        "w", TensorForm("float32", (2,)), TensorForm("float32", (2,)), 1, 0.0
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_difference_that_is_not_finite_has_no_number(value: float):
    result = only(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, value, 4.0]))
    assert (result.values, result.largest) == (2, None)
    assert str(result) == "w: float32 3, 2 values differ, at most by not finite"


@pytest.mark.parametrize("name", [name for name, _ in DTYPES.values()])
def test_every_dtype_that_can_be_stored(name: str):
    kind = getattr(torch, name)
    result = only(torch.tensor([0, 1, 1, 0]).to(kind), torch.tensor([0, 1, 0, 1]).to(kind))
    assert (result.values, result.largest) == (2, 1.0)


def test_other_dtypes_are_compared_by_value():
    before = torch.tensor([1.0, 0.1, float("nan")])
    result = only(before, before.bfloat16())
    assert (result.before, result.after) == (TensorForm("float32", (3,)), TensorForm("bfloat16", (3,)))
    assert (result.values, result.largest) == (2, None)  # 0.1 is rounded; NaN equals nothing
    same = only(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.5], dtype=torch.float64))
    assert (same.values, same.largest) == (0, 0.0)


def test_as_json():
    assert only(torch.tensor([1.0]), torch.tensor([3.0])).to_json() == {
        "name": "w",
        "before": {"dtype": "float32", "shape": (1,)},
        "after": {"dtype": "float32", "shape": (1,)},
        "values": 1,
        "largest": 2.0,
    }
