"""Results as data frames, CSV and LaTeX: the same rows and columns, without pandas where that is possible."""

from __future__ import annotations

import builtins
import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample_components import extractor, head, maps, vector

import compatkit as ck
from compatkit.errors import EnvironmentFailure, MissingDependency, UsageError
from compatkit.evaluation.metrics import Result, Table, TableCell
from compatkit.reports.tabular import Tabular

from . import examples


class Example(Tabular):
    """Rows given by a test."""

    _columns = ("name", "figure")

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows

    def _rows(self) -> tuple[dict[str, Any], ...]:
        return self.rows


def test_both_forms_hold_the_same_figures() -> None:
    table = Example({"name": "a", "figure": 0.1 + 0.2, "seed": 1}, {"name": "b", "figure": None, "seed": 2})
    frame = table.to_dataframe()
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert list(frame.columns) == list(read[0]) == ["name", "figure", "seed"]
    assert float(read[0]["figure"]) == frame["figure"].tolist()[0] == 0.1 + 0.2, "all digits"
    assert read[1]["figure"] == "" and math.isnan(frame["figure"].tolist()[1])
    assert [str(kind) for kind in frame.dtypes[["figure", "seed"]]] == ["float64", "Int64"]


def test_csv_starts_no_formula_in_cells_and_headings() -> None:
    text = Example({"name": "=1+1", "@x": "+2", "figure": -0.5}).to_csv()
    assert list(csv.reader(io.StringIO(text))) == [["name", "figure", "'@x"], ["'=1+1", "-0.5", "'+2"]]


def test_values_of_other_types_are_plain() -> None:
    table = Example({"name": np.float32(0.5), "figure": [1, "é"], "own": True}, {"own": None})
    assert list(csv.reader(io.StringIO(table.to_csv())))[1:] == [["0.5", '[1, "é"]', "yes"], ["", "", ""]]
    frame = table.to_dataframe()
    assert frame["figure"].tolist()[0] == '[1, "é"]' and str(frame["own"].dtype) == "boolean"
    assert str(frame["name"].dtype) == "float64"


def test_a_result_without_rows_has_its_columns() -> None:
    empty = Example()
    assert empty.to_csv() == "name,figure\n" and list(empty.to_dataframe().columns) == ["name", "figure"]


def test_files_hold_what_is_returned(tmp_path: Path) -> None:
    table = Example({"name": "é", "figure": 1.0})
    text = table.to_csv(tmp_path / "table")
    assert (tmp_path / "table").read_text(encoding="utf-8") == text == table.to_csv()
    with pytest.raises(EnvironmentFailure):
        table.to_csv(tmp_path / "missing" / "table")


