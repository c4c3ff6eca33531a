"""Two matrices compared: intervals, changes, what is not comparable, and every output."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import attrs
import pytest

from compatkit.contracts.evidence import Cell, figure, wilson
from compatkit.contracts.metric_figures import MetricFigure
from compatkit.reports.changes import ComparedPairs, PairChange, difference_interval
from compatkit.reports.comparison import Comparison
from compatkit.reports.comparison_page import render
from compatkit.reports.matrix import Matrix

from . import examples
from .conftest import Visit


def cell(correct: int, count: int = 100, **changes: object) -> Cell:
    measured = examples.measured("a.extractor@1.0.0", "b.head@1.0.0", 0.5, "compatible", bound=0.9)
    return attrs.evolve(measured, restricted=figure(correct, count), **changes)


@pytest.mark.parametrize(
    ("after", "before", "interval"),
    [
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
        ((0, 10), (0, 20), (-0.1611, 0.2775)),
        ((0, 10), (0, 10), (-0.2775, 0.2775)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
        ((10, 10), (0, 10), (0.6075, 1.0)),
    ],
    ids="abcdefgh",
)
def test_the_interval_is_that_of_newcombe(
    after: tuple[int, int], before: tuple[int, int], interval: tuple[float, float]
) -> None:
    """Examples (a) to (h) of Newcombe (1998), table II, method 10."""
    low, high = difference_interval(figure(*before), figure(*after))
    assert (round(low, 4), round(high, 4)) == interval


def test_changes_that_accident_may_explain_are_told() -> None:
    same = PairChange.of("a", "b", cell(9990, 10000), cell(9990, 10000))
    better = PairChange.of("a", "c", cell(48, 80), cell(56, 70))
    few, many = (ComparedPairs((), (), (better, *[same] * count)) for count in (5, 7))
    assert better.change == "better" and "by accident" not in few.conclusion()
    assert "Up to 1 of so many would differ by accident" in many.conclusion()


def test_extreme_counts_stay_within_bounds() -> None:
    assert difference_interval(figure(0, 10), figure(10, 10))[1] == 1.0
    low, high = difference_interval(figure(0, 10), figure(0, 10))
    assert low == -high == -wilson(0, 10)[1]
    assert all(map(math.isfinite, (low, high)))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (cell(48, 80), cell(56, 70), "better"),
        (cell(56, 70), cell(48, 80), "worse"),
        (cell(50_000, 100_000), cell(50_010, 100_000), "same"),
        (cell(50), cell(52), "unclear"),
        (None, cell(52), "added"),
        (cell(50), None, "removed"),
        (None, None, "unmeasured"),
        (cell(50, grade="stale"), cell(52), "added"),
        (cell(50, common=("a",)), cell(52), "other-images"),
    ],
    ids=["better", "worse", "same", "unclear", "added", "removed", "unmeasured", "stale", "classes"],
)
def test_each_change(before: Cell | None, after: Cell | None, change: str) -> None:
    if change in ("better", "worse"):  # 80 and 70 images
        before, after = (attrs.evolve(item, settings={}) for item in (before, after) if item is not None)
    pair = PairChange.of("a", "b", before, after)
    assert pair.change == change
    assert (pair.difference is None) == (change not in ("better", "worse", "same", "unclear"))


def test_other_images_are_not_compared_and_other_conditions_are_told() -> None:
    before = cell(50, settings={"data_digest": "data:1", "policy": "batch"})
    assert (
        PairChange.of("a", "b", before, cell(90, settings={"data_digest": "data:2"})).change == "other-images"
    )
    pair = PairChange.of("a", "b", before, cell(90, settings={"data_digest": "data:1", "policy": "running"}))
    assert pair.change == "better" and pair.conditions == (("policy", "batch", "running"),)


def later(matrix: Matrix) -> Matrix:
    """The digits with a better second head, and the first head in a new version."""
    cells = [
        attrs.evolve(item, restricted=figure(9300, 10000))
        if "usps.head" in item.head and "mnist.e" in item.extractor
        else item
        for item in matrix.cells
    ]
    old = matrix.heads[0].reference
    new = old.replace("1.0.0", "1.1.0")
    heads = [
        attrs.evolve(part, reference=new if part.reference == old else part.reference)
        for part in matrix.heads
    ]
    cells = [attrs.evolve(item, head=new if item.head == old else item.head) for item in cells]
    return Matrix(matrix.extractors, heads, cells, matrix.settings)


@pytest.fixture
def comparison() -> Comparison:
    matrix = examples.digits()
    return later(matrix).compare(matrix)


def test_versions_are_matched_by_name(comparison: Comparison) -> None:
    assert comparison.versions == {"digits/mnist.head@1.1.0": "digits/mnist.head@1.0.0"}
    assert comparison.counts() == {"better": 1, "unclear": 2, "same": 1}
    text = comparison.conclusion()
    assert text.startswith("Of 4 pairs measured in both: 1 better, 1 the same within one point, 2 unclear")
    assert "Largest gain: digits/mnist.extractor@1.0.0 with digits/usps.head@1.2.0, +0.049" in text
    assert "Largest loss" not in text


def test_two_versions_on_one_side_are_not_guessed() -> None:
    matrix = examples.digits()
    both = Matrix(
        matrix.extractors,
        [*matrix.heads, attrs.evolve(matrix.heads[0], reference="digits/mnist.head@2.0.0")],
        matrix.cells,
    )
    compared = both.compare(later(matrix))
    assert compared.versions == {} and compared.counts()["added"] == 2
    assert [part.reference for part in compared.heads][-1] == "digits/mnist.head@1.1.0"
    assert "2 pairs measured only in the earlier matrix" in compared.conclusion()


def test_a_matrix_compared_with_itself_has_no_change() -> None:
    matrix = examples.crowd(6)
    compared = matrix.compare(matrix)
    assert set(compared.counts()) <= {"same", "unclear", "unmeasured"}
    assert all(pair.difference in (0, None) for pair in compared.pairs)
    assert str(compared) == compared.conclusion()


def test_outputs_agree(comparison: Comparison, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(tmp_path / "c.csv"))))
    document = json.loads(comparison.to_json())
    assert (tmp_path / "c.csv").read_text() == comparison.to_csv()
    for row, pair, entry in zip(rows, comparison.pairs, document["pairs"], strict=True):
        assert float(row["difference"]) == pair.difference == entry["difference"]
        assert row["change"] == pair.change == entry["change"]
    frame = comparison.to_dataframe()
    assert list(frame["difference"]) == [pair.difference for pair in comparison.pairs]
    assert "digits/usps.head" in str(comparison) and "better" in str(comparison)


def test_the_page_shows_differences(visit: Visit, comparison: Comparison, tmp_path: Path) -> None:
    visit.page.goto(comparison.to_html(tmp_path / "comparison.html").as_uri())
    text = visit.page.locator("td").nth(1).inner_text()
    assert "+0.049" in text and "better" in text and "0.881 to 0.930" in text
    visit.page.locator("td a").nth(1).click()
    sheet = visit.page.locator("dialog[open]").inner_text()
    assert "8,810 of 10,000" in sheet and "9,300 of 10,000" in sheet and "Difference" in sheet
    visit.page.keyboard.press("Escape")
    visit.page.locator("td a").nth(0).click()
    assert "compared with digits/mnist.head@1.0.0" in visit.page.locator("dialog[open]").inner_text()
    visit.page.keyboard.press("Escape")
    visit.page.locator("#filter-value").fill("0.01")
    assert visit.page.locator("td:not(.out)").count() == 1
    visit.assert_quiet()


def test_an_empty_comparison_says_so() -> None:
    empty = Matrix((), (), ())
    assert empty.compare(empty).conclusion() == "No pair was measured on the same images in both matrices."
    assert "This matrix has no extractors." in render(empty.compare(empty))


def leep(value: float | None, **changes: object) -> MetricFigure:
    figure = MetricFigure("leep", "leep", value, unit="nats", direction="higher", count=100, plugin="p 1")
    return attrs.evolve(figure, **changes)


@pytest.mark.parametrize(
    ("before", "after", "difference", "reason"),
    [
        (leep(-1.5), leep(-1.25), 0.25, ""),
        (leep(-1.5, status="approximate", reason="few"), leep(-2.0), -0.5, ""),
        (leep(-1.5), leep(-1.0, plugin="p 2"), None, "measured with another plugin"),
        (leep(-1.5), leep(-1.0, count=50, unit="bits"), None, "measured with another unit and count"),
        (leep(-1.5, status="stale", reason="x"), leep(-1.0), None, "measured in only the later matrix"),
        (leep(-1.5), leep(None, status="failed", reason="x"), None, "measured in only the earlier matrix"),
        (leep(-1.5), None, None, "measured in only the earlier matrix"),
        (None, leep(None, status="missing", reason="x"), None, "measured in neither matrix"),
    ],
    ids="abcdefgh",
)
def test_figures_of_metrics_are_compared_if_they_are_of_one_kind(
    before: MetricFigure | None, after: MetricFigure | None, difference: float | None, reason: str
) -> None:
    cells = [cell(50, metrics=() if one is None else (one,)) for one in (before, after)]
    pair = PairChange.of("a", "b", *cells)
    (change,) = pair.metrics
    assert (change.difference, change.reason) == (difference, reason)
    assert pair.change == "unclear" and pair.difference == 0  # of the accuracy alone


def test_metrics_on_other_images_are_not_compared_and_a_pair_without_accuracy_is() -> None:
    before, after = (
        cell(50, metrics=(leep(value),), settings={"data_digest": digest})
        for value, digest in ((1, "a"), (2, "b"))
    )
    (change,) = PairChange.of("a", "b", before, after).metrics
    assert (change.before, change.after, change.difference) == (1, 2, None) and "images" in change.reason
    bare = [attrs.evolve(item, restricted=None, settings={}) for item in (before, after)]
    pair = PairChange.of("a", "b", *bare)
    assert pair.metrics[0].difference == 1 and pair.difference is None


def test_metrics_are_in_every_output_without_a_verdict(visit: Visit, tmp_path: Path) -> None:
    matrix = examples.digits()

    def with_figures(shift: float) -> Matrix:
        cells = [
            attrs.evolve(item, metrics=(leep(-1.0 + shift * place),))
            for place, item in enumerate(matrix.cells)
        ]
        return Matrix(matrix.extractors, matrix.heads, cells, matrix.settings)

    compared = with_figures(0.25).compare(with_figures(0.0))
    differences = [0.0, 0.25, 0.5, 0.75]
    entries = json.loads(compared.to_json())["pairs"]
    rows = list(csv.DictReader(io.StringIO(compared.to_csv())))
    assert sorted(entry["metrics"][0]["difference"] for entry in entries) == differences
    assert sorted(float(row["metric_leep_difference"]) for row in rows) == differences
    assert {row["metric_leep_before"] for row in rows} == {"-1.0"}
    text = compared.conclusion()
    assert "leep changed by +0.375 (median of 4 pairs; +0 to +0.75)" in text
    assert compared.counts() == matrix.compare(matrix).counts()
    visit.page.goto(compared.to_html(tmp_path / "comparison.html").as_uri())
    visit.page.locator("td a").nth(1).click()
    assert "difference +0.25, higher is better" in visit.page.locator("dialog[open]").inner_text()
    visit.assert_quiet()
