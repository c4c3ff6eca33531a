"""TensorBoard's event files, read back: what is in them, no point twice after a kill, and a missing library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick, same_parts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import compatkit as ck
from compatkit.errors import EnvironmentFailure, MissingDependency


def task(name: str = "a") -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=16)


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: by tag, steps and values."""
    held = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in held.Scalars(tag)] for tag in held.Tags()["scalars"]}


SETTINGS: dict[str, Any] = {
    "steps": 4,
    "log_every": 2,
    "clip_norm": 1.0,
    "ema": 0.5,
    "validation": 0.25,
    "evaluate_every": 2,
}


def test_figures_are_those_of_the_history(tmp_path: Path) -> None:
    trainer = quick(**SETTINGS, schedule="step", scalars=tmp_path / "runs")
    fit = trainer.fit([task("a"), task("b")], ["dcc"])
    found = points(tmp_path / "runs")
    for row in fit.history:
        for name, value in row["losses"].items():
            tag = f"{row['task']}/{name if name in ('accuracy', 'gradient_norm') else f'losses/{name}'}"
            assert dict(found[tag])[row["step"]] == pytest.approx(value, rel=1e-6)
    for row in fit.evaluations:
        tag = f"{row['task']}/validation/{row['weights']}/loss"
        assert dict(found[tag])[row["step"]] == pytest.approx(row["loss"], rel=1e-6)
    assert found["a/learning_rate"] == [(2, pytest.approx(1e-3)), (4, pytest.approx(1e-5))]
    assert {step for step, value in found["b/images_per_second"] if value > 0} == {2, 4}
    assert all(len(of_tag) == 2 for of_tag in found.values()) and len(found) == 2 * (2 + 2 + 2 + 4)
    assert same_parts(fit, quick(**SETTINGS, schedule="step").fit([task("a"), task("b")], ["dcc"]))
    assert "scalars" not in fit.run["trainer"]


def test_a_resumed_run_has_no_point_twice(tmp_path: Path, killed: Callable[..., None]) -> None:
    class Kill:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 5 and alive:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 3}
    trainer = quick(steps=6, **settings, scalars=tmp_path / "runs")
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
        quick(steps=1, scalars=tmp_path / "runs").fit([task()])
    assert not (tmp_path / "runs").exists()
    quick(steps=1).fit([task()])


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match=r"a part of the path is a file|a file stands"):
        quick(steps=1, scalars=tmp_path / "file" / "runs").fit([task()])