def test_only_a_data_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError("No module named 'pandas'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    table = Example({"name": "a"})
    assert table.to_csv()
    with pytest.raises(MissingDependency) as error:
        table.to_dataframe()
    assert (error.value.code, error.value.subject) == ("missing-dependency", "pandas")
    assert "compatkit[pandas]" in str(error.value)


def test_predictions_have_a_row_an_image() -> None:
    shares = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    names = ck.Predictions(shares, ("cat", "dog"), ("a/1.jpg", "a/2.jpg"))
    assert list(csv.reader(io.StringIO(names.to_csv()))) == [
        ["image", "label", "probability", "position"],
        ["a/1.jpg", "dog", "0.75", "1"],
        ["a/2.jpg", "cat", "1.0", "0"],
    ]
    unnamed = ck.Predictions(shares, ("cat", "dog"))
    assert unnamed.to_dataframe()["image"].tolist() == [0, 1]
    assert unnamed[:0].to_csv() == "image,label,probability,position\n"


def figures(name: str, *axes: tuple[str, tuple[str, ...]], first: float = 0.0) -> Table:
    """Return a table whose cells count up from ``first``; the last is undefined."""
    count = math.prod(len(names) for _, names in axes)
    cells = [
        *(TableCell(first + place) for place in range(count - 1)),
        TableCell(None, "undefined", "zero variance"),
    ]
    facts: dict[str, Any] = {"unit": "1", "direction": "higher", "estimator": "plug-in", "count": 7}
    return Table(name=name, axes=dict(axes), cells=tuple(cells), paper="P (2020)", equation="eq. 1", **facts)


def test_a_table_of_figures_has_a_row_a_cell() -> None:
    table = figures("cka", ("this", ("a_1", "b")), ("other", ("c", "d")))
    frame = table.to_dataframe()
    assert frame[["metric", "this", "other"]].to_numpy().tolist() == [
        ["cka", this, other] for this in ("a_1", "b") for other in ("c", "d")
    ]
    assert frame["value"].tolist()[:3] == [0.0, 1.0, 2.0] and math.isnan(frame["value"].tolist()[3])
    assert frame["status"].tolist()[2:] == ["ok", "undefined"] and set(frame["count"]) == {7}
    assert (
        frame.pivot(index="this", columns="other", values="value").loc["b", "c"]
        == table.at(this="b", other="c").value
    )


def test_an_axis_that_is_called_like_a_column_hides_none() -> None:
    frame = figures("spectrum", ("value", ("1", "2")), ("layer", ("fc",))).to_dataframe()
    assert frame["axis value"].tolist() == ["1", "2"] and frame["value"].tolist()[0] == 0.0


def test_a_measurement_has_figures_and_tables_in_one() -> None:
    facts: dict[str, Any] = {"unit": "1", "direction": "higher", "estimator": "plug-in", "count": 9}
    single = Result(name="accuracy", value=0.5, paper="", equation="", **facts)
    many = figures("scale", ("layer", ("a", "b")), ("class", ("x",)))
    result = ck.Measurement({"accuracy": single, "scale": many}, {})
    frame = result.to_dataframe()
    assert frame["metric"].tolist() == ["accuracy", "scale", "scale"]
    assert frame["layer"].tolist()[1:] == ["a", "b"] and frame["value"].tolist()[:2] == [0.5, 0.0]
    assert single.to_dataframe()["value"].tolist() == [0.5]
    assert "plug-in" in result.to_csv()
    assert ck.Measurement({}, {}).to_csv() == "metric,value,status,reason\n"


def test_a_history_has_the_seed_and_a_column_a_loss() -> None:
    rows = [
        {"task": "left", "step": 1, "losses": {"task": 0.5, "dcc/loss": 0.25}},
        {"task": "left", "step": 2, "losses": {"task": 0.4}},
    ]
    fit = ck.Fit({}, {}, {"trainer": {"seed": 3}}, rows, "")  # type: ignore[arg-type]
    frame = fit.history.to_dataframe()
    assert list(frame.columns) == ["seed", "task", "step", "loss", "dcc/loss"]
    assert frame["seed"].tolist() == [3, 3] and frame["loss"].tolist() == fit.history["left/loss"].tolist()
    assert frame["dcc/loss"].tolist()[0] == 0.25 and math.isnan(frame["dcc/loss"].tolist()[1])
    assert fit.history == rows and ck.Fit({}, {}, {}, [], "").history.to_csv() == "seed,task,step,loss\n"


def test_a_study_has_a_row_a_figure_with_arm_and_seed() -> None:
    results = [
        {"arm": "plain", "metric": "accuracy", "unit": "1", "values": [0.5, 0.75]},
        {"arm": "dcc", "metric": "accuracy", "unit": "1", "values": [1.0, None]},
    ]
    seconds = {"plain": [1.0, 2.0], "dcc": [3.0, 4.0]}
    document = ck.studies.StudyDocument(
        study="0.1", size="cpu", seeds=[0, 1], results=results, seconds=seconds
    )
    frame = document.to_dataframe()
    assert frame[["arm", "seed"]].to_numpy().tolist() == [["plain", 0], ["plain", 1], ["dcc", 0], ["dcc", 1]]
    assert frame["value"].tolist()[:3] == [0.5, 0.75, 1.0] and math.isnan(frame["value"].tolist()[3])
    assert frame["seconds"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_verdicts_have_a_row_a_pair() -> None:
    manifests = {"a": extractor(maps(4)), "b_1": extractor(vector(4))}
    verdicts = ck.check_all(manifests, {"h": head(maps(4))})
    frame = verdicts.to_dataframe()
    assert frame[["extractor", "head"]].to_numpy().tolist() == [["a", "h"], ["b_1", "h"]]
    for _, row in frame.iterrows():
        report = verdicts.report(row["extractor"], row["head"])
        assert (row["word"], row["wiring"]) == (report.word, report.wiring)
        assert set(row["findings"].split(", ")) == {finding.code for finding in report.findings}


def test_latex_has_rows_or_a_grid() -> None:
    table = Example(
        {"name": "a_b &", "figure": 0.87}, {"name": "c\nd", "figure": 1e-9}, {"name": "e", "figure": None}
    )
    text = table.to_latex(digits=1)
    assert [line for line in text.splitlines() if "&" in line] == [
        r"name & figure \\",
        r"a\_b \& & 0.9 \\",
        r"c\textbackslash nd & 1.0e-09 \\",
        r"e &  \\",
    ]
    grid = examples.digits_and_more().to_latex(digits=2)
    assert r"digits/mnist.extractor@1.0.0 &  & 0.97 & 0.88 &  \\" in grid
    for line in examples.hostile().to_latex().splitlines():
        assert "\x1b" not in line and "\u202e" not in line
    layers = figures("cka", ("this", ("a_1", "b")), ("other", ("c", "d"))).to_latex(digits=1)
    assert r"a\_1 & 0.0 & 1.0 \\" in layers


@pytest.mark.parametrize("digits", [-1, 18, 1.5, "3", True, None])
def test_digits_are_a_whole_number(digits: Any) -> None:
    with pytest.raises(UsageError) as error:
        Example().to_latex(digits=digits)
    assert (error.value.code, error.value.subject) == ("usage", "digits")
