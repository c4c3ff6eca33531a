"""Where a run is: lines where there is no terminal, a bar in terminals and notebooks, nothing where not wanted."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import sys
import types
from typing import Any

import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.foundation.bars import silent
from compatkit.training import progress
from compatkit.training.progress import Bar


def fit(**settings: Any) -> ck.Fit:
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]
    return quick(**{"steps": 4, "progress": True, **settings}).fit(tasks, ["dcc"])


def test_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    history = fit(log_every=2).history
    result = capsys.readouterr()
    lines = result.err.splitlines()
    assert result.out == "" and len(lines) == 4
    assert lines[0].startswith("left + right: step 1 of 4; left: task ") and "; right: task " in lines[0]
    row = history[0]["losses"]
    assert f"; left: task {row['task']:.3f}, dcc/loss {row['dcc/loss']:.3f}, accuracy" in lines[1]
    assert "; right: task " in lines[1] and lines[1].endswith(" left") and " images/s; 0:00:" in lines[1]
    assert lines[3].startswith("left + right: step 4 of 4; ") and lines[3].endswith("; 0:00:00 left")


def test_a_short_run_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    fit()
    assert [line.split(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "left + right: step 4 of 4"
    ]


def test_a_line_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("compatkit.training.progress.time.perf_counter", lambda: now[0])
    with Bar(True, "left", 100, 0, 8) as bar:
        for step in range(1, 26):
            now[0] = float(step)
            bar.step(step)
    assert capsys.readouterr().err.splitlines() == [
        "left: step 10 of 100; 8 images/s; 0:01:30 left",
        "left: step 20 of 100; 8 images/s; 0:01:20 left",
    ]


def test_later_there_are_fewer_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("compatkit.training.progress.time.perf_counter", lambda: now[0])
    with Bar(True, "left", 10_000, 0, 8) as bar:
        for second in range(1, 902):
            now[0] = float(second)
            bar.step(second)
    seconds = [int(line.split()[2].replace(",", "")) for line in capsys.readouterr().err.splitlines()]
    assert seconds == [*range(10, 61, 10), *range(90, 601, 30), *range(660, 902, 60)]


def test_losses_are_read_only_for_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read = [0.0], list[float]()

    def losses() -> dict[str, dict[str, float]]:
        read.append(now[0])
        return {"left": {"task": now[0]}}

    monkeypatch.setattr("compatkit.training.progress.time.perf_counter", lambda: now[0])
    with Bar(True, "left", 100, 0, 8) as bar:
        for step in range(1, 26):
            now[0] = float(step)
            bar.step(step, losses)
    assert read == [10.0, 20.0]
    assert [line.split("; ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "left: task 10.000",
        "left: task 20.000",
    ]


def test_losses_between_two_rows_are_means_of_the_steps_since(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Showing them changes no row: with a row a step, the same numbers."""
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    each = [row["losses"]["task"] for row in fit(log_every=1).history if row["task"] == "left"]
    capsys.readouterr()
    seldom = fit(log_every=4)
    shown = [line.split("left: task ")[1].split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert shown == [f"{sum(each[:done]) / done:.3f}" for done in (1, 2, 3, 4)]
    assert seldom.history == fit(log_every=4, progress=False).history


def test_an_evaluation_is_told_when_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    made = fit(evaluate_every=2, evaluate_on="test", ema=0.5)
    lines = capsys.readouterr().err.splitlines()
    figures = made.evaluations
    assert [line.split("; ")[0] for line in lines] == [
        f"left + right: step {step} of 4" for step in (2, 4, 4)
    ]
    first = [row for row in figures if row["step"] == 2]
    assert lines[0].split("; ")[1:] == [
        f"{row['task']}{' (averages)' if row['weights'] == 'averages' else ''}: test loss {row['loss']:.3f}, "
        f"test accuracy {row['accuracy']:.3f}"
        for row in first
    ]


def test_nothing_inside_what_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with silent():
        fit(evaluate_every=2, evaluate_on="test")
    assert capsys.readouterr().err == ""


def test_nothing_where_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    fit(progress=False, evaluate_every=2, evaluate_on="test")
    result = capsys.readouterr()
    assert result.out == result.err == ""


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    fit()
    result = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "━" in result and "4/4" in result and "dcc/loss" in result and "step 4 of 4" not in result


class ZMQInteractiveShell:
    """What rich knows a notebook by."""


class TestNotebook:
    @pytest.fixture(autouse=True)
    def notebook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)

    def test_a_bar_where_there_are_widgets(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stand-in for the two functions that rich calls; what it draws is what it would show."""
        drawn: list[Any] = []

        class Output:
            def __enter__(self) -> None: ...

            def __exit__(self, *args: object) -> None: ...

            def clear_output(self, wait: bool) -> None: ...

        def module(name: str, **content: Any) -> None:
            made = types.ModuleType(name)
            made.__spec__ = importlib.machinery.ModuleSpec(name, None)
            vars(made).update(content)
            monkeypatch.setitem(sys.modules, name, made)

        module("IPython")
        module("IPython.display", display=drawn.append)
        module("ipywidgets", Output=Output)
        fit()
        assert any("4/4" in column.text for column in drawn if hasattr(column, "text"))
        assert "step 4 of 4" not in capsys.readouterr().err

    def test_lines_where_there_are_none(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "find_spec", lambda name: None)
        fit()
        assert "step 4 of 4" in capsys.readouterr().err
