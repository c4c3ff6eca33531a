"""Runs at once by vmap: each is the run alone within rounding; what cannot be stacked is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import torch
from small import data_set, quick
from swept import TASK
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.sweeps.ensembles import Ensemble, Unsuited, quiet
from compatkit.experiments.sweeps.members import train
from compatkit.experiments.sweeps.results import accuracies
from compatkit.hooks import effect
from compatkit.training.fit import History
from compatkit.training.prepare import FitRequest, prepare

STEPS = 3


def tasks(backbone: str = "resnet8_cifar", channels: int = 1, **settings: Any) -> list[ck.Task]:
    given = {"size": (8, 8), "channels": channels}
    return [
        ck.Task(name, data_set(name, seed=seed, **given), backbone, "layer2", size=(8, 8), **settings)  # type: ignore[arg-type]
        for seed, name in enumerate(("left", "right"))
    ]


def trainers(**settings: Any) -> list[ck.Trainer]:
    chosen = {"steps": STEPS, "optimiser": "sgd", "device": "cpu", **settings}
    return [quick(**chosen, seed=seed) for seed in range(3)]


@pytest.fixture
def begin() -> Iterator[Any]:
    """Return what begins runs that differ in the seed; they are left at the end of the test."""
    with ExitStack() as stack:

        def members(
            trainers: Sequence[ck.Trainer], given: Sequence[ck.Task], *methods: Any, **more: Any
        ) -> Any:
            return [stack.enter_context(prepare(FitRequest(one, given, methods, **more))) for one in trainers]

        yield members


def states(fit: ck.Fit) -> dict[str, torch.Tensor]:
    parts = {f"{n}.{s}": getattr(t, s) for n, t in fit.tasks.items() for s in ("extractor", "head")}
    parts |= {name: head.module for name, head in fit.auxiliary.items()}
    return {f"{name}.{key}": v for name, one in parts.items() for key, v in one.state_dict().items()}


class Projects:
    """Trains a layer of its own."""

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.layer = setup.own("layer", nn.Linear(32, 2))

    @ck.hookimpl
    @effect("pure")
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        assert step.features is not None
        return {"pull": (self.layer(step.features.mean((2, 3))) - 1).square().mean()}


def test_a_module_of_a_plugin_is_each_members_own(begin: Any) -> None:
    chosen, more = trainers(), {"factories": {"mine": Projects}}
    members = begin(chosen, tasks(), "mine", **more)
    rows, _ = train(members)
    for trainer, history in zip(chosen, rows, strict=True):
        alone = trainer.fit(tasks(), ["mine"], **more).history
        assert alone["left/mine/pull"] == pytest.approx(History(history)["left/mine/pull"], rel=1e-4)
    weights = [one.loop.setup.owners["plugin.mine.layer"].get_parameter("weight") for one in members]
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(
    "methods",
    [
        [],
        ["identical_init", "dcc", "rotation_prediction"],
        [ck.use("orthogonality", weight=0.01, kind="so", layers="conv1")],
        ["jigsaw", ck.use("colourisation", cells=2)],
    ],
    ids=["none", "all", "weights", "pixels"],
)
def test_a_member_is_the_run_alone_within_rounding_buffers_included(
    methods: Sequence[str | ck.Use], begin: Any
) -> None:
    """Weights, running statistics and losses agree to 1e-5 a step; crops, flips and order are each member's own."""
    chosen = trainers()
    given = tasks(augment=("crop", "flip"), channels=3)
    members = begin(chosen, given, *methods)
    rows, errors = train(members)
    assert not errors
    for trainer, member, history in zip(chosen, members, rows, strict=True):
        alone, together = trainer.fit(given, methods), member.finished(member.manifest, history)
        expected, got = states(alone), states(together)
        assert max(float((expected[key] - got[key]).abs().max()) for key in expected) < 1e-5 * STEPS
        for row, other in zip(alone.history, history, strict=True):
            assert row["losses"] == pytest.approx(other["losses"], rel=1e-6, abs=1e-5 * STEPS)
            assert (row["task"], row["step"]) == (other["task"], other["step"])


