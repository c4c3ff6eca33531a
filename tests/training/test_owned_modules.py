"""Modules that plugins make: trained, kept and listed where the run owns them, and refused where nothing would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import PluginError, UsageError

TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]


class Projects:
    """Pulls the output of a layer of its own to 1; ``made`` has the modules of the last run."""

    made: nn.Module

    def module(self, setup: ck.SetUp) -> nn.Module:
        return setup.own("layer", nn.Linear(32, 2))

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.layer = self.module(setup)
        type(self).made = self.layer

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        features = step.features
        assert features is not None
        return {"pull": (self.layer(features.mean((2, 3))) - 1).square().mean()}


class Builds(Projects):
    """Has a second head of the first task's shape, built from its blueprint."""

    def module(self, setup: ck.SetUp) -> nn.Module:
        return setup.build(setup.tasks["left"].head_blueprint, "second", 1)

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return {"pull": (self.layer(step.features) - 1).square().mean()}


OWNERS = {Projects: "plugin.mine.layer", Builds: "plugin.mine.second-1"}


@pytest.mark.parametrize("kind", OWNERS)
def test_a_module_of_a_plugin_is_trained_and_listed(kind: type[Projects]) -> None:
    owner = OWNERS[kind]
    explanation = quick(steps=9).explain(TASKS, ["mine"], factories={"mine": kind})
    (line,) = [row for row in explanation.owners if row["owner"] == owner]
    assert line["moved_by"] == f"{owner} (adam)" and owner in str(explanation)
    before = {name: value.clone() for name, value in kind.made.state_dict().items()}
    assert line["parameters"] == [name for name, _ in kind.made.named_parameters()]
    fit = quick(steps=3, ema=0.5).fit(TASKS, ["mine"], factories={"mine": kind})
    after = dict(kind.made.named_parameters())
    assert all(not torch.equal(before[name], value) for name, value in after.items())
    assert not kind.made.training
    assert fit.averages is not None and set(fit.averages[owner]) == set(before)


def test_its_weights_follow_from_the_seed_alone() -> None:
    drawn = []
    for seed, global_seed in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(global_seed)
        quick(steps=0, seed=seed).fit(TASKS, ["mine"], factories={"mine": Projects})
        drawn.append(Projects.made.get_parameter("weight"))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("kind", OWNERS)
def test_a_run_that_was_killed_goes_on_with_it_bit_by_bit(
    kind: type[Projects], tmp_path: Path, killed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quick(steps=6).fit(TASKS, ["mine"], factories={"mine": kind})
    expected = {name: value.clone() for name, value in kind.made.state_dict().items()}
    trainer = quick(steps=6, checkpoint=tmp_path / "run.safetensors", checkpoint_every=3)
    fit = ck.Trainer.fit
    with monkeypatch.context() as patch:
        patch.setattr(ck.Trainer, "fit", lambda *args: fit(*args, factories={"mine": kind}))
        killed(trainer, TASKS, ["mine"], after=3)
    assert any(not torch.equal(value, expected[name]) for name, value in kind.made.state_dict().items())
    resumed = trainer.fit(TASKS, ["mine"], factories={"mine": kind})
    assert all(torch.equal(value, expected[name]) for name, value in kind.made.state_dict().items())
    assert same_parts(whole, resumed) and whole.history == resumed.history


def test_two_instances_own_a_module_each() -> None:
    uses = [ck.use("mine", as_=name) for name in ("one", "my.other")]
    explanation = quick(steps=1).explain(TASKS, uses, factories={"mine": Projects})
    assert [owner["owner"] for owner in explanation.owners][-2:] == [
        "plugin.my.other.layer",
        "plugin.one.layer",
    ]
    quick(steps=1).fit(TASKS, uses, factories={"mine": Projects})


class Unowned(Projects):
    def module(self, setup: ck.SetUp) -> nn.Module:
        return nn.Linear(32, 2)


def refused(factory: Callable[[], object], uses: Any = "mine", **settings: Any) -> PluginError:
    with pytest.raises(PluginError) as caught:
        quick(**{"steps": 2, **settings}).fit(TASKS, [uses], factories={"mine": factory})
    return caught.value


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"execution": "graph"}, {"deterministic": True}])
def test_a_layer_that_nobody_owns_is_refused_in_the_first_step(settings: dict[str, Any]) -> None:
    error = refused(Unowned, **settings)
    assert (error.code, error.subject, error.hook) == ("plugin", "mine", "compatkit_set_up")
    assert "'layer.weight'" in str(error) and "setup.own" in str(error)


