"""The ladder of bridges in a cell: kept with the matrix, drawn on the page, its names escaped."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

import attrs
import pytest

from compatkit.contracts.evidence import Rung
from compatkit.errors import UsageError
from compatkit.reports import heatmap
from compatkit.reports.ladder import picture
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


def test_points_stand_where_their_figures_say() -> None:
    found = picture(RUNGS)
    first, second, third = found.points
    assert [text for _, text in found.seconds] == ["0.01 s", "0.1 s", "1 s", "10 s"]
    assert [first.x, second.x, third.x] == [found.seconds[place][0] for place in (0, 1, 3)]
    one, half, zero = (dict((text, y) for y, text in found.shares)[text] for text in ("1", "0.5", "0"))
    assert first.agreement == zero + 0.25 * (one - zero) and second.accuracy == half and third.accuracy == one
    assert second.low > second.agreement > second.high and first.accuracy is None  # y runs downwards
    assert third.line <= second.line - 15  # names do not stand on each other
    assert third.name == "ridge3x3, 1,000 images" and third.chosen
    assert second.description == (
        "ridge: agreement 0.750 (0.657 to 0.825), accuracy 0.500 (0.431 to 0.569), 1,000 images, 0.10 s"
    )


def test_many_rungs_at_one_place_keep_their_names_apart() -> None:
    for share in (0.0, 0.9, 1.0):
        many = tuple(Rung(f"rung {i}", 1e300, 10, examples.figure(share, 100)) for i in range(40))
        found = picture(many)
        assert len(found.seconds) <= 7
        lines = sorted(one.line for one in found.points)
        assert min(b - a for a, b in itertools.pairwise(lines)) >= 15
        assert lines[0] >= 0 and lines[-1] <= found.height


def test_the_ladder_comes_back_from_json_and_older_documents_have_none() -> None:
    made = bridged()
    assert Matrix.from_json(made.to_json()) == made and made.cells[1].ladder == RUNGS
    cells = json.loads(made.to_json())["cells"]
    assert [("ladder" in one) for one in cells] == [False, True, False, False]
    wrong = attrs.evolve(RUNGS[0], agreement=attrs.evolve(RUNGS[0].agreement, accuracy=1.5))
    with pytest.raises(UsageError, match=r"figure 'statistics agreement' of the pair .* must hold shares"):
        bridged((wrong,))


def test_the_page_draws_the_ladder_of_a_bridged_cell_alone() -> None:
    page = render(bridged())
    assert page.count('<svg class="ladder"') == 1 and page.count('<path class="cross"') == 3  # with the key
    assert page.count(' class="chosen"') == 1
    assert 'class="ladder"' not in render(examples.digits())


def test_a_hostile_name_stays_text_and_the_picture_is_seen(visit: Visit, tmp_path: Path) -> None:
    names = (
        attrs.evolve(RUNGS[0], name=examples.HOSTILE[0]),
        attrs.evolve(RUNGS[1], name=examples.HOSTILE[4]),
    )
    page = visit.open(bridged((*names, RUNGS[2])), tmp_path)
    page.locator("td a").nth(1).click()
    shown = page.locator("dialog[open] svg.ladder")
    assert shown.bounding_box()["height"] > 100
    texts = shown.locator("text").all_text_contents()
    assert "<script>alert(1)</script>, 100 images" in texts
    assert any("\\u202egnp.exe\\u202c" in one for one in texts)
    assert page.get_by_role("img", name="ridge3x3, chosen: agreement 0.760").count() == 1
    visit.assert_quiet()


def test_every_form_says_by_which_rung_a_pair_is_bridged() -> None:
    made = bridged()
    assert "compatible through ridge3x3" in str(made) and str(made).count("through") == 1
    assert "compatible through ridge3x3" in made.to_markdown()
    page = render(made)
    assert page.count("compatible through ridge3x3") >= 2  # the square, and what a screen reader says of it
    bare = bridged(tuple(attrs.evolve(one, chosen=False) for one in RUNGS))
    assert "through" not in str(bare)


def test_the_picture_says_in_the_cell_by_which_rung_it_is_bridged() -> None:
    figure = heatmap._figure(bridged())
    assert [one.get_text() for one in figure.axes[0].texts].count("through ridge3x3") == 1
    assert not any("through" in one.get_text() for one in figure.texts), "no legend where the cell has room"
    crowd = examples.crowd(12)
    pairs = [(one.extractor, one.head) for one in crowd.cells if one.restricted is not None and not one.own]
    other = (attrs.evolve(RUNGS[2], name="procrustes"),)
    many = crowd.with_ladders({}, {pairs[0]: RUNGS, pairs[1]: other, pairs[2]: RUNGS})
    figure = heatmap._figure(many)
    letters = [one.get_text().split()[-1] for one in figure.axes[0].texts if " " in one.get_text()]
    assert letters == ["a", "b", "a"], "small cells have a letter beside the mark"
    legend = " ".join(one.get_text() for one in figure.texts)
    assert "a through ridge3x3" in legend and "b through procrustes" in legend


def test_every_table_says_that_figures_are_through_a_bridge() -> None:
    made = bridged()
    assert made.settings["bridge"] == ["ridge3x3 in 1 cell"] and "bridge" not in examples.digits().settings
    assert "compatible through ridge3x3" in str(made)
    crowd = examples.crowd(12)
    pairs = [(one.extractor, one.head) for one in crowd.cells if one.restricted is not None and not one.own]
    last = (attrs.evolve(RUNGS[2], name="procrustes"),)
    ladders = {pair: last if place == 0 else RUNGS for place, pair in enumerate(pairs)}
    many = crowd.with_ladders({}, ladders)
    front = f"bridge procrustes in 1 cell, ridge3x3 in {len(pairs) - 1:,} cells, "
    for text in (str(many), printed(many, 60), printed(many, 100), many.to_markdown()):
        assert " ".join(front.split()) in " ".join(text.split())
    rows = list(csv.DictReader(io.StringIO(many.to_csv())))
    through = {(one["extractor"], one["head"]): one["through"] for one in rows if one["through"]}
    assert through == {pair: rungs[-1].name for pair, rungs in ladders.items()}
    bare = next(one for one in crowd.cells if one.own)
    unmeasured = attrs.evolve(bare, restricted=None)
    alone = attrs.evolve(crowd, cells=(unmeasured,)).with_ladders({}, {(bare.extractor, bare.head): RUNGS})
    assert "bridge" not in alone.settings and ",ridge3x3" not in alone.to_csv()