def test_layers_of_members_are_recorded_as_those_of_the_run_alone(begin: Any) -> None:
    """The reverse pass starts at hundreds, so that losses are compared by their size."""
    chosen, given = trainers()[:2], tasks()[:1]
    methods = [ck.use("reverse_pass", weight=1e-3)]
    members = begin(chosen, given, *methods)
    rows, errors = train(members)
    assert not errors
    for trainer, member, history in zip(chosen, members, rows, strict=True):
        alone = trainer.fit(given, methods)
        expected, got = states(alone), states(member.finished(member.manifest, history))
        assert max(float((expected[key] - got[key]).abs().max()) for key in expected) < 1e-5 * STEPS
        for row, other in zip(alone.history, history, strict=True):
            losses = {
                key: value for key, value in row["losses"].items() if not key.endswith("gradient_ratio")
            }
            assert losses == pytest.approx(other["losses"], rel=1e-5)  # a stacked step reports no ratio


def test_an_estimate_that_draws_layers_is_refused(begin: Any) -> None:
    chosen = trainers()
    members = begin(chosen, tasks()[:1], ck.use("reverse_pass", sample_layers=0.5))
    with pytest.raises(
        Unsuited, match="losses of the regularizer 'reverse_pass' have side effects in Python"
    ):
        train(members)


def test_what_each_run_scales_by_its_own_gradient_is_refused(begin: Any) -> None:
    """Also from a later step on, which a look at the first one would not show."""
    chosen = trainers()
    members = begin(chosen, tasks()[:1], ck.use("reverse_pass", start=2, balance="gradient"))
    with pytest.raises(Unsuited, match="'reverse_pass' balances its gradient"):
        train(members)


def test_runs_without_a_step_are_refused(begin: Any) -> None:
    chosen = trainers(steps=0)
    with pytest.raises(Unsuited, match="no step to take"):
        train(begin(chosen, tasks()[:1]))


def test_a_member_whose_loss_is_not_finite_is_masked_and_the_others_go_on(begin: Any) -> None:
    chosen = trainers()
    members = begin(chosen, tasks()[:1])
    ensemble = Ensemble.of(members)
    with torch.no_grad():
        next(iter(ensemble.weights.values()))[1].fill_(float("nan"))
    with quiet():
        for number in range(STEPS):
            losses = ensemble.step("left", number).losses["task"]
            assert losses.isfinite().tolist() == [True, False, True]
    ensemble.give_back(members)
    alone = states(chosen[2].fit(tasks()[:1]))
    got = states(members[2].finished(members[2].manifest, []))
    assert max(float((alone[key] - got[key]).abs().max()) for key in alone) < 1e-5 * STEPS


