"""What consoles and notebooks show of values: a screenful of what the terminal says, with nothing that could run."""

from __future__ import annotations

import os
import shutil
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.cli import output
from compatkit.contracts.manifest import About
from compatkit.foundation.display import (
    LINES,
    WIDTH,
    Shown,
    aligned,
    labeled,
    network_and_cut,
    padded,
    screenful,
    width_of,
)
from compatkit.registry.maintenance.check import VerificationReport
from compatkit.registry.maintenance.faults import Fault
from compatkit.registry.names import Reference

HOSTILE = "<script>\x1b[31m\u202e&\"'</script>"


@pytest.fixture(scope="module")
def fit() -> ck.Fit:
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]
    return quick(steps=3, evaluate_every=3, evaluate_on="test").fit(tasks, ["identical_init", "dcc"])


@pytest.fixture(scope="module")
def published(fit: ck.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ck.Registry.init(tmp_path_factory.mktemp("display") / "parts")
    made.publish(fit, prefix="digits")
    made.matrix("digits/*.extractor", "digits/*.head", [fit.tasks[task].task.data.test for task in fit.tasks])
    return made.store.root


@pytest.fixture
def registry(published: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(published, tmp_path / "parts"))


class Tags(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def check_shown(value: Any) -> str:
    """Return a value's repr; hold it and its HTML to a screenful in which nothing runs or drives a terminal."""
    text, page = repr(value), Tags()
    page.feed(value._repr_html_())
    heat_map = {"p", "img"} if isinstance(value, ck.Matrix) else set()
    assert page.tags <= heat_map | {"pre", "span"}
    assert page.attributes <= {"style"} | ({"src", "alt"} if heat_map else set())
    for entry in (text,) if heat_map else (text, page.text.strip("\n")):
        lines = entry.split("\n")
        assert entry and len(lines) <= LINES and max(map(len, lines)) <= WIDTH
        assert all(line.isprintable() for line in lines)
    return text


def test_what_a_session_hands_out_is_shown_on_a_screen(fit: ck.Fit, registry: ck.Registry) -> None:
    pair = "digits/left.extractor", "digits/right.head"
    result = check_shown(fit)
    assert "3 steps a task, seed 0; regularizers: dcc, identical_init" in result
    assert "resnet8_cifar cut at layer2  48 images of left/train" in result and "accuracy 0." in result
    assert "shared heads: dcc" in result
    matrix = registry.matrix(*pair, [fit.tasks["left"].task.data.test], fill="none")
    assert repr(matrix) == str(matrix) and "digits/left.extractor" in check_shown(matrix)
    report = registry.check(*pair)
    assert check_shown(report).split() == str(report).split()
    assert "1 pair" in check_shown(registry.check_all(*pair))
    assert check_shown(registry.diff(pair[0], "digits/right.extractor")).startswith("least step: major")
    assert "digits/left.extractor" in check_shown(registry)
    assert "trained on" in check_shown(registry[pair[0]])
    assert check_shown(registry.search("left")).count("digits/") == 2
    assert "sound; read 5 versions" in check_shown(registry.maintenance.verify()) and "stay" in check_shown(
        registry.maintenance.gc()
    )
    for item in (fit.tasks["left"], fit.auxiliary["dcc"], matrix.cells[0], registry.search()[0]):
        assert len(repr(item)) < 200 and "\n" not in repr(item)
    assert len(repr(registry.store.manifest(pair[0]))) < 200


def test_a_measurement_and_a_copy_are_tables(fit: ck.Fit, registry: ck.Registry, tmp_path: Path) -> None:
    table = ck.measure(fit.tasks["left"], fit.tasks["left"].task.data.test, ["accuracy"])
    assert "accuracy" in check_shown(table) and " 48 " in repr(table)
    moved = registry.push(os.fspath(tmp_path / "other"), "digits/left.head", create=True)
    assert "new      digits/left.head@1.0.0" in check_shown(moved)


def test_hostile_texts_stay_texts(registry: ck.Registry) -> None:
    made = registry.store.manifest("digits/left.head")
    message = attrs.evolve(made, about=About(title=HOSTILE, description=HOSTILE, tags={"by": HOSTILE}))
    registry.store.publish("digits/told.head", message)
    for value in (
        registry,
        registry["digits/told.head"],
        registry.search("script"),
        registry.diff("digits/told.head", "digits/left.head"),
    ):
        assert "<script>" in check_shown(value) and "1b[31m" in repr(value)
        assert "<script" not in value._repr_html_() and "&lt;script&gt;" in value._repr_html_()


def test_what_is_longer_than_a_screen_is_cut_and_says_so(tmp_path: Path) -> None:
    faults = tuple(Fault("blob-missing", "error", f"blobs/{number}", "x" * 9) for number in range(100))
    result = VerificationReport(tmp_path, faults)
    assert check_shown(result).endswith("... 63 more lines; print it to see them all")
    assert str(result).count("\n") == 101
    assert screenful("a\n" * 5) == "a\n" * 4 + "a"


def test_a_registry_of_many_names_shows_the_first_and_counts_the_rest(registry: ck.Registry) -> None:
    made = registry.store.manifest("digits/left.head")
    for number in range(50):
        registry.store.publish(
            f"many/part{number:02}.head", attrs.evolve(made, about=About(title=str(number)))
        )
    text = check_shown(registry)
    assert "55 components" in text and text.endswith("... and 25 more names")
    assert "more lines" in check_shown(registry.search())


def test_a_registry_that_is_gone_still_has_a_repr(registry: ck.Registry) -> None:
    shutil.rmtree(registry.store.root)
    assert str(registry.store.root) in check_shown(registry)


def test_every_public_report_is_shown() -> None:
    from compatkit.components.domains import Adapted
    from compatkit.registry.copy.report import TransferReport
    from compatkit.registry.maintenance.gc import CollectionPlan

    public = (
        ck.Fit,
        ck.Matrix,
        ck.Report,
        ck.Verdicts,
        ck.Difference,
        ck.PolicyOutcome,
        ck.Bridge,
        ck.Measurement,
    )
    for kind in (
        *public,
        ck.Registry,
        ck.Component,
        Adapted,
        TransferReport,
        CollectionPlan,
        VerificationReport,
    ):
        assert issubclass(kind, Shown) and kind.__repr__ is Shown.__repr__, kind


def test_a_moved_report_names_what_is_new() -> None:
    from compatkit.registry.copy.report import TransferReport

    assert "new      a/b@1.0.0" in check_shown(TransferReport(created=[Reference.parse("a/b@1.0.0")]))


def test_an_adapter_is_shown_without_a_cut() -> None:
    assert network_and_cut("resnet18", "layer3") == "resnet18 @ layer3"
    assert network_and_cut("project", "") == "project", "it is cut from no network"


NAMES = (
    "plain",
    unicodedata.normalize("NFD", "\u00e9\u00e9l\u00e8ve"),
    "\u72ac\u732b",
    "\uff21\uff22",
    "\u00e9",
)
WIDTHS = (5, 6, 4, 4, 1)
"""In columns of a terminal: combining accents take none, East Asian wide characters two."""


def starts(lines: list[str], mark: str) -> set[int]:
    """Return the columns of a terminal at which a mark stands, from single characters."""
    wide = [
        [
            0 if unicodedata.combining(part) else 1 + (unicodedata.east_asian_width(part) in "WF")
            for part in line
        ]
        for line in lines
    ]
    return {sum(sizes[: line.index(mark)]) for line, sizes in zip(lines, wide, strict=True)}


def test_columns_are_aligned_as_a_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(map(width_of, NAMES)) == WIDTHS
    assert [padded(name, 6, right=True).index(name) for name in NAMES] == [6 - width for width in WIDTHS]
    rows = [(name, "|") for name in NAMES]
    assert starts(aligned(rows), "|") == starts(labeled(dict(rows)), "|") == {8}
    output.columns([("name", "|"), *rows])
    output.rows(dict(rows), indent=0)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 11 and starts(printed, "|") == {8}
    output.columns([("name", "|"), *rows], right=[0])
    assert starts(capsys.readouterr().out.splitlines(), "|") == {8}
