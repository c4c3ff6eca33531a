"""Cells of a matrix in Python: by place and name, filtered, as a data frame and as arrays."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from compatkit.errors import MissingDependency, UnknownName, UsageError
from compatkit.reports.matrix import Matrix

from . import examples

MNIST, USPS = "digits/mnist.extractor", "digits/usps.head"


def test_cells_are_counted_walked_over_and_found() -> None:
    matrix = examples.digits()
    assert len(matrix) == 4 and list(matrix) == list(matrix.cells)
    assert (
        matrix[0, 1]
        is matrix[-2, -1]
        is matrix[MNIST, USPS]
        is matrix[MNIST + "@1.0.0", 1]
        is matrix.cells[1]
    )
    assert matrix[np.int64(1), 0] is matrix.cells[2]
    shuffled = Matrix(matrix.extractors, matrix.heads, matrix.cells[::-1], matrix.settings)
    assert list(shuffled) == list(matrix), "row by row, whatever the order in which cells were given"


@pytest.mark.parametrize(
    ("pair", "code", "subject"),
    [
        ((2, 0), "unknown-name", 2),
        ((0, -3), "unknown-name", -3),
        (("digits/mnst.extractor", 0), "unknown-name", "digits/mnst.extractor"),
        ((slice(None), 0), "usage", slice(None)),
        ((0.5, 0), "usage", 0.5),
        (0, "usage", 0),
        ((0, 1, 2), "usage", (0, 1, 2)),
    ],
    ids=repr,
)
def test_what_is_no_cell(pair: Any, code: str, subject: Any) -> None:
    with pytest.raises(UsageError) as error:
        examples.digits()[pair]
    assert (error.value.code, error.value.subject) == (code, subject)


def test_a_filter_keeps_the_rows_and_columns_of_what_fits() -> None:
    matrix = examples.digits_and_more()
    good = matrix.filter(grade=("perfect", "compatible"))
    assert {cell.grade for cell in good} == {"perfect", "compatible"} and len(good) == 3
    assert [head.reference for head in good.heads] == [head.reference for head in matrix.heads[:2]]
    assert good[1, 0].state == "left-out" and "incompatible" not in str(good)
    assert [cell.head for cell in matrix.filter(extractors="digits/mnist.*", heads="digits/*")] == [
        "digits/mnist.head@1.0.0",
        "digits/usps.head@1.2.0",
    ]
    assert len(matrix.filter(heads="*@1.2.0")) == 2
    best = matrix.filter(
        lambda cell: cell.recovered is not None and cell.recovered > 0.8, promise="shared-head"
    )
    assert [cell.grade for cell in best] == ["compatible"]
    assert len(good.filter(state="measured")) == 3, "what was left out once does not come back"
    nothing = matrix.filter(wiring="refused", grade="perfect")
    assert len(nothing) == 0 and list(nothing) == [] and nothing.extractors == ()
    assert Matrix.from_json(good.to_json()) == good


@pytest.mark.parametrize(("field", "value"), [("grade", "good"), ("wiring", "adapter"), ("state", "left")])
def test_a_filter_names_the_values_that_there_are(field: str, value: str) -> None:
    with pytest.raises(UsageError) as error:
        examples.digits().filter(**{field: value})  # pyright: ignore[reportArgumentType]
    assert (error.value.code, error.value.subject) == ("usage", value)


def test_numbers_as_arrays() -> None:
    matrix = examples.digits_and_more()
    result = matrix.to_numpy("accuracy")
    assert result.shape == (2, 4) and result.dtype == np.float64
    assert result[0, 1] == matrix[0, 1].restricted.accuracy  # pyright: ignore[reportOptionalMemberAccess]
    assert np.isnan(result).tolist() == [[False, False, True, True], [False, False, True, False]]
    assert matrix.to_numpy("count")[1, 3] == 61
    assert Matrix((), (), ()).to_numpy().shape == (0, 0)
    with pytest.raises(UnknownName) as error:
        matrix.to_numpy("acuracy")
    assert (error.value.code, error.value.subject) == ("unknown-name", "acuracy")


def test_a_data_frame_has_one_row_a_cell_and_plain_values() -> None:
    pandas = pytest.importorskip("pandas")
    matrix = examples.digits_and_more()
    table = matrix.to_dataframe()
    assert len(table) == len(matrix) == 8 and table.columns.is_unique
    result = table.pivot(index="extractor", columns="head", values="accuracy")
    for cell in matrix:
        figure = result.loc[cell.extractor, cell.head]
        assert math.isnan(figure) if cell.restricted is None else figure == cell.restricted.accuracy
    assert table["count"].sum() == 10000 * 2 + 2007 * 2 + 61 and str(table["count"].dtype) == "Int64"
    assert table[table["own"].fillna(False)]["grade"].tolist() == ["perfect", "perfect"]
    assert table.groupby("grade")["accuracy"].mean()["chance"] == pytest.approx(0.083, abs=1e-3)
    assert set(table["setting_batch_size"].dropna()) == {256}
    assert not any(
        isinstance(entry, (list, tuple, dict)) or str(entry).startswith(("[", "{"))
        for entry in table.to_numpy().flat
    )
    empty = examples.digits().filter(grade="stale").to_dataframe()
    assert isinstance(empty, pandas.DataFrame) and len(empty) == 0 and "accuracy" in empty


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError("No module named 'pandas'")
        return remote(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match=r"compatkit\[pandas\]") as error:
        examples.digits().to_dataframe()
    assert (error.value.code, error.value.subject) == ("missing-dependency", "pandas")