class JoinsLater(Unowned):
    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return super().compatkit_losses(step) if step.number >= 3 else {}


def test_a_layer_that_joins_later_is_refused_soon_after() -> None:
    assert refused(JoinsLater, steps=8).subject == "mine"


@pytest.mark.timeout(900)
def test_a_compiled_loss_is_followed_too() -> None:
    unowned = type("Unowned", (Unowned,), {"compatkit_losses": ck.hookimpl(ck.effect("pure")(_pull))})
    assert refused(unowned, execution="compile").subject == "mine"
    late = ck.use("mine", start=1)
    assert refused(unowned, late, execution="compile").subject == "mine"


def _pull(self: Any, step: ck.Step) -> Mapping[str, Tensor]:
    return {"pull": (self.layer(step.features.mean((2, 3))) - 1).square().mean()}  # type: ignore[union-attr]


class Scales(Projects):
    """Keeps a parameter or tensor in the way that ``keep`` says."""

    keep: Callable[[Any, Tensor], None] = setattr

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        type(self).keep(self, torch.ones(()))

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return {"pull": (self.scale() * step.features).square().mean()}  # type: ignore[attr-defined]


def as_parameter(plugin: Any, value: Tensor) -> None:
    plugin.kept = {"scale": nn.Parameter(value)}
    plugin.scale = lambda: plugin.kept["scale"]


def as_tensor(plugin: Any, value: Tensor) -> None:
    plugin.kept = [value.requires_grad_()]
    plugin.scale = lambda: plugin.kept[0]


def out_of_sight(plugin: Any, value: Tensor) -> None:
    plugin.scale = iter([nn.Parameter(value)] * 9).__next__


@pytest.mark.parametrize(
    ("keep", "names"),
    [(as_parameter, "'kept.scale'"), (as_tensor, "'kept.0'"), (out_of_sight, r"that it does not keep")],
)
def test_a_parameter_is_found_wherever_it_is_kept(keep: Callable[..., None], names: str) -> None:
    error = refused(type("Scales", (Scales,), {"keep": keep}))
    assert error.subject == "mine" and names in str(error)


def test_one_that_begins_later_is_refused_when_it_begins() -> None:
    seen: list[int] = []

    class Late(Unowned):
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            seen.append(step.number)

    assert refused(Late, ck.use("mine", start=2), steps=4).subject == "mine"
    quick(steps=2).fit(TASKS, [ck.use("mine", start=2)], factories={"mine": Late})
    assert seen == []


def test_of_several_the_one_is_named_whose_it_is() -> None:
    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit(TASKS, ["dcc", "mine", "owned"], factories={"mine": Unowned, "owned": Projects})
    assert caught.value.subject == "mine"


class Allowed(Projects):
    """Reaches what may be reached: a frozen layer, a tensor of this step, another task's weights as they are."""

    def module(self, setup: ck.SetUp) -> nn.Module:
        self.other = setup.tasks["right"]
        return nn.Linear(32, 2).requires_grad_(False)

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        images = step.batch.images.detach().requires_grad_()
        features = step.extract(images, write_statistics=False)
        (slope,) = torch.autograd.grad(features.square().mean(), images, create_graph=True)
        pull = self.layer(features.mean((2, 3))).square().mean()
        weights = {name: value.detach() for name, value in self.other.head.named_parameters()}
        outputs = torch.func.functional_call(self.other.head, weights, (features,))
        return {"slope": slope.square().mean(), "pull": pull, "head": outputs.square().mean()}


