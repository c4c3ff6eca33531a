"""Policies of batch normalization under the old name of the parameter, and formats under both spellings."""

from __future__ import annotations

import pytest

import compatkit as ck
from compatkit.contracts.batchnorm import under_old_name
from compatkit.errors import UsageError
from compatkit.evaluation.conditions import Conditions


def test_the_old_name_is_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="bn_policy="):
        assert under_old_name("batch", "running") == "running"
    assert under_old_name("mix:16", None) == "mix:16"


def test_a_policy_under_the_old_name_is_kept_like_any_other(tmp_path: object) -> None:
    held = ck.Registry.init(f"{tmp_path}/registry")
    with pytest.warns(DeprecationWarning):
        old = held.policies.set("a/", "none", normalisation="running")
    assert old == held.policies.set("a/", "none", bn_policy="running")


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_both_spellings_of_a_format_are_one(name: str) -> None:
    assert Conditions(precision=name).precision == "bfloat16"
    assert ck.Trainer(steps=1, precision=name).precision == "bf16"  # type: ignore[arg-type]


def test_other_formats_are_refused() -> None:
    with pytest.raises(UsageError):
        Conditions(precision="half")
