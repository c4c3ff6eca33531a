"""The matrix as a value: what it refuses, how a cell is found, and JSON that comes back as it went."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from compatkit.contracts.evidence import Cell
from compatkit.errors import EnvironmentFailure, FormatError, UnknownName, UsageError
from compatkit.reports.matrix import Matrix
from compatkit.reports.wording import clip, short_share, verdict, visible

from . import examples


@pytest.mark.parametrize(
    "make", [examples.digits, examples.digits_and_more, examples.hostile, lambda: examples.crowd(8)]
)
def test_json_comes_back_equal_and_byte_identical(make):
    matrix = make()
    text = matrix.to_json()
    again = Matrix.from_json(text)
    assert again == matrix
    assert again.to_json() == text
    assert Matrix.from_json(text.encode()) == matrix


def test_an_empty_matrix_and_one_with_nothing_measured_come_back():
    few = examples.digits()
    for matrix in (Matrix((), (), ()), Matrix(few.extractors, few.heads, ())):
        assert Matrix.from_json(matrix.to_json()) == matrix


def test_settings_are_kept_as_json_keeps_them():
    matrix = Matrix((), (), (), {"sizes": (1, 2), "nested": {"a": (True, None, 0.5)}})
    assert matrix.settings == {"sizes": [1, 2], "nested": {"a": [True, None, 0.5]}}
    assert Matrix.from_json(matrix.to_json()) == matrix
    with pytest.raises(UsageError, match="JSON value"):
        Matrix((), (), (), {"path": Path("x")})
    with pytest.raises(UsageError, match="JSON value"):
        Matrix((), (), (), {"loss": float("nan")})


def change(**changes):
    """Return the JSON of the digits with some places of it changed."""
    value = json.loads(examples.digits().to_json())
    for place, new in changes.items():
        *way, last = place.split("__")
        at = value
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        if new is ...:
            del at[last]
        else:
            at[last] = new
    return json.dumps(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("[]", "matrix: expected object"),
        (b"\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON|expected object"),
        ('{"schema": 1, "schema": 1}', "twice: 'schema'"),
        ('{"schema": NaN}', "NaN"),
        (change(schema=2), "matrix.schema"),
        (change(schema=True), "matrix.schema"),
        (change(kind="study"), "matrix.kind"),
        (change(extra=1), "unknown field 'extra'"),
        (change(settings=[]), "matrix.settings"),
        (change(cells__0__wiring=...), r"cells\[0\]: object missing required field wiring"),
        (change(cells__0__color="red"), r"cells\[0\]: unknown field 'color'"),
        (change(cells__0__grade="superb"), r"cells\[0\].grade: expected one of"),
        (change(cells__0__chance="0.1"), r"cells\[0\].chance: expected float"),
        (change(cells__0__restricted__count=1.5), "count: expected int"),
        (change(cells__0__restricted__count=True), "count: expected int"),
        (change(cells__0__restricted__accuracy=1.7), "shares in"),
        (change(cells__0__restricted__correct=20000), "shares in"),
        (change(cells__0__difference=[0.1]), "expected array of length 2"),
        (change(cells__0__settings__seed=[0]), r"cells\[0\].settings: expected bool . int . float . str"),
        (change(cells__0__common="abc"), "common: expected array"),
        (change(cells__0__extractor="digits/nobody@1.0.0"), "not in the matrix"),
        (change().replace('"recovered": 1.0', '"recovered": 1e999'), "finite"),
    ],
)
def test_foreign_json_is_refused_naming_the_place(text, says):
    with pytest.raises(FormatError, match=says):
        Matrix.from_json(text)


def test_a_matrix_refuses_what_cannot_be_shown():
    good = examples.digits()
    first = good.cells[0]
    with pytest.raises(UsageError, match="two cells"):
        Matrix(good.extractors, good.heads, (first, first))
    with pytest.raises(UsageError, match="in the matrix twice"):
        Matrix((*good.extractors, good.extractors[0]), good.heads, ())
    with pytest.raises(UsageError, match="not in the matrix"):
        Matrix(good.extractors, (), (first,))
    with pytest.raises(UsageError, match="finite"):
        Matrix(good.extractors, good.heads, (attrs.evolve(first, recovered=float("inf")),))


def test_a_cell_is_found_by_reference_or_by_name():
    matrix = examples.digits()
    cell = matrix.cell("digits/mnist.extractor@1.0.0", "digits/usps.head@1.2.0")
    assert cell is matrix.cells[1]
    assert matrix.cell("digits/mnist.extractor", "digits/usps.head") is cell
    with pytest.raises(UnknownName, match=r"near names: digits/usps.head@1.2.0"):
        matrix.cell("digits/mnist.extractor", "digits/uspss.head@1.2.0")
    two = examples.part("digits/usps.head@2.0.0", "head")
    both = Matrix(matrix.extractors, (*matrix.heads, two), matrix.cells)
    with pytest.raises(UnknownName, match="several versions"):
        both.cell("digits/mnist.extractor", "digits/usps.head")
    with pytest.raises(UnknownName, match="was not measured"):
        both.cell("digits/mnist.extractor", "digits/usps.head@2.0.0")
    assert both.find("digits/mnist.extractor@1.0.0", "digits/usps.head@2.0.0") is None


def test_the_word_of_a_cell():
    words = [verdict(cell).word for cell in examples.digits_and_more().cells]
    assert words == [
        "own pair",
        "compatible",
        "incompatible",
        "own pair",
        "adaptable",
        "refused",
        "no common class",
        "undecided",
    ]
    assert verdict(None).word == "not measured"
    assert (
        verdict(Cell("a", "b", "direct", "none", "none", reason="no test set was given")).word
        == "not measured"
    )
    broken = Cell(
        "a", "b", "direct", "none", "none", common=("cat",), findings=("labels-partial: 1 common class",)
    )
    assert verdict(broken).word == "not measured"
    failed = attrs.evolve(examples.digits().cells[0], grade="chance")
    assert verdict(failed).word == "incompatible"  # An own pair that learnt nothing says so.
    second = attrs.evolve(examples.digits().cells[0], grade="compatible")
    assert verdict(second).word == "own pair"  # Another own pair of the row gives the bound.
    stale = attrs.evolve(examples.digits().cells[1], grade="stale")
    assert verdict(stale).word == "stale"


def test_small_texts():
    assert [short_share(number) for number in (0, 0.076, 0.884, 0.995, 0.996, 1)] == [
        ".00",
        ".08",
        ".88",
        ".99",
        "1.0",
        "1.0",
    ]
    assert visible("a\nb\u202ec\x1b\ud800") == "a\\nb\\u202ec\\x1b\\ud800"
    assert clip("abcdefghij", 5) == "ab…ij" and clip("abc", 5) == "abc"


WRITERS = ["to_html", "to_png", "to_markdown", "to_csv", "to_json"]


@pytest.mark.parametrize("writer", WRITERS)
def test_files_replace_older_ones_and_leave_nothing_beside(writer, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    target = folder / "matrix.out"
    target.write_text("older")
    result = getattr(examples.digits(), writer)(target)
    assert target.read_bytes() != b"older"
    if isinstance(result, str):
        assert target.read_text(encoding="utf-8") == result
    else:
        assert result == target
    assert os.listdir(folder) == ["matrix.out"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask or sys.platform == "win32"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_place_that_cannot_be_written_ends_in_one_error(writer, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    with pytest.raises(EnvironmentFailure, match=r"missing.*matrix.*No such file.*a folder that"):
        getattr(examples.digits(), writer)(folder / "missing" / "matrix")
    with pytest.raises(EnvironmentFailure, match="name a file in a folder"):
        getattr(examples.digits(), writer)(folder)
    assert os.listdir(folder) == []


def test_a_full_disk_keeps_the_older_file(tmp_path, monkeypatch):
    folder = tmp_path / "reports"  # a folder of its own: drawing libraries fill the cache in tmp_path
    folder.mkdir()
    target = folder / "matrix.csv"
    target.write_text("older")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match=r"No space left on device; name a file .* with space left"):
        examples.digits().to_csv(target)
    assert target.read_text() == "older" and os.listdir(folder) == ["matrix.csv"]


def test_importing_the_matrix_imports_nothing_heavy():
    heavy = "torch", "matplotlib", "jinja2", "rich", "numpy"
    code = f"import sys, compatkit.reports.matrix; print([one for one in {heavy!r} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