@pytest.mark.parametrize("tasks", [TASKS, TASKS[1:]])
def test_frozen_layers_tensors_of_a_step_and_networks_of_tasks_may_be_reached(tasks: list[ck.Task]) -> None:
    fit = quick(steps=2).fit(tasks, ["mine"], factories={"mine": Allowed})
    assert fit.history["right/mine/slope"].shape == (2,)


def test_a_frozen_module_may_be_owned_and_stays() -> None:
    class Frozen(Projects):
        def module(self, setup: ck.SetUp) -> nn.Module:
            self.first = nn.Linear(32, 2).requires_grad_(False)
            self.weight = self.first.weight.clone()
            return setup.own("layer", self.first)

        @ck.hookimpl
        def compatkit_finish(self, setup: ck.SetUp) -> None:
            assert torch.equal(self.first.weight, self.weight) and self.first is self.layer

    explanation = quick(steps=2).explain(TASKS, ["mine"], factories={"mine": Frozen})
    assert [owner["moved_by"] for owner in explanation.owners if owner["owner"] == "plugin.mine.layer"] == [
        None
    ]
    quick(steps=2).fit(TASKS, ["mine"], factories={"mine": Frozen})


OWN: dict[str, Callable[[ck.SetUp], object]] = {
    "no name": lambda setup: setup.own("a.b", nn.Linear(1, 1)),
    "a name that is none": lambda setup: setup.own(3, nn.Linear(1, 1)),  # type: ignore[arg-type]
    "no module": lambda setup: setup.own("scale", nn.Parameter(torch.ones(1))),  # type: ignore[arg-type]
    "lazy": lambda setup: setup.own("lazy", nn.LazyLinear(2)),
    "the name is taken": lambda setup: [setup.own("one", nn.Linear(1, 1)) for _ in range(2)],
    "no key": lambda setup: setup.build(setup.tasks["left"].head_blueprint),
    "the module of a task": lambda setup: setup.own("head", setup.tasks["left"].head),
}


@pytest.mark.parametrize("what", OWN)
def test_what_cannot_be_owned(what: str) -> None:
    class Owns:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            OWN[what](setup)

    with pytest.raises(UsageError) as caught:
        quick(steps=1).fit(TASKS, ["mine"], factories={"mine": Owns})
    # Who holds a parameter of another owner is found when all have been set up.
    assert caught.value.code == ("usage" if what == "the module of a task" else "plugin")


def test_nothing_is_owned_after_the_set_up() -> None:
    class Late(Projects):
        @ck.hookimpl
        def compatkit_finish(self, setup: ck.SetUp) -> None:
            setup.own("late", nn.Linear(1, 1))

    assert refused(Late).hook == "compatkit_finish"


class Rated(Projects):
    """Owns a layer with a rule of its own."""

    rule: ClassVar[dict[str, Any]] = {}

    def module(self, setup: ck.SetUp) -> nn.Module:
        return setup.own("layer", nn.Linear(32, 2), **type(self).rule)


def rated(**rule: Any) -> type[Rated]:
    return type("Rated", (Rated,), {"rule": rule})


def moved(kind: type[Rated], **settings: Any) -> tuple[ck.Fit, dict[str, Tensor]]:
    trainer = quick(**{"steps": 4, "lr": 0.01, "schedule": ck.Schedule("step", every=2), **settings})
    fit = trainer.fit(TASKS, ["mine"], factories={"mine": kind})
    return fit, {name: value.detach().clone() for name, value in kind.made.named_parameters()}


