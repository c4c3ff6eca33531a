"""What several rungs stand on: made once, its seconds told to each that uses it."""

from __future__ import annotations

import pytest

from compatkit.components.bridges import inputs
from compatkit.components.bridges.inputs import Lazy


def test_seconds_of_the_maker_are_lent_to_later_users_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [0.0], list[int]()
    monkeypatch.setattr(inputs.time, "perf_counter", lambda: now[0])

    def make() -> str:
        made.append(1)
        now[0] += 2.5
        return "moments"

    value = Lazy(make)
    assert value.borrowed_seconds() == 0.0
    assert (value.get(), value.get(), value.borrowed_seconds()) == (
        "moments",
        "moments",
        0.0,
    )  # its maker spent them itself
    assert value.borrowed_seconds() == 0.0  # nobody asked
    assert (value.get(), value.borrowed_seconds(), value.borrowed_seconds()) == ("moments", 2.5, 0.0)
    assert made == [1]
