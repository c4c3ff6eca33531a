"""The door to studies: by number, with what is missing only, and what it leaves in the folder."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import Install, install

__all__ = ["install"]

Run = Callable[..., Any]

TOY = """
    import os, time
    from compatkit import hookimpl
    from compatkit.reports.pictures import signed
    from compatkit.experiments.studies import Measure, Outcome, Reported, Study

    def run(run):
        if run.settings["wait"] and (run.arm, run.seed) == ("rr", 1):
            open(os.environ["TOY_WAITS"], "w").close()
            time.sleep(60)
        with open(os.environ["TOY_LOG"], "a") as log:
            log.write(f"{run.arm} {run.seed}\\n")
        value = {"std": 0.25, "rr": 0.5}[run.arm] + run.settings["shift"] * run.seed
        data = run.find("left")
        notes = () if data else ("left is not there.",)
        images = float(len(data.train)) if data else None
        return Outcome(values={"energy": value, "images": images}, figure_data={"arm": run.arm}, notes=notes)

    def draw(results):
        assert [one["arm"] for one in results.figure_data("rr")] == ["rr"] * len(results.seeds)
        return {"extra": signed([[[1.0, -1.0]]])}

    @hookimpl
    def compatkit_studies(register):
        register("9.1", lambda: Study(
            title="a toy", question="Does the door work?", reference="Nobody (2021), Nothing",
            arms=("std", "rr"),
            measures=(Measure(name="energy", title="energy"), Measure(name="images", title="images", unit="count")),
            sizes={"cpu": {"shift": 0.125, "wait": False}, "paper": {"shift": 0.125, "wait": False}},
            scale={"cpu": "a toy in place of a network.", "paper": ""},
            paper=(Reported("rr", "energy", 0.217, "Table 9"),),
            run=run, draw=draw, data=("left",)))
"""


NEEDY = """
    from compatkit import hookimpl
    from compatkit.experiments.studies import Measure, Outcome, Study

    def run(run):
        data = run.find("left")
        if data is None:
            return Outcome(values={}, notes=("left is missing.",))
        return Outcome(values={"images": float(len(data.train))})

    @hookimpl
    def compatkit_studies(register):
        register("9.3", lambda: Study(
            title="a needy toy", question="Are there images?", reference="", arms=("std",),
            measures=(Measure(name="images", title="images"),), sizes={"cpu": {}, "paper": {}},
            scale={"cpu": "", "paper": ""}, paper=(), run=run, data=("left",)))
"""


@pytest.fixture
def toy(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Install study 9.1 of the distribution toys; return a function that says which runs it made."""
    install("toys", {"studies.9.1": "toy_studies"}, {"toy_studies": TOY}, "2.0")
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("TOY_WAITS", str(tmp_path / "waits"))
    monkeypatch.chdir(tmp_path)

    def made() -> list[str]:
        log = tmp_path / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    return made


def test_list_tells_of_every_study_and_of_broken_ones(run: Run, install: Install, toy: Any) -> None:
    install("bad", {"studies.9.2": "bad_study"}, {"bad_study": "raise RuntimeError('no')"})
    result = run("study", "list", "--json")
    by_number = {entry["study"]: entry for entry in result.json}
    assert result.code == 0 and {"3.1", "9.1", "9.2"} <= by_number.keys()
    first = by_number["9.1"]
    assert (first["arms"], first["distribution"], first["version"]) == (["std", "rr"], "toys", "2.0")
    assert first["sizes"]["cpu"] == {"shift": 0.125, "wait": False} and first["data"] == ["left"]
    assert "RuntimeError" in by_number["9.2"]["error"]
    plain = run("study", "list")
    assert plain.code == 0 and "9.1  a toy" in plain.out and "study 9.2" in plain.err


