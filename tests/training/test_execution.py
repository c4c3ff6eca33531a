"""Eager, compiled or captured: the same run, and a stated reason where something prevents the faster way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch._dynamo.testing import CompileCounterWithBackend

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.hooks import Batch, effect
from compatkit.training import execution_selection, objective
from compatkit.training.execution import Execution
from compatkit.training.execution_selection import replay_difference
from compatkit.training.objective import Objective, Outcome
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.step import Step

ALL = ["identical_init", "dcc", "rotation_prediction"]


def pair(model: str = "resnet8_cifar", cut: str = "layer2", **settings: Any) -> list[ck.Task]:
    """Two small tasks with the same classes and other images."""
    return [
        ck.Task(name, data_set(name, seed=seed), model, cut, size=(16, 16), **settings)
        for seed, name in enumerate(("left", "right"))
    ]


def weights(fit: ck.Fit) -> dict[str, torch.Tensor]:
    """All that was trained, by name."""
    return {f"{name}/{key}": value for name in fit.tasks for key, value in fit.weights(name).items()} | {
        f"{name}/{key}": value
        for name, head in fit.auxiliary.items()
        for key, value in head.module.state_dict().items()
    }


def same(left: ck.Fit, right: ck.Fit) -> bool:
    """Whether two fits hold bitwise equal weights and buffers."""
    return all(torch.equal(value, weights(right)[key]) for key, value in weights(left).items())


def how(fit: ck.Fit) -> dict[str, str]:
    """What the run's manifest says of its execution."""
    return fit.run["environment"]["execution"]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Torch's compiler without the code generator, which takes half a minute; counts what is compiled."""
    counter = CompileCounterWithBackend("aot_eager")
    objective._compiled.cache_clear()
    torch._dynamo.reset()
    monkeypatch.setattr(objective, "BACKEND", counter)
    yield counter
    objective._compiled.cache_clear()
    torch._dynamo.reset()


def test_a_compiled_run_computes_what_an_eager_one_does(traced: CompileCounterWithBackend) -> None:
    eager = quick(steps=3).fit(pair(), ALL)
    compiled = quick(steps=3, execution="compile").fit(pair(), ALL)
    assert how(compiled) == {"mode": "compile", "reason": "asked for"}
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert compiled.plan != eager.plan


@pytest.mark.slow
def test_one_pass_for_all_views_can_be_compiled(traced: CompileCounterWithBackend) -> None:
    settings: dict[str, Any] = {
        "steps": 3,
        "optimizer": "sgd",
        "lr": 0.05,
    }  # Adam follows the sign of rounding
    eager = quick(passes="separate", **settings).fit(pair(), ALL)
    compiled = quick(passes="fused", execution="compile", **settings).fit(pair(), ALL)
    assert how(compiled) == {"mode": "compile", "reason": "asked for"}
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_what_is_compiled_serves_the_next_task_and_the_next_seed(traced: CompileCounterWithBackend) -> None:
    quick(steps=2, execution="compile").fit(pair(), ["identical_init"])
    assert traced.frame_count == 1
    again = quick(steps=2, execution="compile", seed=1).fit(pair(), ["identical_init"])
    assert traced.frame_count == 1
    eager = quick(steps=2, seed=1).fit(pair(), ["identical_init"])
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(again)[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_the_code_generator_of_torch_computes_the_same() -> None:
    """With SGD: Adam's first steps are the signs of gradients, rounded ones too."""
    eager = quick(steps=3, optimizer="sgd").fit(pair(), ALL)
    compiled = quick(steps=3, optimizer="sgd", execution="compile").fit(pair(), ALL)
    assert how(compiled)["mode"] == "compile"
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-3, atol=1e-4, msg=name)


class Undeclared:
    """Its loss is declared to do anything."""

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        return {"pull": step.features.square().mean()}  # type: ignore[union-attr]


def test_a_plugin_without_a_declared_effect_keeps_the_run_eager_and_is_named() -> None:
    factories = {"undeclared": Undeclared}
    eager = quick(steps=2).fit(pair(), ["undeclared"], factories=factories)
    fit = quick(steps=2, execution="compile").fit(pair(), ["undeclared"], factories=factories)
    assert how(fit)["mode"] == "eager"
    assert "the plugin 'undeclared' has the effect 'host'; declare @effect('pure')" in how(fit)["reason"]
    assert same(eager, fit)


