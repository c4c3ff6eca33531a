"""The matrix as text: plain table, terminal table, Markdown and CSV, with friendly and with hostile names."""

from __future__ import annotations

import csv
import io
import json
import re

import attrs
import pytest
from rich.console import Console

from compatkit.reports.matrix import Matrix
from compatkit.reports.page import render
from compatkit.reports.tidy import COLUMNS
from compatkit.reports.wording import DASH, MINUS

from . import examples


def printed(matrix: Matrix, width: int, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(width=width, file=stream, force_terminal=True, no_color=True).print(matrix)
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_plain_table_reads_well():
    lines = str(examples.digits()).splitlines()
    assert lines[:9] == [
        "Compatibility matrix, 2 extractors x 2 heads",
        "bn_policy batch, batch size 256, seed 0, precision float32",
        "",
        "                           digits/mnist.head    digits/usps.head",
        "  extractor \\ head         @1.0.0               @1.2.0",
        " ------------------------------------------------------------------",
        "  digits/mnist.extractor   0.973  0.970-0.976   0.881  0.875-0.887",
        "  @1.0.0                   own pair             compatible 0.89",
        "  digits/usps.extractor    0.083  0.072-0.096   0.951  0.941-0.960",
    ]


def test_unmeasured_pairs_say_why_in_the_plain_table():
    text = str(examples.digits_and_more())
    for word in ("adaptable", "refused", "no common class", "undecided"):
        assert word in text
    assert "the head takes a vector of class" in text
    small = examples.digits()
    assert "No pair was measured." in str(Matrix(small.extractors, small.heads, ()))
    assert "1 extractor x 2 heads" in str(Matrix(small.extractors[:1], small.heads, ()))
    assert "0 extractors x 0 heads" in str(Matrix((), (), ()))


@pytest.mark.parametrize(
    "make", [examples.digits, examples.digits_and_more, examples.hostile, lambda: examples.crowd(30)]
)
def test_the_plain_table_keeps_to_its_width(make):
    text = str(make())
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e\u2028]", text)


def test_a_large_plain_table_is_numbered_with_a_key():
    matrix = examples.crowd(30)
    text = str(matrix)
    assert "E30  zoo/domain-29.extractor@1.1.0" in text and "H1   zoo/domain-00.head@1.0.0" in text
    first = next(line for line in text.splitlines() if line.startswith("  E1 "))
    cell = matrix.cell("zoo/domain-00.extractor", "zoo/domain-00.head")
    assert cell.restricted and first.split()[1:3] == [f"{cell.restricted.accuracy:.2f}"[1:], "="]


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_the_terminal_table_fits_the_terminal(width):
    for matrix in (examples.digits_and_more(), examples.crowd(12), examples.hostile(), Matrix((), (), ())):
        text = printed(matrix, width)
        assert max(map(len, text.splitlines())) <= width
    assert "0.881" in printed(examples.digits(), 100) and "compatible" in printed(examples.digits(), 100)


def test_a_terminal_without_unicode_gets_ascii():
    printed(examples.digits_and_more(), 120, encoding="ascii").encode("ascii")


def test_markup_in_names_is_not_obeyed():
    assert "[bold]" in printed(examples.hostile(), 300)


def rows_of(markdown: str) -> list[list[str]]:
    """Split the first table into unescaped cells: a pipe after a backslash is text."""
    table = re.search(r"(^\|.*\|\n)+", markdown, re.MULTILINE)
    assert table
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]]
        for line in table[0].splitlines()
    ]


@pytest.mark.parametrize("make", [examples.digits_and_more, examples.hostile, lambda: examples.crowd(30)])
def test_every_markdown_row_has_every_column(make):
    matrix = make()
    rows = rows_of(matrix.to_markdown())
    assert len(rows) == len(matrix.extractors) + 2
    assert {len(row) for row in rows} == {len(matrix.heads) + 1}


def test_markdown_shows_hostile_names_as_text():
    text = examples.hostile().to_markdown()
    assert "<" not in text.replace("p < .01", "") and "\u202e" not in text and "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert r"a\|b\`c\*d\_e\\f\[g\](javascript:alert(3))" in text


def test_own_pairs_are_marked_whatever_their_verdict():
    small = examples.digits()
    cells = [attrs.evolve(cell, grade="undecided") for cell in small.cells]
    matrix = Matrix(small.extractors, small.heads, cells)
    text = matrix.to_markdown()
    assert "undecided, own pair |" in text and "◆ **own pair**" in text
    assert "undecided (own)" in str(matrix)
    assert "undecided, own pair, accuracy" in render(matrix)


def test_markdown_carries_the_evidence():
    text = examples.digits_and_more().to_markdown()
    assert f"**0.881** (0.875{DASH}0.887) ✓ compatible" in text
    assert "8,810 of 10,000 right" in text and f"{MINUS}0.099 to {MINUS}0.085" in text
    assert "### Not measured" in text and "have no common class" in text


def test_csv_reads_back_every_figure():
    matrix = examples.digits_and_more()
    rows = list(csv.DictReader(io.StringIO(matrix.to_csv())))
    assert len(rows) == len(matrix.extractors) * len(matrix.heads) and tuple(rows[0]) == COLUMNS
    for row in rows:
        cell = matrix.cell(row["extractor"], row["head"])
        assert (row["grade"], row["wiring"], row["reason"]) == (cell.grade, cell.wiring, cell.reason)
        assert tuple(json.loads(row["common"])) == cell.common
        assert (
            json.loads(row["settings"]) == cell.settings
            and tuple(json.loads(row["findings"])) == cell.findings
        )
        if cell.restricted is None:
            assert row["accuracy"] == ""
            continue
        assert (
            float(row["accuracy"]) == cell.restricted.accuracy and int(row["count"]) == cell.restricted.count
        )
        assert cell.bound and float(row["bound_low"]) == cell.bound.low
        assert cell.difference and float(row["difference_low"]) == cell.difference[0]


def test_csv_survives_hostile_names_and_starts_no_formula():
    matrix = examples.hostile()
    rows = list(csv.DictReader(io.StringIO(matrix.to_csv(), newline="")))
    names = [row["extractor"] for row in rows[:: len(matrix.heads)]]
    expected = [part.reference for part in matrix.extractors]
    expected[-1] = "'" + expected[-1]
    assert names == expected
    assert not any(row["extractor"].startswith(("=", "+", "-", "@")) for row in rows)


def test_csv_has_a_line_for_pairs_without_a_cell():
    small = examples.digits()
    rows = list(csv.DictReader(io.StringIO(Matrix(small.extractors, small.heads, ()).to_csv())))
    assert [row["verdict"] for row in rows] == ["not measured"] * 4


def test_long_names_break_behind_slashes_and_dots_only():
    from compatkit.reports.tables import NAME_WIDTH, _wrapped

    assert _wrapped("digits/mnist.head") == "digits/mnist.head"
    assert _wrapped("demo/iiw-dcc/handwritten.extractor") == "demo/iiw-dcc/\nhandwritten.extractor"
    for name in ("a" * 40, "team/sub.group/an-extractor", "x." * 30 + "head"):
        assert _wrapped(name).replace("\n", "") == name
        assert all(
            len(line) <= NAME_WIDTH or not {"/", "."} & set(line) for line in _wrapped(name).split("\n")
        )


def test_the_compact_table_has_a_legend_of_its_own():
    full, compact = printed(examples.digits(), 300), printed(examples.digits(), 40)
    assert "Wilson interval" in full and "Wilson interval" not in compact.replace("\n", " ")
    assert "two digits" in compact.replace("\n", " ") and "two digits" not in full.replace("\n", " ")
