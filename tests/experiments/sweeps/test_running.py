"""Runs of a sweep: each is bitwise the run alone, results become evidence, and failures are reported one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from swept import TASK, write_recipe

import compatkit as ck
from compatkit.errors import Incomplete, TrainingError, UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.results import accuracies
from compatkit.foundation.codec import dumps, loads

SEEDS = '"trainer.seed" = [0, 1]'


def weights(registry: Path, name: str) -> dict[str, torch.Tensor]:
    store = ck.Registry.open(registry).store
    return store.load_state(store.manifest(name))


def alone(recipe: Path, seed: int, methods: list[str]) -> ck.Fit:
    """Train one run through the trainer itself, from the recipe's own values."""
    tasks = [
        ck.Task(name, ck.data.load(recipe.parent / f"{name}.npz"), "resnet8_cifar", "layer2", size=(8, 8))
        for name in ("left", "right")
    ]
    trainer = ck.Trainer(
        steps=3, batch_size=8, precision="float32", log_every=1, device="cpu", seed=seed, progress=False
    )
    return trainer.fit(tasks, methods)


def same(fit: ck.Fit, registry: Path, prefix: str) -> bool:
    return all(
        torch.equal(value, weights(registry, f"{prefix}/{task}.{side}")[key])
        for task, state in fit.tasks.items()
        for side in ("extractor", "head")
        for key, value in getattr(state, side).state_dict().items()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the recipe in recipes/ and the registry in parts/."""
    return tmp_path_factory.mktemp("swept")


@pytest.fixture(scope="module")
def swept(folder: Path) -> Any:
    """Two seeds by two lists of methods, one run after the other."""
    lines = (SEEDS, 'regularizers = [[], ["identical_init", "dcc"]]')
    sweep = ck.Sweep.read(write_recipe(folder / "recipes", lines, ()))
    return sweep.run(folder / "parts", out=folder / "parts-sweeps" / "small", launcher="sequential")


def test_every_run_is_bitwise_the_run_alone_and_is_published_and_measured(swept: Any, folder: Path) -> None:
    names = [f"seed{seed}-{methods}" for seed in (0, 1) for methods in ("none", "identical_init.dcc")]
    assert [record.run for record in swept.records] == names
    assert {record.state for record in swept.records} == {"done"}
    file = folder / "recipes" / "small.toml"
    assert same(alone(file, 1, ["identical_init", "dcc"]), folder / "parts", f"digits/{names[3]}")
    assert same(alone(file, 0, []), folder / "parts", f"digits/{names[0]}")
    first = swept.records[3]
    assert first.parts["shared.dcc"] == f"digits/{names[3]}/shared.dcc@1.0.0"
    assert set(accuracies(first)) == {(a, b) for a in ("left", "right") for b in ("left", "right")}
    assert set(first.losses["left"]) == {"task", "dcc/loss", "accuracy"}


def test_results_are_evidence_under_the_key_of_any_matrix(swept: Any, folder: Path) -> None:
    registry = ck.Registry.open(folder / "parts")
    tests = [ck.data.load(folder / "recipes" / f"{name}.npz").test for name in ("left", "right")]
    matrix = registry.matrix("digits/seed0-none/*.extractor", "digits/seed0-none/*.head", tests)
    assert matrix.settings["cells"] == {"taken": 4, "measured": 0}
    assert (
        json.loads(matrix.to_json())["cells"] == loads(dumps(swept.records[0].matrix), what="matrix")["cells"]
    )


def test_records_are_canonical_and_checkpoints_go_once_a_run_is_done(swept: Any) -> None:
    assert {path.name for path in swept.folder.iterdir()} == {
        "sweep.json",
        *(f"{record.run}.json" for record in swept.records),
    }
    text = (swept.folder / "seed0-none.json").read_bytes()
    assert dumps(loads(text, what="record")) == text
    assert records.read(swept.folder, "seed0-none") == swept.records[0]


def test_means_and_spreads_are_over_seeds(swept: Any) -> None:
    groups = swept.groups()
    assert [group.values for group in groups] == [
        {"regularizers": []},
        {"regularizers": ["identical_init", "dcc"]},
    ]
    runs = [accuracies(record) for record in swept.records if record.values["regularizers"] == []]
    own = [(run["left", "left"] + run["right", "right"]) / 2 for run in runs]
    assert groups[0].own.mean == pytest.approx(sum(own) / 2)
    assert groups[0].own.deviation == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
    assert groups[0].runs == 2 and groups[0].pairs["left", "right"].count == 2


def test_a_run_that_fails_is_told_of_and_the_others_finish(
    recipe: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    fit = ck.Trainer.fit

    def burst(self: ck.Trainer, *args: Any, **kwargs: Any) -> ck.Fit:
        if self.seed == 0:
            raise TrainingError("The loss 'task' of task 'left' is not finite.")
        if self.seed == 1:
            raise ValueError("a defect")
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(ck.Trainer, "fit", burst)
    sweep = ck.Sweep.read(recipe('"trainer.seed" = [0, 1, 2]', change=((TASK, ""),)))
    heard: list[tuple[int, int, str]] = []
    outcome = sweep.run(tmp_path / "parts", progress=lambda *args: heard.append(args), launcher="sequential")
    assert [record.state for record in outcome.records] == ["failed", "failed", "done"]
    assert [(entry.code, entry.reason) for entry in outcome.failed] == [
        ("training", "The loss 'task' of task 'left' is not finite."),
        ("defect", "ValueError: a defect"),
    ]
    assert heard[-1] == (3, 3, "2 failed")
    with pytest.raises(Incomplete, match=r"2 of 3 runs failed\. seed0: The loss 'task'"):
        outcome.check()
    (group,) = outcome.groups()
    assert (group.runs, group.failed, group.own.deviation) == (1, 2, None)


def test_nothing_is_trained_where_one_run_cannot_be(recipe: Any, tmp_path: Path) -> None:
    file = recipe('"tasks.left.cut" = ["layer2", "layer9"]')
    with pytest.raises(UsageError, match=r"Run layer9: .*layer9.* Nothing was trained"):
        ck.Sweep.read(file).run(tmp_path / "parts")
    file = recipe('"trainer.batch_size" = [8, 64]')
    with pytest.raises(UsageError, match=r"Run batch_size64: .*fewer than a batch of 64"):
        ck.Sweep.read(file).run(tmp_path / "parts")
    file = recipe(
        '"tasks.left.cut" = ["layer2", "layer1"]', change=(("prefix", 'regularizers = ["dcc"]\nprefix'),)
    )
    with pytest.raises(ck.errors.CompatkitError, match=r"Run layer1: .*features of one width from all tasks"):
        ck.Sweep.read(file).run(tmp_path / "parts")
    assert not (tmp_path / "parts").exists() and not (tmp_path / "parts-sweeps").exists()


@pytest.mark.slow
def test_the_example_is_a_sweep_that_runs(tmp_path: Path) -> None:
    """At a small size: two of its twelve runs, of two steps, on a few of its images."""
    text = (Path(__file__).resolve().parents[3] / "examples" / "digits_sweep.toml").read_text()
    assert (
        len(ck.Sweep.read(Path(__file__).resolve().parents[3] / "examples" / "digits_sweep.toml").runs) == 12
    )
    for old, new in (
        ("steps = 200", "steps = 2"),
        ("batch_size = 64", "batch_size = 8"),
        ("resnet20_cifar", "resnet8_cifar"),
        ('data = "digits"', 'data = { name = "digits", train = 40, test = 40 }'),
        ('data = "typeset-digits"', 'data = { name = "typeset-digits", train = 40, test = 40 }'),
        ("[0, 1, 2]", "[0]"),
        ('["identical_init"], ["dcc"], ', ""),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.toml").write_text(text)
    outcome = ck.Sweep.read(tmp_path / "small.toml").run(tmp_path / "parts", launcher="sequential")
    assert [record.state for record in outcome.records] == ["done", "done"]
