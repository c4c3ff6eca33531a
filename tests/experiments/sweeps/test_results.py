"""Results of a sweep for people: as a table with seed and varied values, and read back from its folder."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from swept import TASK, write_recipe

import compatkit as ck
from compatkit.errors import FormatError, Incomplete, UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.results import accuracies, cell_value
from compatkit.foundation.codec import dumps, loads

LINES = ('"trainer.seed" = [3, 1]', 'regularizers = [[], ["identical_init"]]')
NAMES = ["seed3-none", "seed3-identical_init", "seed1-none", "seed1-identical_init"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("results")
    file = write_recipe(folder / "recipes", LINES, ((TASK, ""),))
    return ck.Sweep.read(file).run(folder / "parts", out=folder / "records", launcher="sequential")


@pytest.fixture
def folder(swept: Any, tmp_path: Path) -> Path:
    """A copy of the sweep's folder, where nothing else is: neither recipe nor data nor registry."""
    return shutil.copytree(swept.folder, tmp_path / "alone")


def test_a_row_for_each_pair_with_the_seed_and_the_varied_values(swept: Any) -> None:
    frame = swept.to_dataframe()
    assert frame["run"].tolist() == NAMES and frame["seed"].tolist() == [3, 3, 1, 1]
    assert frame["regularizers"].tolist() == ["none", "identical_init"] * 2
    assert set(frame["state"]) == {"done"} and set(frame["extractor"]) == set(frame["head"]) == {"left"}
    expected = [accuracies(record)["left", "left"] for record in swept.records]
    assert frame["accuracy"].tolist() == expected and frame["own"].all()
    assert (frame["low"] <= frame["accuracy"]).all() and (frame["correct"] <= frame["count"]).all()
    means = frame.groupby("regularizers")["accuracy"].mean()
    assert [group.own.mean for group in swept.groups()] == pytest.approx(
        [means["none"], means["identical_init"]]
    )
    read = list(csv.DictReader(io.StringIO(swept.to_csv())))
    assert [float(row["accuracy"]) for row in read] == expected


def test_a_folder_alone_gives_what_the_run_gave(swept: Any, folder: Path) -> None:
    again = ck.Sweep.open(folder)
    assert again.records == swept.records and again.seeds == swept.seeds
    assert again.to_csv() == swept.to_csv() and again.groups() == swept.groups()
    again.check()


def test_the_seed_is_a_column_where_it_does_not_vary(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("a defect")

    monkeypatch.setattr(ck.Trainer, "fit", fail)
    change = ((TASK, ""), ("steps = 3", "steps = 3\nseed = 5"))
    file = write_recipe(tmp_path / "recipes", ('"tasks.cut" = ["layer1", "layer2"]',), change)
    outcome = ck.Sweep.read(file).run(tmp_path / "parts", launcher="sequential")
    rows = list(csv.DictReader(io.StringIO(outcome.to_csv())))
    assert [(row["seed"], row["tasks.cut"], row["state"]) for row in rows] == [
        ("5", "layer1", "failed"),
        ("5", "layer2", "failed"),
    ]
    assert "a defect" in rows[0]["reason"] and rows[0]["accuracy"] == "", "a failed run has a row too"
    assert "layer1 failed: ValueError: a defect" in repr(outcome)


def test_a_sweep_under_way_shows_what_there_is(folder: Path) -> None:
    (folder / f"{NAMES[0]}.json").unlink()
    interrupted = records.read(folder, NAMES[1])
    assert interrupted is not None
    records.write(folder, attrs.evolve(interrupted, state="begun", matrix=None))
    partial = ck.Sweep.open(folder)
    assert [record.state for record in partial.records] == ["planned", "begun", "done", "done"]
    assert [record.run for record in partial.unfinished] == NAMES[:2]
    assert partial.to_dataframe()["state"].tolist() == ["planned", "begun", "done", "done"]
    assert partial.to_dataframe()["seed"].tolist() == [3, 3, 1, 1]
    assert [group.runs for group in partial.groups()] == [1, 1]
    assert "2 of 4 runs done" in repr(partial)
    with pytest.raises(Incomplete, match=f"{NAMES[0]}, {NAMES[1]}"):
        partial.check()


def test_figures_of_another_plan_are_not_shown(folder: Path) -> None:
    record = records.read(folder, NAMES[0])
    assert record is not None
    records.write(folder, attrs.evolve(record, plan="sha256:" + "0" * 64))
    outcome = ck.Sweep.open(folder)
    assert outcome.records[0].state == "planned" and outcome.records[0].matrix is None
    assert len(outcome.notes) == 1 and NAMES[0] in outcome.notes[0]


def without_plans(folder: Path) -> None:
    note = loads((folder / "sweep.json").read_bytes(), what="note")
    del note["runs"]
    (folder / "sweep.json").write_bytes(dumps(note))


def test_a_folder_of_before_opens(swept: Any, folder: Path) -> None:
    without_plans(folder)
    outcome = ck.Sweep.open(folder)
    assert {record.run: record for record in outcome.records} == {
        record.run: record for record in swept.records
    }
    assert outcome.to_dataframe()["seed"].tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"[]",
        lambda text: text.replace(b'"accuracy"', b'"exactness"'),
        lambda text: text.replace(b'"state":"done"', b'"state":"over"'),
        lambda text: text.replace(b'"run":"seed3-none"', b'"run":"seed1-none"'),
        lambda text: text.replace(b'"grade":"', b'"grade":"super'),
        lambda text: b"\xff" + text,
    ],
)
def test_a_damaged_record_is_refused_by_name(folder: Path, damage: Any, old: bool) -> None:
    if old:
        without_plans(folder)
    path = folder / f"{NAMES[0]}.json"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    with pytest.raises(FormatError, match=str(path)) as error:
        ck.Sweep.open(str(folder))
    assert error.value.code == FormatError.code


@pytest.mark.parametrize("text", [b"", b"{}", b'{"schema":2,"kind":"sweep"}', b"\x00"])
def test_a_damaged_note_is_refused_by_name(folder: Path, text: bytes) -> None:
    (folder / "sweep.json").write_bytes(text)
    with pytest.raises(FormatError, match=str(folder / "sweep.json")):
        ck.Sweep.open(folder)


@pytest.mark.parametrize("name", ["missing", "empty", "other", "file"])
def test_what_is_no_sweep_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as error:
        ck.Sweep.open(tmp_path / name)
    assert error.value.subject == tmp_path / name and "sweep.json" in str(error.value)


def test_opening_loads_no_image_and_builds_no_network(folder: Path, monkeypatch: Any) -> None:

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a network was built or data were read")

    monkeypatch.setattr("torch.nn.Module.__init__", refuse)
    monkeypatch.setattr("compatkit.data.load", refuse)
    assert len(ck.Sweep.open(folder).records) == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, 0.1),
        (True, True),
        ([], "none"),
        (["dcc", {"name": "l2", "weight": 0.5}], "dcc, l2 (weight 0.5)"),
        ({"name": "dcc"}, "dcc"),
        ({"drop_rate": 0.1}, "(drop_rate 0.1)"),
        ([8, 8], "8, 8"),
    ],
)
def test_varied_values_in_words(value: Any, text: Any) -> None:
    assert cell_value(value) == text