def test_a_member_that_is_masked_is_a_failed_run_and_the_others_are_published(
    recipe: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    step = Ensemble.step

    def burst(self: Ensemble, task: str, number: int) -> Any:
        result = step(self, task, number)
        worst = torch.tensor([1.0, float("nan")]) if len(self) == 2 else torch.ones(len(self))
        return attrs.evolve(result, losses={**result.losses, "task": result.losses["task"] * worst})

    monkeypatch.setattr(Ensemble, "step", burst)
    file = recipe('"trainer.seed" = [0, 1]', change=((TASK, ""),))
    outcome = ck.Sweep.read(file).run(tmp_path / "parts", backend="vmap")
    assert [one.state for one in outcome.records] == ["done", "failed"]
    assert "The loss 'task' of task 'left' is not finite between steps 0 and 1" in outcome.failed[0].reason


class Watch:
    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Look at one run."""


class Host:
    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        return {"a": step.features.mean()}  # type: ignore[union-attr]


class Branch:
    @ck.hookimpl
    @effect("pure")
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        value = step.features.mean()  # type: ignore[union-attr]
        return {"a": value if value > 0 else -value}


class Draw:
    """Adds a loss that depends on the seed through a number drawn before the first step."""

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.factor = torch.rand((), generator=setup.rng("draw"))

    @ck.hookimpl
    @effect("pure")
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        return {"a": step.features.square().mean() * self.factor}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        (Watch, "'plugin' takes part in after_step, which is called for one run at a time"),
        (Host, "'plugin' have side effects in Python"),
        (Branch, "torch.func.vmap does not take it: .*data-dependent control flow"),
        (
            Draw,
            "the first loss of run 2 of task 'left' is .* depends on the seed in a way that cannot be stacked",
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(plugin: type, told: str, begin: Any) -> None:
    chosen = trainers()
    members = begin(chosen, tasks()[:1], "plugin", factories={"plugin": plugin})
    with pytest.raises(Unsuited, match=told):
        train(members)


def test_dropout_is_refused(begin: Any) -> None:
    chosen = trainers()
    members = begin(chosen, tasks(kwargs={"drop_rate": 0.5})[:1])
    with pytest.raises(Unsuited, match=r"vmap does not take it: .*random"):
        train(members)


def test_a_sweep_by_vmap_is_published_and_measured_and_says_so(recipe: Any, tmp_path: Any) -> None:
    file = recipe('"trainer.seed" = [0, 1]', change=((TASK, ""),))
    outcome = ck.Sweep.read(file).run(tmp_path / "parts", backend="vmap")
    assert [(one.state, one.backend) for one in outcome.records] == [("done", "vmap")] * 2
    assert set(accuracies(outcome.records[1])) == {("left", "left")}
    store = ck.Registry.open(tmp_path / "parts").store
    manifest = store.manifest("digits/seed1/left.head")
    assert manifest.training["seed"] == 1 and manifest.training["environment"]["together"] == 2
    assert outcome.choice["trials"]["all runs"]["runs"] == 2


def test_auto_takes_what_the_trial_says_and_keeps_it(recipe: Any, tmp_path: Any, monkeypatch: Any) -> None:
    from compatkit.experiments.sweeps import backends
    from compatkit.experiments.sweeps.together import Trial

    said = [Trial(2, 10.0, 2.0), Trial(2, 10.0, 9.9)]
    monkeypatch.setattr(backends, "attempted", lambda orders, bench: said.pop(0))
    file = recipe('"trainer.steps" = [1, 2]', '"trainer.seed" = [0, 1]', change=((TASK, ""),))
    heard: list[str] = []
    outcome = ck.Sweep.read(file).run(tmp_path / "parts", say=heard.append)
    assert [one.backend for one in outcome.records] == ["vmap", "vmap", "sequential", "sequential"]
    assert outcome.choice["backend"] == "vmap+sequential"
    assert (
        "a step of 2 runs takes 2.00 ms at once and 10.00 ms one after the other: 5.0 x, so at once"
        in heard[0]
    )
    assert heard[1].startswith("trainer.steps = 2: ") and heard[1].endswith("1.0 x, so sequential")
    (outcome.folder / "steps1-seed0.json").unlink()
    (outcome.folder / "steps1-seed1.json").unlink()
    again = ck.Sweep.read(file).run(tmp_path / "parts", resume=True)  # no trial: said is empty
    assert [one.backend for one in again.records] == ["vmap", "vmap", "sequential", "sequential"]


def test_vmap_that_was_asked_for_and_cannot_be_is_refused(recipe: Any, tmp_path: Any) -> None:
    change = ((TASK, ""), ('split = "layer2"', 'split = "layer2"\nkwargs = { drop_rate = 0.5 }'))
    sweep = ck.Sweep.read(recipe('"trainer.seed" = [0, 1]', change=change))
    with pytest.raises(UsageError, match=r"The back end vmap cannot do these runs \(all runs\): .*random"):
        sweep.run(tmp_path / "parts", backend="vmap")
    outcome = sweep.run(tmp_path / "parts")
    assert outcome.choice["backend"] == "sequential" and not outcome.failed


def test_settings_that_a_stacked_step_does_not_know_are_named(begin: Any) -> None:
    chosen = trainers(clip_norm=1.0)
    with pytest.raises(Unsuited, match="the trainer's clip_norm is for one run at a time"):
        train(begin(chosen, tasks()[:1]))
