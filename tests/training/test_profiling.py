"""Where the time of a step goes; looking changes nothing."""

from __future__ import annotations

import time

import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.profiling import PARTS, Profile

TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]


class Slow:
    """Wastes ten milliseconds after each step."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        time.sleep(0.01)


def test_shares_add_up_and_name_what_wastes_the_time() -> None:
    lean = quick(steps=1).profile(TASKS, ["dcc"], steps=3)
    assert set(lean.shares) == set(PARTS)
    assert sum(lean.shares.values()) == pytest.approx(1)
    assert min(lean.shares["forward"], lean.shares["backward"]) > lean.shares["hooks"]
    slow = quick(steps=1).profile(TASKS, ["slow"], steps=3, factories={"slow": Slow})
    assert slow.milliseconds >= 2 * 10
    assert slow.warning is not None
    assert "of a step is not computing, most of it hooks: make the plugins' views" in slow.warning
    assert slow.warning in str(slow) and slow.to_json()["warning"] == slow.warning


def test_a_step_that_computes_is_not_warned_of() -> None:
    shares = dict.fromkeys(PARTS, 0.0) | {"forward": 0.5, "backward": 0.3, "data": 0.2}
    assert Profile(1.0, shares, 1).warning is None
    shares |= {"backward": 0.29, "data": 0.21}
    warned = Profile(1.0, shares, 1)
    assert warned.warning is not None and warned.warning.startswith(
        "21% of a step is not computing, most of it data"
    )


def test_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="needs steps >= 1; got 0"):
        quick(steps=1).profile(TASKS, steps=0)