def test_a_study_leaves_results_table_and_figures(run: Run, toy: Any, tmp_path: Path) -> None:
    result = run("study", "run", "9.1", "--seeds", "2", "--out", "out", "--json")
    assert result.code == 0 and toy() == ["std 0", "rr 0", "std 1", "rr 1"]
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result.json == {**document, "folder": "out"}
    assert (document["study"], document["size"], document["seeds"]) == ("9.1", "cpu", [0, 1])
    assert document["results"] == [
        {"arm": "std", "metric": "energy", "unit": "1", "values": [0.25, 0.375]},
        {"arm": "rr", "metric": "energy", "unit": "1", "values": [0.5, 0.625]},
    ]
    assert [
        (source["arm"], source["metric"], source["value"], source["source"]) for source in document["paper"]
    ] == [("rr", "energy", 0.217, "Table 9")]
    assert document["settings"] == {"shift": 0.125, "wait": False}
    assert document["versions"][0]["toys"] == "2.0" and document["versions"][0]["torch"]
    assert document["command"] == "compatkit study run 9.1 --seeds 2 --size cpu --out OUT"
    assert document["notes"] == ["left is not there."] and len(document["seconds"]["rr"]) == 2
    assert document["files"] == ["table.md", "figure.png", "extra.png", "runs.jsonl"]
    table = (tmp_path / "out" / "table.md").read_text()
    # .25 and .375: mean .3125, standard deviation .0884.
    assert "| std | 0.312 ± 0.088 |" in table and "| rr | 0.562 ± 0.088 |" in table
    assert "**The scale differs**" in table and "a toy in place of a network." in table
    assert "| rr | energy | 0.217 | Table 9 |" in table and "(extra.png)" in table
    assert all(
        (tmp_path / "out" / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in ("figure", "extra")
    )


def test_results_are_tables_for_other_programs(run: Run, toy: Any, tmp_path: Path) -> None:
    """One figure a row with all digits, from the run and from its folder; a number has no results."""
    files = {name: tmp_path / f"run.{name}" for name in ("csv", "latex")}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert run("study", "run", "9.1", "--seeds", "2", "--arms", "rr", "--out", "out", *words).code == 0
    with open(files["csv"], newline="") as file:
        read = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"], row["metric"], row["value"]) for row in read] == [
        ("rr", "0", "energy", "0.5"),
        ("rr", "1", "energy", "0.625"),
    ]
    assert r"\toprule" in files["latex"].read_text() and "0.562" in files["latex"].read_text()
    again = tmp_path / "again.csv"
    assert run("study", "show", "out", "--csv", again).code == 0
    assert again.read_text() == files["csv"].read_text() and toy() == ["rr 0", "rr 1"]
    refused = run("study", "show", "9.1", "--csv", again)
    assert refused.code == 2 and "need the folder of results" in refused.err


def test_a_study_is_shown_and_one_that_takes_no_arms_says_so(run: Run, toy: Any) -> None:
    shown = run("study", "show", "9.1")
    assert shown.code == 0 and "std, rr" in shown.out and "own arms" not in shown.out
    assert run("study", "show", "9.1", "--json").json["extends"] is None
    refused = run("study", "run", "9.1", "--arms", "std,mine=dcc", "--out", "out")
    assert refused.code == 2 and "takes no arms of others" in refused.err and toy() == []


def test_at_the_papers_size_nothing_differs(run: Run, toy: Any, tmp_path: Path) -> None:
    assert run("study", "run", "9.1", "--seeds", "1", "--size", "paper", "--out", "out").code == 0
    table = (tmp_path / "out" / "table.md").read_text()
    assert "The scale differs" not in table and "At the paper's scale." in table


def test_what_is_done_is_not_done_again(run: Run, toy: Any, tmp_path: Path) -> None:
    call = ("study", "run", "9.1", "--out", "out", "--json")
    assert run(*call, "--seeds", "1", "--arms", "rr").code == 0 and toy() == ["rr 0"]
    both = run(*call, "--seeds", "2")
    assert toy() == ["std 0", "std 1", "rr 1"] and "already there: 1 run" in both.err
    log = tmp_path / "out" / "runs.jsonl"
    whole = log.read_text()
    log.write_text(whole[:-20])  # killed while it wrote the last line
    assert run(*call, "--seeds", "2").json["results"] == both.json["results"]
    assert toy() == ["rr 1"]
    again = [{**json.loads(line), "seconds": 0} for line in log.read_text().splitlines()]
    assert again == [{**json.loads(line), "seconds": 0} for line in whole.splitlines()]