def test_the_trainers_own_values_change_nothing_bit_by_bit() -> None:
    plain, layer = moved(rated())
    same, again = moved(rated(optimizer="adam", lr=0.01, momentum=0.9, weight_decay=1e-7))
    assert same_parts(plain, same)
    assert all(torch.equal(value, again[name]) for name, value in layer.items())


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (None, (1.0, 1.0, 0.1, 0.1)),
        ("constant", (1.0,) * 4),
        (ck.Schedule("step", every=1), (1, 0.1, 0.01, 0.001)),
    ],
    ids=["trainer", "constant", "own"],
)
def test_a_module_has_its_own_optimizer_and_rate(schedule: Any, factors: tuple[float, ...]) -> None:
    """Recomputed by hand: torch's SGD over the gradients of each step, with the rate of each step."""
    gradients: list[list[Tensor]] = []

    class Notes(Rated):
        rule: ClassVar[dict[str, Any]] = {
            **{"optimizer": "sgd", "lr": 0.5, "momentum": 0.5, "weight_decay": 0.01},
            **({"schedule": schedule} if schedule else {}),
        }

        @ck.hookimpl
        def compatkit_after_backward(self, step: Any) -> None:
            gradients.append([value.grad.clone() for value in self.layer.parameters()])

    _, start = moved(Notes, steps=0)
    _, result = moved(Notes)
    copy = [nn.Parameter(value.clone()) for value in start.values()]
    optimizer = torch.optim.SGD(copy, lr=0.5, momentum=0.5, weight_decay=0.01, fused=True)
    for number, found in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = 0.5 * factors[number // 2]
        for parameter, gradient in zip(copy, found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    assert len(gradients) == 8
    for mine, other in zip(copy, result.values(), strict=True):
        torch.testing.assert_close(mine.data, other)


def test_optimizers_of_timm_and_options() -> None:
    _, plain = moved(rated(optimizer="adamw", lr=0.02), warmup=0)
    _, other = moved(rated(optimizer="adamw", lr=0.02, optimizer_options={"betas": [0.5, 0.9]}), warmup=0)
    assert any(not torch.equal(value, other[name]) for name, value in plain.items())


def test_its_rule_is_part_of_the_plan_and_listed() -> None:
    rule: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "schedule": ck.Schedule("constant", warmup=3)}
    explanation = quick(steps=2).explain(TASKS, ["mine"], factories={"mine": rated(**rule)})
    (line,) = [row for row in explanation.owners if row["owner"] == "plugin.mine.layer"]
    assert line["moved_by"] == "plugin.mine.layer (sgd, lr 0.5)"
    stated = explanation.chosen["mine"]["optimizers"]["layer"]
    assert stated["lr"] == 0.5 and stated["schedule"]["warmup"] == 3
    plain, _ = moved(rated())
    changed, _ = moved(rated(lr=0.02))
    assert plain.plan != changed.plan


def test_a_killed_run_goes_on_with_its_optimizer_bit_by_bit(
    tmp_path: Path, killed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = rated(optimizer="sgd", lr=0.3, momentum=0.8)
    whole, expected = moved(kind, steps=6)
    trainer = quick(
        **{"steps": 6, "lr": 0.01, "schedule": ck.Schedule("step", every=2)},
        **{"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 3},
    )
    fit = ck.Trainer.fit
    with monkeypatch.context() as patch:
        patch.setattr(ck.Trainer, "fit", lambda *args: fit(*args, factories={"mine": kind}))
        killed(trainer, TASKS, ["mine"], after=3)
    resumed = trainer.fit(TASKS, ["mine"], factories={"mine": kind})
    assert all(torch.equal(value, expected[name]) for name, value in kind.made.named_parameters())
    assert same_parts(whole, resumed)
    with pytest.raises(ck.errors.TrainingError, match="another plan"):
        trainer.fit(TASKS, ["mine"], factories={"mine": rated(optimizer="sgd", lr=0.2, momentum=0.8)})


@pytest.mark.parametrize(
    "rule",
    [
        {"lr": 0.0},
        {"lr": "fast"},
        {"optimizer": "sgdd"},
        {"momentum": -1},
        {"weight_decay": -1.0},
        {"schedule": "linear"},
        {"optimizer_options": {"no_such": 1}},
        {"optimizer": "adamw", "optimizer_options": {"betas": "x"}},
    ],
    ids=lambda rule: "-".join(rule),
)
def test_rules_that_no_optimizer_takes_are_refused_before_the_first_step(rule: dict[str, Any]) -> None:
    with pytest.raises(PluginError) as caught:
        quick(steps=1).explain(TASKS, ["mine"], factories={"mine": rated(**rule)})
    assert (caught.value.plugin, caught.value.hook) == ("mine", "compatkit_set_up")
