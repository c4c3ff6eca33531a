"""sweep: a recipe with lists in; parts, figures and a table out; failures are reported with exit code 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from swept import TASK, write_recipe

import compatkit as ck
from compatkit.errors import TrainingError


def written(tmp_path: Path, *lines: str, two: bool = False) -> Path:
    return write_recipe(tmp_path / "recipes", lines, () if two else ((TASK, ""),))


def test_a_sweep_becomes_parts_and_a_table_of_means(run: Any, tmp_path: Path) -> None:
    file = written(
        tmp_path, "trainer.seed = [0, 1]", 'regularizers = [[], ["identical_init", "dcc"]]', two=True
    )
    words = ("--registry", tmp_path / "parts", "sweep", file, "--launcher", "sequential")
    result = run(*words)
    assert result.code == 0
    assert "4 runs of small.toml: trainer.seed (2), regularizers (2)" in result.err
    lines = result.out.splitlines()
    assert lines[1].split() == ["regularizers", "runs", "failed", "as", "trained", "recombined"]
    assert lines[2].startswith("none") and lines[3].startswith("identical_init, dcc")
    assert lines[2].count("±") == 2
    assert f"records are in {tmp_path / 'parts-sweeps' / 'small'}" in result.out
    assert "digits/seed0-none/left.extractor" in run("--registry", tmp_path / "parts", "ls").out
    again = run(*words)
    assert again.code == 2 and "--resume" in again.err
    document = run(*words, "--resume", "--json").json
    assert set(document) == {"registry", "folder", "choice", "notes", "runs", "groups", "failed"}
    assert document["failed"] == {} and [group["runs"] for group in document["groups"]] == [2, 2]
    assert {pair["extractor"] for pair in document["runs"]["seed1-none"]["pairs"]} == {"left", "right"}


def test_a_failed_run_is_told_at_the_end(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    fit = ck.Trainer.fit

    def burst(self: ck.Trainer, *args: Any, **kwargs: Any) -> ck.Fit:
        if self.seed == 0:
            raise TrainingError("The loss is not finite.")
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(ck.Trainer, "fit", burst)
    file = written(tmp_path, "trainer.seed = [0, 1]")
    words = ("sweep", file, "--registry", tmp_path / "parts", "--launcher", "sequential")
    output = run(*words, "--out", tmp_path / "records")
    assert output.code == 1 and "seed0 failed [training]: The loss is not finite." in output.err
    assert {path.name for path in (tmp_path / "records").glob("*.json")} >= {"seed0.json", "seed1.json"}
    result = run(*words, "--out", tmp_path / "records", "--resume", "--json")
    assert result.code == 1 and result.json["failed"] == {"seed0": "The loss is not finite."}


def test_an_interrupted_sweep_says_how_it_goes_on(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ck.Trainer, "fit", stop)
    result = run("sweep", written(tmp_path, "trainer.seed = [0]"), "--registry", tmp_path / "parts")
    assert result.code == 130 and "The same command with --resume goes on from here." in result.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "must be a table of lists"),
        ("trainer.seed = 3", "'trainer.seed' must be a list of the values that vary, got 3"),
        ("trainer.seed = []", "'trainer.seed' is an empty list"),
        ("trainer.seed = [1, 2, 1]", "'trainer.seed' has the value 1 twice"),
        ('trainer.seed = [0, "1"]', "seed must be a whole number, got '1'"),
        ("trainer.seed = [0, true]", "seed must be a whole number, got True"),
        ("trainer.lr = [0.1, nan]", "has a value that is not JSON"),
        ("trainer.sed = [0]", "has the unknown key 'sed'. Did you mean 'seed'?"),
        ("trainer = [0]", "must name one value"),
        ("trainers.seed = [0]", "has the unknown key 'trainers'. Did you mean 'trainer'?"),
        ('trainer.checkpoint = ["a"]', "a sweep sets the checkpoint"),
        ('trainer.run_name = ["a"]', "a sweep sets the run_name"),
        ('prefix = ["a"]', "has the unknown key 'prefix'"),
        ('tasks.ct = ["a"]', "has the unknown key 'ct'. Did you mean 'cut'?"),
        ('tasks.lft.cut = ["a"]', "has the unknown key 'lft'"),
        ("tasks.data.trian = [8]", "has the unknown key 'trian'. Did you mean 'train'?"),
        ("tasks.size.width = [8]", "needs a table, but the recipe has [8, 8] there"),
        ("tasks.cut = [3]", "cut must be a string, got 3"),
        ('regularizers = ["dcc"]', "regularizers must be a list of names or tables"),
        ('regularizers = [["dccc"]]', "Did you mean 'dcc'?"),
        ("regularizers.dcc.weight = [1]", "a run has no regularizer 'dcc', or several (no regularizers)"),
        ("regularizers.dcc = [1]", "a run has no regularizer 'dcc'"),
        ('"tasks.cut" = ["a"]\n"tasks.left.cut" = ["b"]', "set the same value"),
        ('"trainer.seed" = [0]\ntrainer.seed = [1]', "is written twice"),
        ("frozen.head = [1]", "has the unknown key 'head'. Did you mean 'heads'?"),
    ],
)
def test_what_is_no_sweep_is_refused_before_any_data_is_loaded(
    run: Any, tmp_path: Path, monkeypatch: Any, line: str, message: str
) -> None:
    def loaded(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("data was loaded")

    monkeypatch.setattr("compatkit.data.load_spec", loaded)
    result = run("sweep", written(tmp_path, line), "--registry", tmp_path / "parts")
    assert result.code == 2 and message in result.err, result.err
    assert not (tmp_path / "parts").exists() and not (tmp_path / "parts-sweeps").exists()


def test_a_prefix_leaves_room_for_the_names_of_runs_and_of_runs_there_are_not_too_many(
    run: Any, tmp_path: Path
) -> None:
    file = written(tmp_path, "trainer.seed = [0]")
    result = run("sweep", file, "--registry", tmp_path / "parts", "--prefix", "team/digits")
    assert result.code == 2 and "its prefix is one word without '/'" in result.err
    many = ", ".join(map(str, range(101)))
    file = written(tmp_path, f"trainer.seed = [{many}]", f"trainer.warmup = [{many}]")
    result = run("sweep", file, "--registry", tmp_path / "parts")
    assert result.code == 2 and "the lists give 10,201 runs" in result.err


def test_train_and_sweep_send_to_each_other(run: Any, recipe: Any, tmp_path: Path) -> None:
    result = run("train", written(tmp_path, "trainer.seed = [0]"), "--registry", tmp_path / "parts")
    assert result.code == 2 and "describes many runs. Train them with `compatkit sweep" in result.err
    result = run("sweep", recipe(), "--registry", tmp_path / "parts")
    assert result.code == 2 and "has no table [sweep], so it is one run" in result.err
