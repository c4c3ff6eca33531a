"""What programs save around a state dict is taken off step by step, and every step is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compatkit.components.checkpoints.unwrapping import AVERAGED, PLAIN, PREFIXES, stripped, unwrapped
from compatkit.errors import UsageError

W = torch.zeros(2)
STATE = {"conv.weight": W, "fc.bias": W}


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def test_a_state_dict_is_itself() -> None:
    result = unwrapped(STATE, is_tensor)
    assert result.tensors == STATE and result.notes == ()


@pytest.mark.parametrize("key", [*PLAIN, *AVERAGED])
def test_every_usual_entry_is_taken_and_the_rest_is_told(key: str) -> None:
    result = unwrapped({"epoch": 3, key: STATE, "optimizer": {}}, is_tensor)
    assert result.tensors == STATE
    assert result.notes == (f"used the entry {key!r}, left out 'epoch', 'optimizer'",)


def test_several_wrappers_are_taken_off_one_by_one() -> None:
    result = unwrapped({"model": {"state_dict": STATE, "version": 1}}, is_tensor)
    assert result.tensors == STATE
    assert result.notes == ("used the entry 'model'", "used the entry 'state_dict', left out 'version'")


def test_plain_weights_come_before_averages_unless_these_are_asked_for() -> None:
    value = {"model": STATE, "model_ema": {"module.x": W, "n_averaged": W}}
    result = unwrapped(value, is_tensor)
    assert result.tensors == STATE and "also found weights in 'model_ema'; key selects one" in result.notes
    averaged = unwrapped(value, is_tensor, key="model_ema")
    assert set(averaged.tensors) == {"module.x", "n_averaged"}
    again = stripped(averaged.tensors, {"x": W})
    assert again.tensors == {"x": W}
    assert again.notes == (
        "removed the prefix 'module.'",
        "left out tensors without this prefix: 'n_averaged'",
    )


def test_a_way_of_several_entries() -> None:
    value = {"runs": {"best": {"net": STATE}, "last": {}}}
    assert unwrapped(value, is_tensor, key="runs/best/net").tensors == STATE
    with pytest.raises(UsageError, match="no entry 'worst'; at depth 1 there are 'best', 'last'"):
        unwrapped(value, is_tensor, key="runs/worst")


def test_the_only_mapping_of_tensors_is_the_one() -> None:
    assert unwrapped({"my_net": STATE, "lr": 0.1}, is_tensor).tensors == STATE


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([STATE], "got a list"),
        (W, "got a Tensor"),
        ({}, "there are none"),
        ({"epoch": 3}, "no entry contains tensors; there are 'epoch'"),
        (
            {"generator": STATE, "discriminator": STATE},
            "2 entries contain tensors: 'generator', 'discriminator'",
        ),
        ({"state_dict": {"state_dict": {}}}, "no entry contains tensors"),
    ],
)
def test_what_is_no_state_dict_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        unwrapped(value, is_tensor)


def test_mappings_without_end_are_refused() -> None:
    value: dict[str, Any] = {"state_dict": STATE}
    for _ in range(20):
        value = {"model": value}
    with pytest.raises(UsageError, match=r"nested more than|no entry contains tensors"):
        unwrapped(value, is_tensor)


def test_what_is_no_tensor_is_left_out() -> None:
    result = unwrapped({**STATE, "_extra_state": {}, 3: W}, is_tensor)
    assert result.tensors == STATE and result.notes == (
        "left out entries that are not tensors: '_extra_state', 3",
    )


@given(st.lists(st.sampled_from(PREFIXES), max_size=4))
def test_all_prefixes_come_off_in_any_order(prefixes: list[str]) -> None:
    text = "".join(prefixes)
    result = stripped({text + name: value for name, value in STATE.items()}, STATE)
    assert result.tensors == STATE and len(result.notes) == len(prefixes)


def test_a_prefix_that_belongs_to_the_name_stays() -> None:
    own = {"model.conv.weight": W, "model.fc.bias": W}
    result = stripped(own, own)
    assert result.tensors == own and result.notes == ()
