"""Formats under both spellings."""

from __future__ import annotations

import pytest

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.evaluation.conditions import Conditions


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_both_spellings_of_a_format_are_one(name: str) -> None:
    assert Conditions(precision=name).precision == "bfloat16"
    assert ck.Trainer(steps=1, precision=name).precision == "bf16"  # type: ignore[arg-type]


def test_other_formats_are_refused() -> None:
    with pytest.raises(UsageError):
        Conditions(precision="half")
