"""The page in a real browser: no request, no console message, keyboard, hostile names, both color schemes.

Without Chromium or Playwright the browser's tests are skipped; what the text alone can show is tested anyway.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from PIL import Image

from compatkit.reports.drawing import shade
from compatkit.reports.matrix import Matrix
from compatkit.reports.page import SHADE_LEVELS, render, script_json
from compatkit.reports.tables import matrix_table
from compatkit.reports.wording import MINUS

from . import examples
from .conftest import Visit


@pytest.mark.parametrize("make", [examples.digits, examples.hostile, lambda: Matrix((), (), ())])
def test_the_page_is_self_contained(make):
    page = render(make())
    tags = re.sub(r"<script[^>]*>.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe|object|embed|base|form)\b", tags)
    assert not re.search(r"<[^>]*\s(on\w+|style|src)\s*=", re.sub(r'"[^"]*"', '""', tags))
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', tags))
    assert "unsafe" not in re.findall(r'Policy" content="([^"]*)"', page)[0]
    assert "url(" not in page and "@import" not in page


@pytest.mark.parametrize("make", [examples.digits_and_more, examples.hostile])
def test_the_embedded_json_is_the_matrix_and_cannot_close_its_element(make):
    matrix = make()
    text = script_json(matrix)
    assert not set("<>&\u2028\u2029") & set(text)
    result = re.search(
        r'<script type="application/json" id="matrix-data">(.*?)</script>', render(matrix), re.DOTALL
    )
    assert result and Matrix.from_json(result[1]) == matrix


def test_the_keyboard_opens_and_closes_the_evidence(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.digits_and_more(), tmp_path)
    page.locator("#reset").focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert "0.973" in page.evaluate(focused)
    page.keyboard.press("ArrowRight")
    assert "compatible, accuracy 0.881, from 0.875 to 0.887" in page.evaluate(focused)
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    panel = page.locator("dialog[open]")
    text = panel.inner_text()
    for evidence in (
        "0.881",
        "8,810 of 10,000",
        "Chance",
        "Bound",
        "Recovered",
        f"{MINUS}0.099 to {MINUS}0.085",
        "head-shared",
        "data:sha256:abab",
        "Common classes (10)",
        "all outputs",
        "batch size",
    ):
        assert evidence in text
    page.keyboard.press("Escape")
    assert panel.count() == 0
    assert "0.881" in page.evaluate(focused)  # The focus is back where it was.
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert "128 channels" in page.locator("dialog[open]").inner_text()
    visit.assert_quiet()


def test_a_heading_opens_its_contract(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.digits(), tmp_path)
    page.locator("#reset").focus()
    for key in ("Tab", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert "digits/mnist.head" in page.locator("dialog[open]").inner_text()
    for key in ("Escape", "ArrowDown", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    text = page.locator("dialog[open]").inner_text()
    assert (
        "digits/mnist.extractor" in text and "resnet20_cifar up to layer2" in text and "value:sha256:" in text
    )
    page.locator("dialog .close").click()
    assert page.locator("dialog[open]").count() == 0
    visit.assert_quiet()


def test_the_table_is_a_table_for_assistive_tools(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.digits(), tmp_path)
    assert page.get_by_role("grid").count() == 1
    assert page.get_by_role("columnheader").count() == 3 and page.get_by_role("rowheader").count() == 2
    assert page.get_by_role("gridcell").count() == 4
    assert page.locator("table [tabindex='0']").count() == 1


def test_hostile_names_are_shown_as_text(visit: Visit, tmp_path: Path) -> None:
    matrix = examples.hostile()
    page = visit.open(matrix, tmp_path)
    headings = page.locator("th[scope=row] bdi").all_text_contents()
    assert headings[0] == "<script>alert(1)</script>#0"
    assert headings[1].startswith("\"><img src=x onerror='alert(2)'>")
    assert "\\u202e" in headings[4] and "{{ 7*7 }}" in headings[6]
    for place in (1, 13):
        page.locator("td a").nth(place).click()
        assert "<script>alert(1)</script>" in page.locator("dialog[open]").inner_text()
        page.keyboard.press("Escape")
    assert page.locator("img, script:not([id]):not(:last-of-type)").count() == 0
    visit.assert_quiet()


def test_the_policy_stops_what_would_get_past_the_escapes(visit: Visit, tmp_path: Path) -> None:
    page = render(examples.digits()).replace(
        "<h1>", "<script>alert(9)</script><img src=x onerror=alert(8)><h1>"
    )
    (tmp_path / "broken.html").write_text(page, encoding="utf-8")
    visit.page.goto((tmp_path / "broken.html").as_uri())
    visit.page.wait_for_load_state("networkidle")
    assert visit.dialogs == []
    assert sum("Content Security Policy" in line for line in visit.said) >= 2


def test_thirty_by_thirty_stays_usable(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.crowd(30), tmp_path)
    page.locator("#reset").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+End")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#cell-29-29"
    boxes = [
        page.locator(where).bounding_box()
        for where in ("td a:focus", "thead th:last-child", "tbody tr:last-child th")
    ]
    cell, column, row = boxes
    assert cell and column and row
    # The headers of the focused cell are in sight, beside and above it.
    assert 0 <= column["y"] < cell["y"] and abs(column["x"] - cell["x"]) < 8
    assert 0 <= row["x"] < cell["x"] and abs(row["y"] - cell["y"]) < 8
    assert cell["y"] + cell["height"] <= 901 and column["y"] + column["height"] <= cell["y"] + 1
    visit.assert_quiet()


SCREENS = [
    {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for width in (1280, 400)
    for scheme in ("light", "dark")
]


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
def test_no_screen_is_blank_or_scrolls_sideways(
    visit: Visit, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page = visit.open(examples.digits_and_more(), tmp_path)
    picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), dtype=np.float64)
    dark = request.node.callspec.params["visit"]["color_scheme"] == "dark"
    assert picture.std() > 15
    assert np.median(picture) < 60 if dark else np.median(picture) > 200
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert contrasts(page) >= 4.5
    visit.assert_quiet()


def contrasts(page: Any) -> float:
    """Return the smallest contrast of text on its cell, by WCAG 2.2."""
    colors = page.evaluate(
        """() => Array.from(document.querySelectorAll("td[class*=' s'] .word")).map((text) => {
             const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
             const fill = getComputedStyle(text.closest("td")).backgroundColor;
             return [getComputedStyle(text).color, fill].map((one) => {
               context.fillStyle = one; context.fillRect(0, 0, 1, 1);
               return Array.from(context.getImageData(0, 0, 1, 1).data).slice(0, 3);
             });
           })"""
    )

    def luminance(color: list[int]) -> float:
        parts = [entry / 255 for entry in color]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [sorted(map(luminance, pair)) for pair in colors]
    assert pairs
    return min((high + 0.05) / (low + 0.05) for low, high in pairs)


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_links_still_open_the_evidence(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.digits(), tmp_path)
    sheet = page.locator("#cell-0-1")
    assert not sheet.is_visible()
    page.locator("td a").nth(1).click()
    assert sheet.is_visible() and "8,810 of 10,000" in sheet.inner_text()
    sheet.get_by_text("Close").click()
    assert not sheet.is_visible()


def test_the_print_shows_matrix_and_evidence(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(examples.digits(), tmp_path)
    page.emulate_media(media="print")
    assert page.locator("table.matrix").is_visible() and page.locator("#cell-0-1").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.frame')).overflow") == "visible"
    visit.assert_quiet()


@pytest.mark.parametrize(("rows", "words"), [(2, "own pairs"), (1, "own pair")])
def test_the_count_of_own_pairs_is_in_the_right_number(rows: int, words: str):
    made = examples.digits()
    cells = [
        made.find(left.reference, right.reference)
        for left in made.extractors[:rows]
        for right in made.heads[:rows]
    ]
    page = render(Matrix(made.extractors[:rows], made.heads[:rows], [cell for cell in cells if cell]))
    assert f"<b>{rows}</b> {words}</button></li>" in page


def test_page_and_picture_have_one_scale_of_colors():
    matrix = examples.digits()
    level = round(0.951 * SHADE_LEVELS)
    fill, ink = shade(level / SHADE_LEVELS)
    page = render(matrix)
    assert f'class="v-own s{level} own"' in page
    assert f".matrix td.s{level} {{ background: {fill}; color: {ink}; }}" in page


def test_what_was_newly_measured_is_no_condition():
    made = examples.digits()
    settings = {**made.settings, "fill": "missing", "cells": {"taken": 0, "measured": 4}}
    matrix = Matrix(made.extractors, made.heads, made.cells, settings)
    texts = render(matrix).split('<script type="application/json"')[0], str(matrix)
    assert all(
        "taken" not in text
        and "fill" not in re.sub(r"<style>.*</style>|<svg.*?</svg>", "", text, flags=re.DOTALL)
        for text in texts
    )
    assert '"fill"' in script_json(matrix)


def test_outlines_are_explained_also_where_no_own_pair_has_a_figure():
    small = examples.digits()
    stale = [attrs.evolve(cell, grade="stale") for cell in small.cells]
    matrix = Matrix(small.extractors, small.heads, stale)
    assert any(cell.own for cell in matrix.cells)
    assert "own pair (outlined)" in render(matrix) and "◆ own pair" in str(
        list(matrix_table(matrix).draw(20, False))
    )
    strangers = Matrix(small.extractors[:1], small.heads[1:], [entry for entry in stale if not entry.own][:1])
    assert "(outlined)" not in render(strangers)
