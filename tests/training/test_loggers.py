"""Loggers, read back: what they receive, no point twice after a kill, a third party's, and what is refused."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributions import Install, install
from small import data_set, quick, same_parts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import compatkit as ck
from compatkit.errors import EnvironmentFailure, MissingDependency, PluginError, UnknownName, UsageError
from compatkit.experiments.recipes import StartedRun
from compatkit.foundation.codec import dumps
from compatkit.plugins.isolation import PluginWarning
from compatkit_plugins.loggers.mlflow import store

__all__ = ["install"]


def task(name: str = "a") -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=16)


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: by tag, steps and values."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


SETTINGS: dict[str, Any] = {
    "steps": 4,
    "log_every": 2,
    "clip_norm": 1.0,
    "ema": 0.5,
    "validation": 0.25,
    "evaluate_every": 2,
}


def test_figures_are_those_of_the_history(tmp_path: Path) -> None:
    trainer = quick(**SETTINGS, schedule="step", loggers={"tensorboard": tmp_path / "runs"})
    fit = trainer.fit([task("a"), task("b")], ["dcc"])
    result = points(tmp_path / "runs")
    for row in fit.history:
        for name, value in row["losses"].items():
            tag = f"{row['task']}/{name if name in ('accuracy', 'gradient_norm') else f'losses/{name}'}"
            assert dict(result[tag])[row["step"]] == pytest.approx(value, rel=1e-6)
    for row in fit.evaluations:
        tag = f"{row['task']}/validation/{row['weights']}/loss"
        assert dict(result[tag])[row["step"]] == pytest.approx(row["loss"], rel=1e-6)
    assert result["a/learning_rate"] == [(2, pytest.approx(1e-3)), (4, pytest.approx(1e-5))]
    assert {step for step, value in result["b/images_per_second"] if value > 0} == {2, 4}
    assert all(len(of_tag) == 2 for of_tag in result.values()) and len(result) == 2 * (2 + 2 + 2 + 4)
    assert same_parts(fit, quick(**SETTINGS, schedule="step").fit([task("a"), task("b")], ["dcc"]))
    assert "loggers" not in fit.run["trainer"]


def test_a_resumed_run_has_no_point_twice(tmp_path: Path, killed: Callable[..., None]) -> None:
    class Kill:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 5 and alive:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 3}
    trainer = quick(steps=6, **settings, loggers={"tensorboard": tmp_path / "runs"})
    alive = True
    with pytest.raises(KeyboardInterrupt):  # after the points of steps 4 and 5, which no checkpoint knows
        trainer.fit([task()], ["kill"], factories={"kill": Kill})
    assert [step for step, _ in points(tmp_path / "runs")["a/losses/task"]] == [1, 2, 3, 4, 5]
    alive = False
    fit = trainer.fit([task()], ["kill"], factories={"kill": Kill})
    shown = points(tmp_path / "runs")["a/losses/task"]
    assert [step for step, _ in shown] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in shown] == pytest.approx([row["losses"]["task"] for row in fit.history])


def test_without_tensorboard_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependency, match=r"pip install 'compatkit\[tensorboard\]'"):
        quick(steps=1, loggers={"tensorboard": tmp_path / "runs"}).fit([task()])
    assert not (tmp_path / "runs").exists()
    quick(steps=1).fit([task()])


@pytest.mark.parametrize("name", ["tensorboard", "csv"])
def test_a_folder_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match=r"a part of the path is a file|a file stands"):
        quick(steps=1, loggers={name: tmp_path / "file" / "runs"}).fit([task()])


def csv_points(folder: Path) -> dict[str, dict[int, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    points: dict[str, dict[int, float]] = {}
    for row in rows:
        assert int(row["step"]) not in points.setdefault(row["name"], {})
        points[row["name"]][int(row["step"])] = float(row["value"])
    return points


def test_csv_has_what_tensorboard_has(tmp_path: Path) -> None:
    folders = {"tensorboard": tmp_path / "events", "csv": tmp_path / "table"}
    quick(**SETTINGS, loggers=folders).fit([task("a"), task("b")], ["dcc"])
    table = csv_points(tmp_path / "table")
    for name, point in points(tmp_path / "events").items():
        assert table[name] == pytest.approx(dict(point), rel=1e-6), name
    assert len(table) == len(points(tmp_path / "events"))


def test_csv_of_a_resumed_run_drops_later_rows(tmp_path: Path, killed: Callable[..., None]) -> None:
    def trainer(log_every: int) -> ck.Trainer:
        checkpoint = tmp_path / "run.safetensors"
        return quick(
            steps=6, checkpoint=checkpoint, checkpoint_every=3, log_every=log_every, loggers={"csv": tmp_path}
        )

    killed(trainer(1), [task()], after=3)
    text = (tmp_path / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text(
        text + "4,a/losses/task,99\n5,a/los"
    )  # written after the checkpoint
    fit = trainer(1).fit([task()])
    losses = csv_points(tmp_path)["a/losses/task"]
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert list(losses.values()) == pytest.approx([row["losses"]["task"] for row in fit.history])


THIRD_PARTY = """
from compatkit import hookimpl

