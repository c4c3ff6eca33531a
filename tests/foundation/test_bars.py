"""Bars of slow work: in a terminal only, after a second, one at a time, and none where none is wanted."""

from __future__ import annotations

import io
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from photos import class_folder
from pictured import photos, task
from small import quick

import compatkit as ck
from compatkit.data.summary import summarize
from compatkit.data.unlabeled import read_unlabeled
from compatkit.foundation import bars
from compatkit.foundation.bars import bar, silent


class Terminal(io.StringIO):
    """A standard error that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return what stands on a terminal, whose bars begin at once."""
    made = Terminal()
    monkeypatch.setattr(bars, "sys", types.SimpleNamespace(stderr=made))  # pytest moves the real one
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bars, "BAR_DELAY", 0.0)
    monkeypatch.setattr(bars, "BAR_INTERVAL", 0.0)
    return made


WORK: dict[str, tuple[str, Callable[[Path], object]]] = {
    "listing": ("bee", lambda root: ck.data.load(root)),
    "listing without classes": ("images", lambda root: read_unlabeled(root / "bee")),
    "digest": ("reading images", lambda root: ck.data.load(root).train.digest),
    "states": ("looking at files", lambda root: ck.data.load(root, digest="unverified").train.digest),
    "damaged": ("decoding images", lambda root: ck.data.load(root, damaged="skip")),
    "statistics": ("mean and deviation", lambda root: ck.data.load(root).train.statistics()),
    "survey": ("decoding", lambda root: summarize([ck.data.load(root).train])),
}


@pytest.mark.parametrize("what", WORK)
def test_each_kind_of_slow_work_has_one(tmp_path: Path, shown: Terminal, what: str) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 4, "bee": 4})
    result, work = WORK[what]
    work(root)
    assert result in shown.getvalue()
    before = len(shown.getvalue())
    with silent():
        work(class_folder(tmp_path / "others", {"ant": 4, "bee": 4}, seed=7))
    assert len(shown.getvalue()) == before


def test_the_cache_of_a_run_has_one_and_only_where_progress_is_wanted(
    tmp_path: Path, shown: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos(tmp_path / "pets")
    for wanted in (False, True):
        monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / f"cache-{wanted}"))
        quick(steps=1, workers=0, cache="on", progress=wanted).fit([task(data)])
        assert ("once" in shown.getvalue()) == wanted


def test_nothing_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "BAR_DELAY", 0.0)
    with bar() as tell:
        tell(1, 2, "x")
    assert capsys.readouterr() == ("", "")


def test_lines_where_there_is_no_terminal_once_work_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(bars, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with bar() as tell:
        for second in range(1, 101):
            now[0] = float(second)
            tell(1_000 * second, 200_000 if second < 70 else 0, "reading\x1b images")
            with bar() as inner:
                inner(1, 2, "inner")
    assert capsys.readouterr().err.splitlines() == [
        *(
            f"images: {second},000 of 200,000, {(200 - second) // 60}:{(200 - second) % 60:02d} left; "
            "reading\\x1b images"
            for second in (10, 20, 30, 40, 50)
        ),
        "images: 80,000; reading\\x1b images",
    ]
    with silent(), bar() as tell:
        now[0] += 1000.0
        tell(1, 2, "x")
    assert capsys.readouterr().err == ""


def test_quick_work_shows_none(shown: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "BAR_DELAY", 60.0)
    with bar() as tell:
        tell(1, 2, "x")
    assert shown.getvalue() == ""


def test_bars_do_not_stand_in_each_other(shown: Terminal) -> None:
    with bar() as outer:
        outer(1, 2, "outer")
        with bar() as inner:
            inner(1, 2, "inner")
    assert "outer" in shown.getvalue() and "inner" not in shown.getvalue()


def test_who_asks_for_progress_gets_it_in_place_of_a_bar(shown: Terminal) -> None:
    message: list[tuple[int, int, str]] = []
    with silent(), bar(lambda *news: message.append(news)) as tell:
        tell(1, 2, "x")
    assert message == [(1, 2, "x")] and shown.getvalue() == ""


def test_a_bar_goes_away_with_an_error_and_costs_little(
    shown: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError), bar() as tell:
        tell(1, 2, "x")
        raise ZeroDivisionError
    assert not bars._silent.get()
    monkeypatch.setattr(bars, "BAR_INTERVAL", 60.0)
    with bar() as tell:
        tell(0, 0, "x")
        began = time.process_time()
        for number in range(100_000):
            tell(number, 100_000, "x")
    assert time.process_time() - began < 1.0
