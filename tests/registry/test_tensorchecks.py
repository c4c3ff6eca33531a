"""The one check of tensors: differences from a network, and values that no network can use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from compatkit.errors import IntegrityError
from compatkit.registry.weights.tensorchecks import check_values, compare, first_fault

NETWORK = {
    "conv.weight": torch.zeros(2, 1, 3, 3),
    "bn.running_var": torch.ones(2),
    "bn.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    "mask": torch.zeros(2, dtype=torch.bool),
}


def test_tensors_of_the_network_fit_in_any_floating_precision() -> None:
    assert not compare(NETWORK, NETWORK)
    assert not compare({**NETWORK, "conv.weight": NETWORK["conv.weight"].half()}, NETWORK)
    assert first_fault(NETWORK, NETWORK) is None


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 1, 3, 3), dtype=np.float32),
        [0.0],
        None,
        torch.zeros(2, 1, 3, 3, dtype=torch.int64),
        torch.zeros(2, 1, 3, 3, dtype=torch.complex64),
        torch.zeros(2, 1, 3, 3).to_sparse(),
        torch.zeros(2, 1, 3, 3, device="meta"),
    ],
    ids=["numpy", "list", "None", "whole", "complex", "sparse", "meta"],
)
def test_what_a_network_cannot_hold_is_of_another_kind(value: object) -> None:
    result = compare({**NETWORK, "conv.weight": value}, NETWORK)
    assert [kind[0] for kind in result.kinds] == ["conv.weight"]
    assert not (result.missing or result.unknown or result.shapes)


def test_names_that_are_no_text_are_unknown_names() -> None:
    assert compare({**NETWORK, 3: torch.zeros(1)}, NETWORK).unknown == ("3",)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("conv.weight", torch.full((2, 1, 3, 3), float("nan"))),
        ("conv.weight", torch.full((2, 1, 3, 3), -float("inf"), dtype=torch.bfloat16)),
        ("conv.weight", torch.full((2, 1, 3, 3), 1e300, dtype=torch.float64)),
        ("bn.running_var", torch.tensor([1.0, -1e-9])),
        ("bn.running_var", torch.tensor([1.0, -2.0], dtype=torch.float16)),
        ("bn.num_batches_tracked", torch.tensor(-1)),
        ("mask", torch.tensor([0, 7])),
    ],
    ids=[
        "nan",
        "inf in bf16",
        "beyond float32",
        "negative variance",
        "of float16",
        "negative count",
        "whole to bool",
    ],
)
def test_values_that_no_network_can_use_are_named(name: str, value: Tensor) -> None:
    with pytest.raises(IntegrityError) as caught:
        check_values({**NETWORK, name: value}, "file", "Advice.", NETWORK)
    assert caught.value.code == "integrity" and caught.value.subject == name


def test_values_that_survive_the_conversion_are_no_fault() -> None:
    state = {
        "conv.weight": torch.full((2, 1, 3, 3), 3e38, dtype=torch.float64),
        "bn.running_var": torch.zeros(2),
        "mask": torch.tensor([0, 1]),
        "log_var": torch.tensor([-3.0]),
        "bn.log_running_var": torch.tensor([-3.0]),
    }
    assert first_fault(state, NETWORK) is None