CALLS = []

class Mine:
    def __init__(self, folder, fail=""):
        self.fail = fail
        CALLS.append(("made", folder))

    def begin(self, step):
        self._call("begin", step)

    def log_metrics(self, metrics, step):
        self._call("log_metrics", step, dict(metrics))

    def flush(self):
        self._call("flush")

    def close(self):
        self._call("close")

    def _call(self, method, *arguments):
        CALLS.append((method, *arguments))
        if method == self.fail:
            raise RuntimeError("no connection")

@hookimpl
def compatkit_loggers(register):
    register("mine", Mine)
"""


def test_a_third_party_brings_a_logger(install: Install, tmp_path: Path) -> None:
    install("demo", {"loggers.mine": "demo_logger"}, {"demo_logger": THIRD_PARTY})
    trainer = quick(steps=4, log_every=2, checkpoint=tmp_path / "run.safetensors", loggers={"mine": "here"})
    assert "demo_logger" not in sys.modules
    fit = trainer.fit([task()])
    calls = sys.modules["demo_logger"].CALLS
    assert [call[0] for call in calls] == ["made", "begin", "log_metrics", "log_metrics", "flush", "close"]
    assert calls[:2] == [("made", "here"), ("begin", 0)]
    for (_, step, metrics), row in zip(calls[2:4], fit.history, strict=True):
        assert step == row["step"] and metrics["a/losses/task"] == row["losses"]["task"]
    assert same_parts(fit, quick(steps=4, log_every=2).fit([task()]))


def test_a_logger_that_cannot_begin_ends_the_run_and_the_others_are_closed(install: Install) -> None:
    install("demo", {"loggers.mine": "demo_logger"}, {"demo_logger": THIRD_PARTY})
    install("next", {"loggers.other": "next_logger"}, {"next_logger": THIRD_PARTY.replace("mine", "other")})
    loggers = {"other": "here", "mine": {"folder": "here", "fail": "begin"}}
    with pytest.raises(PluginError, match="no connection") as caught:
        quick(steps=2, loggers=loggers).fit([task()])
    assert caught.value.subject == "loggers.mine"
    assert [call[0] for call in sys.modules["demo_logger"].CALLS] == ["made", "begin"]
    assert [call[0] for call in sys.modules["next_logger"].CALLS] == ["made", "begin", "close"]


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("log_metrics", ["made", "begin", "log_metrics", "close"]),
        ("close", ["made", "begin", "log_metrics", "log_metrics", "close"]),
    ],
)
def test_a_run_goes_on_without_a_logger_that_fails(install: Install, method: str, calls: list[str]) -> None:
    install("demo", {"loggers.mine": "demo_logger"}, {"demo_logger": THIRD_PARTY})
    with pytest.warns(PluginWarning, match=r"'loggers.mine' of demo .*no connection") as caught:
        fit = quick(steps=2, loggers={"mine": {"folder": "here", "fail": method}}).fit([task()])
    assert len(caught) == 1 and [call[0] for call in sys.modules["demo_logger"].CALLS] == calls
    assert same_parts(fit, quick(steps=2).fit([task()]))


def test_a_logger_is_told_of_the_run_and_closed_after_errors(install: Install, tmp_path: Path) -> None:
    told = """