def test_other_settings_are_refused(run: Run, toy: Any, tmp_path: Path) -> None:
    call = ("study", "run", "9.1", "--seeds", "1", "--out", "out")
    assert run(*call).code == 0 and len(toy()) == 2
    refused = run(*call, "--set", "shift=0.5")
    assert refused.code == 2 and toy() == []
    assert "holds 2 runs with other settings (shift: 0.125 there, 0.5 here)" in refused.err
    assert "size: cpu there, paper here" in run(*call, "--size", "paper").err
    anew = run("study", "run", "9.1", "--seeds", "1", "--out", "other", "--set", "shift=1")
    assert anew.code == 0 and toy() == ["std 0", "rr 0"]
    assert json.loads((tmp_path / "other" / "results.json").read_text())["settings"]["shift"] == 1.0
    assert "Changed by hand: shift 1.0 in place of 0.125." in (tmp_path / "other" / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("9.2", "--out", "out"), "There is no plugin studies.9.2. Did you mean '9.1'?"),
        (
            ("9.1", "--arms", "r", "--out", "out"),
            "Study 9.1 has no arm 'r'. Did you mean 'rr'? Its arms are std, rr.",
        ),
        (("9.1", "--size", "papr", "--out", "out"), "Study 9.1 has no size 'papr'. Did you mean 'paper'?"),
        (
            ("9.1", "--set", "shft=1", "--out", "out"),
            "Study 9.1 has no setting 'shft'. Did you mean 'shift'?",
        ),
        (
            ("9.1", "--set", "shift=often", "--out", "out"),
            "the setting 'shift' is a number, such as 0.125; got 'often'",
        ),
        (("9.1", "--set", "shift", "--out", "out"), "Expected NAME=VALUE"),
        (("9.1", "--seeds", "0", "--out", "out"), "--seeds"),
    ],
)
def test_what_cannot_be_meant_is_named(run: Run, toy: Any, words: tuple[str, ...], message: str) -> None:
    result = run("study", "run", *words)
    assert result.code == 2 and message in result.err and toy() == []


def test_without_a_folder_a_study_writes_to_one_of_its_number(run: Run, toy: Any, tmp_path: Path) -> None:
    result = run("study", "run", "9.1", "--seeds", "1", "--json")
    assert result.code == 0 and result.json["folder"] == "study-9.1"
    assert (tmp_path / "study-9.1" / "results.json").exists()


def test_runs_with_other_images_do_not_come_into_one_table(run: Run, toy: Any, tmp_path: Path) -> None:
    call = ("study", "run", "9.1", "--data", "packs", "--out", "out", "--seeds")
    write_left(tmp_path, value=0)
    assert run(*call, "1").code == 0 and "left/train" in (tmp_path / "out" / "results.json").read_text()
    write_left(tmp_path, value=1)
    saved = (tmp_path / "out" / "runs.jsonl").read_text()
    refused = run(*call, "2")
    assert refused.code == 2
    assert "holds runs with other images of left/train" in refused.err
    assert (tmp_path / "out" / "runs.jsonl").read_text() == saved
    write_left(tmp_path, value=0)
    assert run(*call, "2").code == 0


def test_a_run_that_was_left_out_is_made_once_its_data_are_there(
    run: Run, install: Install, tmp_path: Path, toy: Any
) -> None:
    install("needy", {"studies.9.3": "needy_study"}, {"needy_study": NEEDY})
    call = ("study", "run", "9.3", "--seeds", "1", "--data", "packs", "--out", "out", "--json")
    (tmp_path / "packs").mkdir()
    left_out = run(*call)
    assert (
        left_out.code == 0
        and left_out.json["results"] == []
        and left_out.json["notes"] == ["left is missing."]
    )
    assert not (tmp_path / "out" / "runs.jsonl").exists() and not (tmp_path / "out" / "figure.png").exists()
    write_left(tmp_path, value=0)
    assert run(*call).json["results"] == [{"arm": "std", "metric": "images", "unit": "1", "values": [4.0]}]


