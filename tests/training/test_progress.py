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
    monkeypatch.setattr(progress, "EVERY", 0.0)
    history = fit(log_every=2).history
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == "" and len(lines) == 4
    assert lines[0].startswith("left + right: step 1 of 4; ") and "loss" not in lines[0]
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


def test_nothing_where_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    fit(progress=False)
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    fit()
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "━" in said and "4/4" in said and "dcc/loss" in said and "step 4 of 4" not in said


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

            def __exit__(self, *given: object) -> None: ...

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
        assert any("4/4" in one.text for one in drawn if hasattr(one, "text"))
        assert "step 4 of 4" not in capsys.readouterr().err

    def test_lines_where_there_are_none(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "find_spec", lambda name: None)
        fit()
        assert "step 4 of 4" in capsys.readouterr().err