from compatkit import hookimpl

TOLD = []

class Mine:
    def __init__(self, folder):
        self.folder = folder
    def begin(self, manifest, run):
        TOLD.append((self.folder, run, manifest))
    def log_metrics(self, step):
        TOLD.append(step)
    def flush(self): pass
    def close(self, failed):
        TOLD.append(failed)

@hookimpl
def compatkit_loggers(register):
    register("mine", Mine)
"""
    install("demo", {"loggers.mine": "demo_logger"}, {"demo_logger": told})

    class Fails:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == ends and error is not None:
                raise error

    ends, error = 1, None
    settings: dict[str, Any] = {"steps": 3, "checkpoint": tmp_path / "night.safetensors"}
    trainer = quick(**settings, loggers=["mine"])
    fit = trainer.fit([task()], ["fails"], factories={"fails": Fails})
    result = sys.modules["demo_logger"].TOLD
    folder, run, manifest = result.pop(0)
    assert (folder, run.folder, run.name, run.steps) == (tmp_path, tmp_path, "night", 3)
    assert json.loads(json.dumps(manifest)) == json.loads(json.dumps(fit.run))
    assert result == [1, 2, 3, False]
    (tmp_path / "night.safetensors").unlink()
    for error, kind in (  # noqa: B007 - of the plugin
        (ValueError("no"), PluginError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        result.clear()
        with pytest.raises(kind):
            trainer.fit([task()], ["fails"], factories={"fails": Fails})
        assert result[1:] == [1, True]


def test_loggers_are_outside_of_plan_manifest_and_folder(tmp_path: Path) -> None:
    plain, logged = (
        quick(steps=1, loggers=loggers).fit([task()])
        for loggers in (None, {"csv": {"folder": tmp_path / "secret-folder"}})
    )
    assert dumps(plain.run) == dumps(logged.run) and plain.plan == logged.plan
    tables: dict[str, Any] = {"prefix": "p", "trainer": {"steps": 1}, "tasks": []}
    told: dict[str, Any] = {
        "settings": {},
        "prefix": None,
        "data_root": None,
        "registry": "parts",
        "command": (),
    }
    with_loggers = {**tables, "loggers": [{"name": "wandb", "api_key": "abcdefgh12345"}]}
    runs = [StartedRun("r.toml", each, **told) for each in (tables, with_loggers)]
    assert runs[0].default_folder() == runs[1].default_folder()
    runs[1].write(tmp_path)
    assert "abcdefgh12345" not in (tmp_path / "run.json").read_text()


def test_secrets_of_settings_reach_no_message(install: Install) -> None:
    install("demo", {"loggers.mine": "demo_logger"}, {"demo_logger": THIRD_PARTY})
    loggers = {"mine": {"folder": "here", "api_key": "s3cr3t-of-mine"}}
    with pytest.raises(PluginError) as caught:
        quick(steps=1, loggers=loggers).fit([task()])
    assert "s3cr3t-of-mine" not in str(caught.value)
    assert "s3cr3t-of-mine" not in repr(quick(steps=1, loggers=loggers))


@pytest.mark.filterwarnings("default")  # what its own dependencies warn of
@pytest.mark.parametrize("kind", ["database", "files"])
def test_mlflow_has_the_figures_of_a_run_and_goes_on_in_it(
    kind: str, tmp_path: Path, killed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    if kind == "database":
        pytest.importorskip("sqlalchemy")
        pytest.importorskip("alembic")
    else:
        monkeypatch.setattr("compatkit_plugins.loggers.mlflow.find_spec", lambda name: None)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings: dict[str, Any] = {"steps": 6, "log_every": 2, "checkpoint": tmp_path / "night.safetensors"}
    trainer = quick(
        **settings,
        checkpoint_every=4,
        loggers={"mlflow": {"folder": tmp_path / "ml", "experiment": "digits"}},
    )
    killed(trainer, [task()], after=4)
    client = mlflow.MlflowClient(tracking_uri=store(tmp_path / "ml"))
    assert (tmp_path / "ml" / "mlflow.db").exists() == (kind == "database")
    runs = [client.get_experiment_by_name("digits").experiment_id]
    (run,) = client.search_runs(runs)
    assert run.info.status == "FAILED"
    fit = trainer.fit([task()])
    (run,) = client.search_runs(runs)
    assert run.info.status == "FINISHED" and run.info.run_name == "night"
    assert run.data.params["steps"] == "6" and run.data.params["tasks"] == "['a']"
    points = client.get_metric_history(run.info.run_id, "a/losses/task")
    assert [point.step for point in points] == [2, 4, 6]
    assert [point.value for point in points] == pytest.approx(list(fit.history["a/loss"]))


@pytest.mark.filterwarnings("default")  # what its own dependencies warn of
def test_wandb_has_the_figures_of_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    finished: list[tuple[Any, dict[str, Any], Any]] = []
    finish = wandb.Run.finish

    def kept(run: Any, exit_code: int | None = None, **settings: Any) -> None:
        run.log({"end": True}, step=7)  # a step is complete when the next one begins
        finished.append((run, dict(run.summary), exit_code))
        finish(run, exit_code=exit_code, **settings)

    monkeypatch.setattr(wandb.Run, "finish", kept)
    settings = {"name": "wandb", "folder": str(tmp_path), "mode": "offline", "project": "digits"}
    fit = quick(steps=6, log_every=2, run_name="night", loggers=[settings]).fit([task()])
    ((run, summary, code),) = finished
    assert (run.name, run.project, run.config["trainer"]["steps"], code) == ("night", "digits", 6, 0)
    assert summary["a/losses/task"] == pytest.approx(fit.history["a/loss"][-1])
    assert list((tmp_path / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_without_its_library_nothing_is_trained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=rf"pip install 'compatkit\[{name}\]'"):
        quick(steps=1, loggers={name: tmp_path / "runs"}).fit([task()])
    assert not (tmp_path / "runs").exists()


def test_a_logger_without_a_method_is_refused_before_training(install: Install) -> None:
    source = (
        "from compatkit import hookimpl\n@hookimpl\ndef compatkit_loggers(register): register('mine', dict)\n"
    )
    install(
        "demo",
        {"loggers.mine": "demo_logger"},
        {"demo_logger": source.replace("dict", "lambda folder: folder")},
    )
    with pytest.raises(PluginError, match="begin, log_metrics, flush, close"):
        quick(steps=1, loggers={"mine": "here"}).explain([task()])


@pytest.mark.parametrize(
    ("loggers", "error"),
    [
        ("runs", UsageError),
        ([3], UsageError),
        ([{"folder": "runs"}], UsageError),
        (["csv", {"name": "csv", "folder": "runs"}], UsageError),
        ({"csv": None}, UsageError),
        ({"csv": {"folder": 3}}, UsageError),
        ({"csv": {"folder": "s3://bucket/runs"}}, UsageError),
        ({"tensorbord": "runs"}, UnknownName),
    ],
)
def test_settings_that_cannot_be_used(loggers: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        quick(steps=1, loggers=loggers)


def test_a_logger_needs_a_folder_of_its_own_or_of_the_run() -> None:
    with pytest.raises(UsageError) as caught:
        quick(steps=1, loggers=["csv"]).fit([task()])
    assert caught.value.subject == "csv"


def test_an_unknown_setting_of_a_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="csv"):
        quick(steps=1, loggers={"csv": {"folder": tmp_path, "speed": 1}}).fit([task()])