def test_a_network_that_draws_random_numbers_is_not_compiled() -> None:
    tasks = pair(kwargs={"drop_rate": 0.5}, model="resnet18", cut="layer2")[:1]
    fit = quick(steps=1, execution="compile").fit(tasks)
    assert how(fit)["mode"] == "eager"
    assert "the network of the task 'left' draws random numbers" in how(fit)["reason"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(("requested", "left"), [("graph", "eager"), ("compile+graph", "compile")])
def test_without_a_gpu_nothing_is_captured(
    traced: CompileCounterWithBackend, requested: Any, left: str
) -> None:
    fit = quick(steps=1, execution=requested).fit(pair()[:1])
    assert how(fit)["mode"] == left
    assert "a CUDA graph needs a CUDA device, and this run is on cpu" in how(fit)["reason"]


def test_a_step_that_computes_something_else_is_found_before_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong:
        def __init__(self, objective: Objective) -> None:
            self.objective = objective

        def __call__(self, step: Step, seeds: Any = ()) -> Outcome:
            total, terms, answers = self.objective(step, seeds)
            return total * 1.01, terms, answers

    monkeypatch.setattr(execution_selection, "Compiled", Wrong)
    fit = quick(steps=2, execution="compile").fit(pair()[:1])
    assert "task 'left': compiled gradients differ by 1.0e-02 of their norm" in how(fit)["reason"]
    assert same(fit, quick(steps=2).fit(pair()[:1]))


def test_a_step_that_cannot_be_compiled_runs_eager_with_the_compilers_reason(
    traced: CompileCounterWithBackend,
) -> None:
    class Reads:
        """Is declared pure and is not: it reads a value from the device."""

        @ck.hookimpl
        @effect("pure")
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
            norm = step.features.square().mean()  # type: ignore[union-attr]
            return {"norm": norm * (2 if norm.item() > 0 else 1)}

    fit = quick(steps=1, execution="compile").fit(pair()[:1], ["reads"], factories={"reads": Reads})
    assert "torch.compile cannot compile the step" in how(fit)["reason"]


def test_deterministic_forbids_trials_and_leaves_torch_as_it_was() -> None:
    seen: list[bool] = []

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            seen.append(torch.are_deterministic_algorithms_enabled())

    fit = quick(steps=1, deterministic=True).fit(pair()[:1], ["watch"], factories={"watch": Watch})
    assert how(fit) == {"mode": "eager", "reason": "deterministic=True forbids trials"}
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()


def test_a_resumed_run_does_what_the_first_one_settled_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: CompileCounterWithBackend
) -> None:
    whole = quick(steps=4, execution="compile").fit(pair()[:1], ["dcc"])

    class Kill:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 2 and not resumed:
                raise KeyboardInterrupt

    resumed: list[bool] = []
    result = Execution("compile", "asked for")
    monkeypatch.setattr("compatkit.training.prepare.select_execution", lambda _: result)
    trainer = quick(steps=4, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(pair()[:1], ["dcc", "kill"], factories={"kill": Kill})
    monkeypatch.undo()
    monkeypatch.setattr(objective, "BACKEND", traced)
    resumed.append(True)
    ended = trainer.fit(pair()[:1], ["dcc", "kill"], factories={"kill": Kill})
    assert how(ended)["mode"] == "compile"  # "auto" would have said eager here
    assert same(whole, ended)


def test_a_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, traced: CompileCounterWithBackend) -> None:
    """As on a GPU, with the clock of this machine: the run after it is bitwise the run without it."""
    plain = quick(steps=3).fit(pair(augment=("crop", "flip"))[:1], ["dcc"])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(execution_selection, "MIN_SECONDS", 0)
    monkeypatch.setattr(execution_selection, "STEPS", 2)
    took: list[str] = []
    seconds = execution_selection._seconds

    def never(loop: Any, mode: Any) -> float:
        took.append(mode)
        return seconds(loop, mode) * (1 if mode == "eager" else 1000)

    monkeypatch.setattr(execution_selection, "_seconds", never)
    monkeypatch.setattr("compatkit.training.prepare.select_execution", execution_selection.fastest)
    tried = quick(steps=3).fit(pair(augment=("crop", "flip"))[:1], ["dcc"])
    assert took == ["eager", "compile"]
    assert how(tried)["mode"] == "eager" and "a trial of 2 steps" in how(tried)["reason"]
    assert same(plain, tried)


def test_a_trial_does_not_call_plugins_that_do_more_than_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts:
        calls = 0

        @ck.hookimpl
        def compatkit_views(self, step: Step, batch: Batch) -> Batch:
            Counts.calls += 1
            return batch

    monkeypatch.setattr("compatkit.training.prepare.select_execution", execution_selection.fastest)
    fit = quick(steps=2).fit(pair()[:1], ["counts"], factories={"counts": Counts})
    assert how(fit)["reason"] == "a trial would call the plugin 'counts', whose effect is 'host'"
    assert Counts.calls == 2


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="'execution' must be one of auto, eager, compile, graph"):
        quick(steps=1, execution="jit").fit(pair()[:1])


class Replayed:
    """Stands for a captured step where there is no GPU: takes the step as it is, times a factor."""

    factor = 1.0

    def __init__(self, train_step: Any, untouched: Any, steps: Any) -> None:
        (self.task_loop,), self.train_step = train_step.args, train_step

    def replay(self, steps: Any) -> Any:
        before = [tensor.detach().clone() for tensor in self.task_loop.trainable]
        measured = self.train_step(steps)
        with torch.no_grad():
            for parameter, old in zip(self.task_loop.trainable, before, strict=True):
                parameter.copy_(old + self.factor * (parameter - old))
        return measured


@pytest.mark.parametrize(
    ("factor", "message"),
    [(1.0, None), (1.01, "weight updates of a replayed step differ by 1.0e-02 of their norm")],
)
def test_a_replayed_step_is_compared_before_the_first(
    monkeypatch: pytest.MonkeyPatch, factor: float, message: str | None
) -> None:
    monkeypatch.setattr("compatkit.training.execution_selection.Captured", Replayed)
    monkeypatch.setattr(Replayed, "factor", factor)
    with prepare(FitRequest(quick(steps=2), pair()[:1], ["dcc"])) as start:
        (task_loop,) = start.loop.task_loops.values()
        before = [tensor.detach().clone() for tensor in start.loop.trainable]
        result = replay_difference(start.loop, task_loop, Execution("graph", "on trial"))
        assert result is None if message is None else message in str(result)
        assert all(torch.equal(tensor, old) for tensor, old in zip(start.loop.trainable, before, strict=True))
        assert start.loop.execution.mode == "eager"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_step_that_cannot_be_captured_says_why() -> None:
    with prepare(FitRequest(quick(steps=2), pair()[:1])) as start:
        (task_loop,) = start.loop.task_loops.values()
        result = replay_difference(start.loop, task_loop, Execution("graph", "on trial"))
    assert str(result).startswith("the step cannot be captured (")
