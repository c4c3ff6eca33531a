"""The ladder of bridges in a cell: kept with the matrix, drawn on the page, its names escaped."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import attrs
import pytest

from compatkit.contracts.evidence import Rung
from compatkit.errors import UsageError
from compatkit.reports import heatmap
from compatkit.reports.ladder import draw, rung_texts
from compatkit.reports.matrix import Matrix
from compatkit.reports.page import render

from . import examples
from .conftest import Visit
from .test_tables import printed

RUNGS = (
    Rung("statistics", 0.001, 100, examples.figure(0.25, 100)),
    Rung("ridge", 0.1, 1000, examples.figure(0.75, 100), examples.figure(0.5, 200)),
    Rung("ridge3x3", 10.0, 1000, examples.figure(0.76, 100), examples.figure(1.0, 200), chosen=True),
)


def bridged(rungs: tuple[Rung, ...] = RUNGS) -> Matrix:
    """Return two data sets of digits, one pair of them bridged."""
    made = examples.digits()
    pair = made.cells[1].extractor, made.cells[1].head
    return made.with_ladders({pair: ["Bridged by ridge3x3."]}, {pair: rungs})


def test_figures_of_each_rung_are_told() -> None:
    assert rung_texts(RUNGS)[1:] == [
        ("ridge", "agreement 0.750 (0.657 to 0.825), accuracy 0.500 (0.431 to 0.569), 1,000 images, 0.10 s"),
        (
            "ridge3x3, chosen",
            "agreement 0.760 (0.668 to 0.833), accuracy 1.000 (0.981 to 1.000), 1,000 images, 10.00 s",
        ),
    ]


def test_equal_ladders_give_equal_pictures() -> None:
    many = tuple(Rung(f"rung $\\{i}", 1e300 if i else 0, 10, examples.figure(i / 40, 100)) for i in range(40))
    assert draw(many, "a").startswith(b"\x89PNG") and draw(many, "a") == draw(many, "a") != draw(RUNGS, "a")


def test_the_page_has_the_ladder_of_a_bridged_cell_alone(visit: Visit, tmp_path: Path) -> None:
    names = (
        attrs.evolve(RUNGS[0], name=examples.HOSTILE[0]),
        attrs.evolve(RUNGS[1], name=examples.HOSTILE[4]),
    )
    page = visit.open(bridged((*names, RUNGS[2])), tmp_path)
    page.locator("td a").nth(1).click()
    shown = page.locator("dialog[open]").inner_text()
    assert "<script>alert(1)</script>" in shown and "\\u202egnp.exe\\u202c" in shown
    assert "ridge3x3, chosen" in shown and "0.760 (0.668 to 0.833)" in shown
    visit.assert_quiet()
    assert "<h3>Ladder of bridges" not in render(examples.digits())


def test_the_picture_says_in_the_cell_by_which_rung_it_is_bridged() -> None:
    figure = heatmap._figure(bridged())
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts].count("through ridge3x3") == 1
    assert "bridge" not in axes.get_xlabel().partition("◆")[2], "no legend where the cell has room"
    crowd = examples.crowd(12)
    pairs = [
        (cell.extractor, cell.head) for cell in crowd.cells if cell.restricted is not None and not cell.own
    ]
    axes = heatmap._figure(crowd.with_ladders({}, dict.fromkeys(pairs[:3], RUNGS))).axes[0]
    assert sum(text.get_text().endswith(" b") for text in axes.texts) == 3, "small cells have a letter"
    assert "b through a bridge" in axes.get_xlabel()


def test_the_ladder_comes_back_from_json_and_older_documents_have_none() -> None:
    made = bridged()
    assert Matrix.from_json(made.to_json()) == made and made.cells[1].ladder == RUNGS
    cells = json.loads(made.to_json())["cells"]
    assert [("ladder" in cell) for cell in cells] == [False, True, False, False]
    wrong = attrs.evolve(RUNGS[0], agreement=attrs.evolve(RUNGS[0].agreement, accuracy=1.5))
    with pytest.raises(UsageError, match=r"'statistics agreement' of the pair .* must have shares"):
        bridged((wrong,))


def test_every_form_says_by_which_rung_a_pair_is_bridged() -> None:
    made = bridged()
    assert "compatible through ridge3x3" in str(made) and str(made).count("through") == 1
    assert "compatible through ridge3x3" in made.to_markdown()
    page = render(made)
    assert page.count("compatible through ridge3x3") >= 2  # the square, and what a screen reader says of it
    bare = bridged(tuple(attrs.evolve(rung, chosen=False) for rung in RUNGS))
    assert "through" not in str(bare)


def test_every_table_says_that_figures_are_through_a_bridge() -> None:
    made = bridged()
    assert made.settings["bridge"] == ["ridge3x3 in 1 cell"] and "bridge" not in examples.digits().settings
    assert "compatible through ridge3x3" in str(made)
    crowd = examples.crowd(12)
    pairs = [
        (cell.extractor, cell.head) for cell in crowd.cells if cell.restricted is not None and not cell.own
    ]
    last = (attrs.evolve(RUNGS[2], name="procrustes"),)
    ladders = {pair: last if place == 0 else RUNGS for place, pair in enumerate(pairs)}
    many = crowd.with_ladders({}, ladders)
    front = f"bridge procrustes in 1 cell, ridge3x3 in {len(pairs) - 1:,} cells, "
    for text in (str(many), printed(many, 60), printed(many, 100), many.to_markdown()):
        assert " ".join(front.split()) in " ".join(text.split())
    rows = list(csv.DictReader(io.StringIO(many.to_csv())))
    through = {(row["extractor"], row["head"]): row["through"] for row in rows if row["through"]}
    assert through == {pair: rungs[-1].name for pair, rungs in ladders.items()}
    bare = next(cell for cell in crowd.cells if cell.own)
    unmeasured = attrs.evolve(bare, restricted=None)
    alone = attrs.evolve(crowd, cells=(unmeasured,)).with_ladders({}, {(bare.extractor, bare.head): RUNGS})
    assert "bridge" not in alone.settings and ",ridge3x3" not in alone.to_csv()
