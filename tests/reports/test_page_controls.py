"""Sorting and filtering a matrix page, and pages so large that only the cells in sight are drawn."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from compatkit.contracts.evidence import Cell
from compatkit.reports.matrix import Matrix
from compatkit.reports.page import MAX_STATIC, render

from . import examples
from .conftest import Visit


def table(page: Any) -> tuple[list[str], list[str], list[list[str]]]:
    """Names of the rows and columns in sight, and the texts of their cells."""
    rows, columns, cells = page.evaluate(
        """() => {
          const names = (nodes) => Array.from(nodes, (node) => node.querySelector("bdi").title);
          const lines = Array.from(document.querySelectorAll("tbody tr:not(.space)"));
          return [
            names(lines.map((line) => line.querySelector("th"))),
            names(document.querySelectorAll("thead th:not(.corner)")),
            lines.map((line) => Array.from(line.querySelectorAll("td:not(.space)"), (cell) => cell.innerText)),
          ];
        }"""
    )
    return rows, columns, cells


def accuracies(matrix: Matrix, reference: str) -> dict[str, float | None]:
    """Accuracy of each extractor with one head."""
    result: dict[str, float | None] = {}
    for part in matrix.extractors:
        cell = matrix.find(part.reference, reference)
        result[part.reference] = cell.restricted.accuracy if cell and cell.restricted else None
    return result


def means(matrix: Matrix) -> dict[str, float]:
    """Mean accuracy of each extractor over measured heads that are not its own."""
    result: dict[str, float] = {}
    for part in matrix.extractors:
        cells = [cell for cell in matrix if cell.extractor == part.reference and not cell.own]
        values = [cell.restricted.accuracy for cell in cells if cell.restricted]
        result[part.reference] = sum(values) / len(values)
    return result


def name(reference: str) -> str:
    return reference.rpartition("@")[0]


@pytest.mark.parametrize("size", [8, 40])
def test_rows_are_sorted_by_mean_by_name_and_by_one_head(visit: Visit, tmp_path: Path, size: int) -> None:
    matrix = examples.crowd(size)
    page = visit.open(matrix, tmp_path)
    page.locator("#sort-rows").select_option("mean")
    by_mean = means(matrix)
    expected = sorted(by_mean, key=lambda reference: -by_mean[reference])
    rows, columns, cells = table(page)
    assert len(rows) >= min(size, 8) and rows == list(map(name, expected))[: len(rows)]
    assert columns == [name(head.reference) for head in matrix.heads][: len(columns)]
    first = matrix.find(expected[0], matrix.heads[0].reference)
    assert (
        first is not None
        and first.restricted is not None
        and f"{first.restricted.accuracy:.3f}" in cells[0][0]
    )

    page.locator("thead th a").nth(1).click()
    page.get_by_role("button", name="Sort extractors by this head").click()
    assert page.locator("dialog[open]").count() == 0
    single = accuracies(matrix, matrix.heads[1].reference)
    shown = [
        single[reference]
        for rows in [table(page)[0]]
        for title in rows
        for reference in single
        if name(reference) == title
    ]
    measured = [value for value in shown if value is not None]
    assert measured == sorted(measured, reverse=True) and measured[0] == max(filter(None, single.values()))
    assert page.locator("#sort-rows option:checked").inner_text() == matrix.heads[1].reference

    page.locator("#reset").click()
    assert table(page)[0] == [name(part.reference) for part in matrix.extractors][: len(rows)]
    visit.assert_quiet()


def test_names_words_and_least_accuracy_narrow_the_table(visit: Visit, tmp_path: Path) -> None:
    matrix = examples.crowd(12)
    page = visit.open(matrix, tmp_path)
    page.locator("#filter-rows").fill("domain-0")
    rows, columns, _ = table(page)
    assert rows == [f"zoo/domain-{number:02d}.extractor" for number in range(10)] and len(columns) == 12
    page.locator("#filter-columns").fill("zoo/*-1?.head".replace("?", ""))
    assert table(page)[1] == []
    assert page.get_by_role("status").inner_text() == "None of 144 pairs fits."
    page.locator("#filter-columns").fill("*-11.head")
    assert table(page)[1] == ["zoo/domain-11.head"]
    page.locator("#reset").click()

    page.locator("#filter-value").fill("0.6")
    fitting = [cell for cell in matrix if cell.restricted is not None and cell.restricted.accuracy >= 0.6]
    visible = page.locator("td:not(.out)").count()
    assert visible == len(fitting) > 12
    others = [cell.restricted.accuracy for cell in fitting if not cell.own and cell.restricted]
    status = page.get_by_role("status").inner_text()
    assert status == (
        f"{len(fitting)} of 144 pairs shown; mean accuracy of {len(others)} measured recombinations: "
        f"{sum(others) / len(others):.3f}."
    )
    own = page.locator(".counts button[data-word=own]")
    own.click()
    assert own.get_attribute("aria-pressed") == "false"
    assert page.locator("td:not(.out)").count() == len(others)
    visit.assert_quiet()


def test_a_large_page_draws_what_is_in_sight_and_reaches_every_cell(visit: Visit, tmp_path: Path) -> None:
    matrix = examples.crowd(60)
    assert len(matrix.cells) > MAX_STATIC
    page = visit.open(matrix, tmp_path)
    assert page.get_by_role("grid").get_attribute("aria-rowcount") == "61"
    assert 100 < page.get_by_role("gridcell").count() < 2000
    random.seed(0)
    for _ in range(12):
        across, down = random.randrange(4000), random.randrange(2000)
        page.evaluate(f"document.querySelector('.frame').scrollTo({across}, {down})")
        page.wait_for_timeout(60)
        rows, columns, cells = table(page)
        for row, texts in zip(rows, cells, strict=True):
            for column, text in zip(columns, texts, strict=True):
                extractor = next(part.reference for part in matrix.extractors if name(part.reference) == row)
                head = next(part.reference for part in matrix.heads if name(part.reference) == column)
                cell = matrix.find(extractor, head)
                figure = f"{cell.restricted.accuracy:.3f}" if cell and cell.restricted else ""
                assert re.findall(r"\d\.\d{3}", text) == ([figure] if figure else []), (row, column)
    page.locator("#reset").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+End")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-59-59"
    box, frame = page.locator("td a:focus").bounding_box(), page.locator(".frame").bounding_box()
    assert box and frame and box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    text = page.locator("dialog[open]").inner_text()
    cell = matrix.find(matrix.extractors[58].reference, matrix.heads[59].reference)
    assert cell is not None and "domain-58.extractor" in text and "domain-59.head" in text
    assert "Measured with" in text and "batch size" in text
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-58-59"
    visit.assert_quiet()


def sheet_text(page: Any, cell: str) -> str:
    page.evaluate(f"location.hash = '#{cell}'")
    page.wait_for_selector("dialog[open]")
    text = page.locator("dialog[open] .content").inner_text()
    page.keyboard.press("Escape")
    page.evaluate("location.hash = ''")
    return text


def test_a_sheet_made_by_the_script_says_what_the_page_would(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = examples.hostile()
    page = visit.open(matrix, tmp_path)
    cells = [f"cell-{i}-{j}" for i in range(len(matrix.extractors)) for j in range(len(matrix.heads))]
    plain = {cell: sheet_text(page, cell) for cell in [*cells[:12], "extractor-1", "head-0"]}
    monkeypatch.setattr("compatkit.reports.page.MAX_STATIC", 1)
    page = visit.open(matrix, tmp_path)
    assert page.locator("table.dense").count() == 1
    for cell, text in plain.items():
        assert sheet_text(page, cell).split() == text.split(), cell
    assert visit.dialogs == [] and visit.said == []


def test_large_pages_hold_every_text_once_and_nothing_that_closes_a_script() -> None:
    page = render(examples.crowd(31))
    (sheets,) = re.findall(r'<script type="application/json" id="sheet-data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(sheets)
    assert len(data["cells"]) == 31 * 31 and len(set(data["texts"])) == len(data["texts"])
    hostile = [
        Cell(f"a{i}", f"b{j}</script>", "direct", "none", "none") for i in range(31) for j in range(31)
    ]
    parts = [
        [examples.part(name, "head") for name in dict.fromkeys(side)]
        for side in zip(*((c.extractor, c.head) for c in hostile), strict=True)
    ]
    assert render(Matrix(*parts, hostile)).count("</script>") == render(examples.crowd(31)).count("</script>")


def test_without_scripts_a_large_page_says_so(visit: Visit) -> None:
    page = render(examples.crowd(31))
    assert "The table has 961 cells, and a script draws those in sight." in page
    assert "<td" not in page.split("<script")[0] and len(page) < 1_500_000