def test_missing_data_says_what_to_do(run: Run, tmp_path: Path) -> None:
    result = run(
        "study", "run", "3.1", "--seeds", "1", "--arms", "none", "--data", tmp_path, "--out", tmp_path / "out"
    )
    assert result.code == 2
    assert "Study 3.1 needs the data set 'mnist'" in result.err
    assert "--data" in result.err
    assert not (tmp_path / "out").exists(), "nothing was written, so that no folder stays"


def write_left(tmp_path: Path, value: int) -> None:
    """Write a pack of four images, of which one pixel has a value."""
    (tmp_path / "packs").mkdir(exist_ok=True)
    images = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    images[0, 0, 0] = value
    arrays = {
        f"{x}_{s}": array for s in ("train", "test") for x, array in (("x", images), ("y", np.arange(4) % 2))
    }
    np.savez(tmp_path / "packs" / "left.npz", **arrays, classes=np.array(["a", "b"]))


def test_data_that_can_be_done_without_is_found_by_data(run: Run, toy: Any, tmp_path: Path) -> None:
    write_left(tmp_path, value=0)
    document = run(
        "study", "run", "9.1", "--seeds", "1", "--arms", "rr", "--data", "packs", "--out", "out", "--json"
    ).json
    assert document["notes"] == [] and document["results"][1]["values"] == [4.0]
    assert document["data"][0].keys() == {"left/train", "left/test"} and "--data DIR" in document["command"]
    (tmp_path / "packs" / "left.npz").write_bytes(b"damaged")
    damaged = run("study", "run", "9.1", "--seeds", "1", "--arms", "std", "--data", "packs", "--out", "out")
    assert damaged.code == 2 and "left.npz is not an .npz file" in damaged.err


@pytest.mark.parametrize("line", ['{"arm": "rr"}', "nonsense", "[]"])
def test_a_file_of_something_else_is_left_alone(run: Run, toy: Any, tmp_path: Path, line: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "runs.jsonl").write_text(line + "\n")
    result = run("study", "run", "9.1", "--out", "out")
    assert result.code == 3 and "line 1" in result.err and toy() == []
    assert (tmp_path / "out" / "runs.jsonl").read_text() == line + "\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "return Outcome(values={",
            "return dict(values={",
            "Plugin 'studies.9.1' of toys 2.0: its run returned a dict",
        ),
        (
            '"energy": value',
            '"strength": value',
            "its run measures 'strength', which is not one of its measures",
        ),
        ('"energy": value', '"energy": float("nan")', "expected a finite number or None"),
        ('figure_data={"arm": run.arm}', 'figure_data={"arm": {1}}', "must hold JSON values"),
        ('arms=("std", "rr")', 'arms=("Std", "rr")', "arms must be distinct lower-case words"),
        ('"paper": ""', '"papers": ""', "sizes and scale need 'cpu' and 'paper'"),
        (
            "lambda: Study(",
            "lambda: dict(",
            "its factory returned a dict; expected a compatkit.experiments.studies.Study",
        ),
    ],
)
def test_a_study_that_is_written_wrongly_is_named(
    run: Run,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    message: str,
) -> None:
    assert old in TOY
    install("toys", {"studies.9.1": "toy_studies"}, {"toy_studies": TOY.replace(old, new)}, "2.0")
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    result = run("study", "run", "9.1", "--seeds", "1", "--arms", "std", "--out", tmp_path / "out")
    assert result.code == 2 and message in result.err


def test_ctrl_c_keeps_what_is_done(toy: Any, install: Install, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "compatkit", "study", "run", "9.1", "--seeds", "2", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site-toys")}
    first = subprocess.Popen(
        [*command, "--set", "wait=true"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if (tmp_path / "waits").exists():
            break
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, error = first.communicate(timeout=60)
    assert (
        first.returncode == 130 and "the same command goes on from here" in error and "Traceback" not in error
    )
    assert toy() == ["std 0", "rr 0", "std 1"]
    assert len((tmp_path / "out" / "runs.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "out" / "results.json").exists()
