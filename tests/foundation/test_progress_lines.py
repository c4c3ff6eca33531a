"""Progress without a terminal: a line now and then with what is done and what is left, also while nothing new comes."""

from __future__ import annotations

import time

import pytest

from compatkit.cli.output import progress
from compatkit.foundation import bars
from compatkit.foundation.bars import Lines, line_interval, remaining, silent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the clock shows."""
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("elapsed", "done", "left", "expected"),
    [
        (10, 1, 9, "1:30"),
        (3600, 1, 1, "1:00:00"),
        (7, 7, 0, "0:00"),
        (5, 0, 3, None),
        (5, 3, -3, None),
    ],
)
def test_the_rest_takes_as_long_as_what_was_done(
    elapsed: float, done: int, left: int, expected: str | None
) -> None:
    assert remaining(elapsed, done, left) == expected


def test_a_line_has_counts_and_the_time_that_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines("study 3.1")
    lines(4, 10, "none, seed 1")  # four were recorded before and took none of this time
    clock[0] = 12.0
    lines(6, 10, "dcc, seed 1")
    lines(7, 10, "too soon")
    clock[0] = 23.0
    lines(8, 10, "mine\x1b[31m, seed 1")
    out = capsys.readouterr()
    assert out.out == ""
    first, second = out.err.splitlines()
    assert first == "study 3.1: 6 of 10, 0:24 left; dcc, seed 1"
    assert second.startswith("study 3.1: 8 of 10, 0:12 left; mine") and "\x1b" not in second


def test_unknown_totals_have_no_time(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("reading", "images")
    clock[0] = 11.0
    lines(1200, 0, "")
    assert capsys.readouterr().err == "reading: 1,200 images\n"


def test_a_long_step_repeats_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "LINE_INTERVAL", 0.02)
    monkeypatch.setattr(bars, "line_interval", lambda elapsed: line_interval(elapsed, 0.02))
    with progress("study") as report:
        report(1, 3, "none, seed 1")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3 and set(lines) == {"study: 1 of 3; none, seed 1"}


def test_quiet_work_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "line_interval", lambda elapsed: 0.0)
    with silent(), progress("study") as report:
        report(1, 3, "none")
    with silent(), bars.bar() as report:
        report(1, 3, "none")
    assert capsys.readouterr().err == ""
