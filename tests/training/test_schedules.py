"""The learning rate is a pure function of the step."""

from __future__ import annotations

import math

import pytest

from compatkit.errors import UsageError
from compatkit.training.optim import Schedule


def test_step_divides_by_ten_every_quarter() -> None:
    # Gygli et al., Sec. 4: 20,000 steps, divided by 10 every 5,000.
    schedule = Schedule("step")
    assert [schedule.at(step, 20_000) for step in (0, 4_999)] == [1.0, 1.0]
    assert schedule.at(5_000, 20_000) == pytest.approx(0.1)
    assert schedule.at(19_999, 20_000) == pytest.approx(0.001)


def test_cosine_starts_at_one_and_ends_near_zero() -> None:
    schedule = Schedule("cosine")
    assert schedule.at(0, 100) == 1.0
    assert schedule.at(50, 100) == pytest.approx(0.5)
    assert schedule.at(99, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.99)))


def test_warmup_rises_linearly() -> None:
    schedule = Schedule("constant", warmup=3)
    assert [schedule.at(step, 10) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_unknown_kind_and_negative_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="'kind' must be one of step, cosine, constant; got 'linear'"):
        Schedule("linear")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'warmup' must be a whole number from 0 up; got -1"):
        Schedule("step", warmup=-1)
    with pytest.raises(UsageError, match="'every' must be a whole number from 1 up, or None; got 0"):
        Schedule("step", every=0)
