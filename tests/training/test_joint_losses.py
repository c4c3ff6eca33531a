"""Losses of several tasks on the same images: they move all networks in the round, as one gradient step would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from published import FOLDER, factories, module
from small import data_set, grouped, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import PluginError, TrainingError
from compatkit.training import objective
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision
from compatkit.training.testing import assert_regularizer

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant"}
BARLOW = factories("cross_barlow")
TASKS = [grouped("a"), grouped("b")]


def tying(joint: Any) -> dict[str, Tensor]:
    (a, step), (b, other) = joint.steps.items()
    pairs = [(a, step), (b, other)]
    losses = [
        (joint.extract(a, one.batch.images, source=name) - joint.extract(b, one.batch.images, source=name))
        for name, one in pairs
    ]
    return {"tie": torch.stack([loss.square().mean() for loss in losses]).mean()}


def joining(join: Callable[[Any], Any], *further: type) -> Callable[[], Any]:
    class Joining(*further):  # type: ignore[misc]
        @ck.hookimpl
        def compatkit_joint_losses(self, joint: Any) -> Any:
            return join(joint)

    return Joining


def trained(
    join: Callable[[Any], Any] | None = tying,
    *uses: Any,
    tasks: list[ck.Task] | None = None,
    made: dict[str, Any] | None = None,
    **settings: Any,
) -> ck.Fit:
    factory = {"joining": joining(join)} if join is not None else {}
    wanted = [*(uses or (["joining"] if join else []))]
    trainer = quick(**{"steps": 3, **SGD, **settings})
    return trainer.fit(tasks or TASKS, wanted, factories={**factory, **(made or {})})


def weights(fit: ck.Fit) -> list[Tensor]:
    return [value.detach() for name in fit.tasks for value in fit.network(name).parameters()]


def close(left: ck.Fit, right: ck.Fit, within: float = 1e-5) -> None:
    for mine, other in zip(weights(left), weights(right), strict=True):
        torch.testing.assert_close(other, mine, rtol=within, atol=within)


def distance(left: ck.Fit, right: ck.Fit) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(weights(left), weights(right), strict=True))


def test_a_round_is_one_gradient_step_of_the_sum_of_all_losses() -> None:
    """Against a loop that holds both networks and takes one step of one optimizer along dL_a + dL_b + dJ."""
    batches: list[dict[str, Any]] = []

    def note(joint: Any) -> dict[str, Tensor]:
        batches.append({name: step.batch for name, step in joint.steps.items()})
        return tying(joint)

    fit = trained(note, ck.use("joining", weight=0.5), momentum=0.0, weight_decay=0.0)
    states = [prepare_task(task, 0, Precision("cpu", "float32", False)) for task in TASKS]
    networks = nn.ModuleList(nn.Sequential(state.extractor, state.head) for state in states).double().train()
    optimizer = torch.optim.SGD(networks.parameters(), lr=0.1)
    for batch in batches:
        images = [batch[name].images.double() for name in ("a", "b")]
        loss = torch.stack(
            [
                F.cross_entropy(network(shown), batch[name].labels)
                for network, shown, name in zip(networks, images, ("a", "b"), strict=True)
            ]
        ).sum()
        both = [[network[0](shown) for network in networks] for shown in images]
        tied = torch.stack([(left - right).square().mean() for left, right in both]).mean()
        optimizer.zero_grad()
        (loss + 0.5 * tied).backward()
        optimizer.step()
    for mine, other in zip(weights(fit), networks.parameters(), strict=True):
        torch.testing.assert_close(mine, other.detach().float(), rtol=1e-4, atol=1e-5)
    assert distance(fit, trained(None, momentum=0.0, weight_decay=0.0)) > 1e-4


def test_weight_zero_is_no_plugin_and_phases_count_rounds() -> None:
    plain, none = trained(None), trained(tying, ck.use("joining", weight=0))
    assert same_parts(plain, none)
    late = trained(tying, ck.use("joining", start=2))
    assert ["joining/tie" in row["losses"] for row in late.history] == [False] * 4 + [True] * 2
    assert distance(plain, late) > 1e-5
    stopped = trained(tying, ck.use("joining", stop=1), log_every=3)
    assert [row["losses"]["joining/tie"] > 0 for row in stopped.history] == [True, True]


def test_a_detached_side_does_not_move_and_the_other_does() -> None:
    def one_sided(joint: Any) -> dict[str, Tensor]:
        images = joint.steps["a"].batch.images
        target = joint.extract("b", images, source="a").detach()
        return {"tie": (joint.extract("a", images, source="a") - target).square().mean()}

    plain, tied = trained(None), trained(one_sided)
    of_b = [dict(fit.network("b").state_dict()) for fit in (plain, tied)]
    assert all(torch.equal(value, of_b[1][name]) for name, value in of_b[0].items())
    assert distance(plain, tied) > 1e-4


def test_pieces_give_the_gradients_of_the_whole_batch_and_the_step_may_be_clipped() -> None:
    settings: dict[str, Any] = {"clip_norm": 0.5, "ema": 0.5}
    whole, pieces = trained(**settings), trained(accumulate=4, **settings)
    close(whole, pieces)
    for left, right in zip(whole.history, pieces.history, strict=True):
        assert right["losses"] == pytest.approx(left["losses"], rel=1e-4)
    assert whole.averages is not None and "a.extractor" in whole.averages


def test_bf16_compiled_losses_and_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "BACKEND", "eager")

    def check(joint: Any) -> dict[str, Tensor]:
        assert joint.extract("a", joint.steps["a"].batch.images, source="a").dtype is torch.float32
        return tying(joint)

    trained(check, precision="bf16")
    eager, compiled = trained(), trained(execution="compile")
    assert compiled.run["environment"]["execution"]["mode"] == "compile"
    close(eager, compiled)
    plan = quick(steps=1).explain(TASKS, ["joining"], factories={"joining": joining(tying)})
    assert "Cost of joint_losses" in plan.events


def test_running_statistics_see_each_batch_of_their_own_task_once() -> None:
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate("ab")
    ]
    fit = trained(tasks=tasks, steps=2)
    counts = [value for key, value in fit.weights("a").items() if key.endswith("num_batches_tracked")]
    assert counts and all(int(count) == 2 for count in counts)


def test_images_are_normalized_as_the_extractor_takes_them() -> None:
    bright = ck.Task(
        "b", data_set("b"), "test_resnet", "layer2", size=32, kwargs={"norm_layer": "groupnorm1"},
        normalize={"mean": [0.2], "std": [0.5]},
    )  # fmt: skip
    seen: list[bool] = []

    def check(joint: Any) -> dict[str, Tensor]:
        images = joint.steps["a"].batch.images
        data = [step.task.data for step in joint.steps.values()]
        assert (data[0].mean, data[0].std) != (data[1].mean, data[1].std)
        pixels = images * data[0].std[0] + data[0].mean[0]
        with torch.no_grad():
            expected = joint.steps["b"].task.extract((pixels - data[1].mean[0]) / data[1].std[0])
            torch.testing.assert_close(joint.extract("b", images, source="a"), expected, rtol=1e-4, atol=1e-4)
        seen.append(True)
        return {}

    trained(check, tasks=[grouped("a"), bright], steps=1)
    assert seen


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        (TASKS, ("a", "c")),
        ([grouped("a"), ck.Task("b", data_set("b"), "resnet8_cifar", "layer2", size=16)], ("a", "b")),
    ],
    ids=["name", "size"],
)
def test_images_that_an_extractor_does_not_take(tasks: list[ck.Task], names: tuple[str, str]) -> None:
    def join(joint: Any) -> dict[str, Tensor]:
        return {"x": joint.extract(names[1], joint.steps["a"].batch.images, source=names[0]).mean()}

    with pytest.raises(PluginError) as caught:
        trained(join, tasks=tasks)
    assert (caught.value.plugin, caught.value.hook) == ("joining", "compatkit_joint_losses")
    assert caught.value.__cause__ is not None and caught.value.__cause__.subject in ("c", "a")  # type: ignore[attr-defined]


class Owns:
    """Has a layer of its own, which moves in the step of every task."""

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        type(self).made = self.layer = setup.own("layer", nn.Linear(1, 1))


def test_a_shared_module_gets_its_joint_gradient_once_a_round() -> None:
    """The gradient of a layer in the loss w x 3 is 3: SGD of rate .1 moves it by .3 a round."""

    def join(joint: Any) -> dict[str, Tensor]:
        return {"x": 3 * made[-1].made.weight.sum()}  # type: ignore[attr-defined]

    made: list[type] = []
    factory = joining(join, Owns)
    made.append(factory)  # type: ignore[arg-type]
    fit = quick(steps=0, **SGD).fit(TASKS, ["joining"], factories={"joining": factory})
    assert fit is not None
    start = float(factory.made.weight.detach())  # type: ignore[attr-defined]
    quick(steps=2, momentum=0.0, weight_decay=0.0, **SGD).fit(
        TASKS, ["joining"], factories={"joining": factory}
    )
    assert float(factory.made.weight.detach()) == pytest.approx(start - 2 * 0.3)  # type: ignore[attr-defined]


def test_tasks_without_a_loss_of_their_own_are_trained_and_without_any_refused() -> None:
    tasks = [grouped(name, own_head=False) for name in "ab"]
    start, fit = trained(tasks=tasks, steps=0), trained(tasks=tasks)
    assert distance(start, fit) > 1e-4
    assert set(fit.history[0]["losses"]) == {"joining/tie"}
    with pytest.raises(ck.errors.UsageError):
        trained(lambda joint: {}, tasks=tasks)


class Norm:
    @ck.hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": step.features.square().mean()}


class Sums:
    losses: tuple[str, ...] = ()

    @ck.hookimpl
    def compatkit_combine_gradients(self, step: Any, gradients: Any) -> Any:
        type(self).losses = (*gradients,)
        first, *others = gradients.values()
        return {name: first[name] + sum(each[name] for each in others) for name in first}


def test_joint_losses_are_one_for_a_plugin_that_combines_gradients() -> None:
    made = {"norm": Norm, "sums": Sums}
    plain = trained(tying, "joining", "norm", made=made)
    summed = trained(tying, "joining", "norm", "sums", made=made)
    assert Sums.losses == ("task", "joint", "norm/norm")
    close(plain, summed)
    pieces = trained(tying, "joining", "norm", "sums", made=made, accumulate=2)
    close(plain, pieces)


def test_mixed_images_are_for_the_heads_alone() -> None:
    mixed = [grouped(name, mixup=0.8) for name in "ab"]
    plain: list[Tensor] = []

    def note(joint: Any) -> dict[str, Tensor]:
        plain.append(joint.steps["a"].batch.images.clone())
        return tying(joint)

    trained(note, tasks=mixed, steps=1)
    trained(note, steps=1)
    assert torch.equal(plain[0], plain[1])


def test_numbers_of_rounds_differ_and_a_resumed_run_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    drawn: list[float] = []

    def noisy(joint: Any) -> dict[str, Tensor]:
        factor = torch.rand(()) + torch.rand((), generator=joint.rng("joining"))
        drawn.append(float(factor))
        return {"tie": factor * tying(joint)["tie"]}

    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == stop:
                raise KeyboardInterrupt

    def run(**settings: Any) -> ck.Fit:
        return trained(
            noisy,
            "joining",
            "stop",
            made={"stop": Stop},
            steps=4,
            accumulate=2,
            optimizer="adam",
            lr=0.01,
            **settings,
        )

    stop = -1
    whole = run()
    assert len(set(drawn)) == 8
    stop, saved = 2, {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        run(**saved)
    stop = -1
    resumed = run(**saved)
    assert same_parts(whole, resumed) and whole.history == resumed.history


@pytest.mark.parametrize(
    "join",
    [
        lambda joint: None,
        lambda joint: {"x": 1.0},
        lambda joint: {"x": torch.zeros(())},
        lambda joint: {"x/y": tying(joint)["tie"]},
        lambda joint: 1 / 0,
        lambda joint: {"x": joint.steps["a"].batch.images.mul_(2).mean()},
        lambda joint: {"x": tying(joint)["tie"] * nn.Parameter(torch.ones(()))},
    ],
    ids=["nothing", "number", "no_gradient", "name", "raises", "writes", "untrained"],
)
def test_results_that_are_refused(join: Callable[[Any], Any]) -> None:
    with pytest.raises(PluginError) as caught:
        trained(join)
    assert caught.value.hook in ("compatkit_joint_losses", "compatkit_set_up")


def test_two_losses_of_one_name_and_losses_that_are_not_finite() -> None:
    both = joining(lambda joint: {"norm": tying(joint)["tie"]}, Norm)
    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit(TASKS, ["both"], factories={"both": both})
    assert (caught.value.plugin, caught.value.hook) == ("both", "compatkit_joint_losses")
    with pytest.raises(TrainingError) as failed:
        trained(lambda joint: {"tie": tying(joint)["tie"] * float("nan")})
    assert failed.value.subject == "joining/tie"


def slow(left: Tensor, right: Tensor, offdiagonal: float) -> float:
    """Eq. 1 and 2 of Zbontar et al., value by value."""
    columns = [
        [(each[:, i] - each[:, i].mean()).tolist() for i in range(each.shape[1])] for each in (left, right)
    ]

    def correlation(x: list[float], y: list[float]) -> float:
        return (
            sum(a * b for a, b in zip(x, y, strict=True))
            / (sum(a * a for a in x) * sum(b * b for b in y)) ** 0.5
        )

    total = 0.0
    for i, x in enumerate(columns[0]):
        for j, y in enumerate(columns[1]):
            value = correlation(x, y)
            total += (1 - value) ** 2 if i == j else offdiagonal * value**2
    return total


def test_barlows_loss_by_hand() -> None:
    """Identical features without correlations have no loss; swapped channels have 1 + 1 + 2 lambda."""
    redundancy = module("cross_barlow").redundancy
    white = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert float(redundancy(white, 7 * white + 2, 0.3)) == pytest.approx(0, abs=1e-8)
    assert float(redundancy(white, white.flip(1), 0.3)) == pytest.approx(2 + 2 * 0.3, rel=1e-4)
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 9, 4, generator=draw, dtype=torch.float64)
    assert float(redundancy(left, right, 0.3)) == pytest.approx(slow(left, right, 0.3), rel=1e-3)


def test_cross_barlow_is_short_refuses_one_task_and_ties_the_networks() -> None:
    assert len((FOLDER / "cross_barlow.py").read_text().splitlines()) < 80
    assert_regularizer(BARLOW["cross_barlow"])
    for tasks in ([grouped()], [grouped(), grouped("b", width=7)]):
        with pytest.raises(PluginError) as caught:
            quick(steps=1).explain(tasks, ["cross_barlow"], factories=BARLOW)
        assert caught.value.plugin == "cross_barlow"
    uses = [ck.use("cross_barlow", as_="mine", weight=0.01)]
    fit = quick(steps=40, log_every=10, lr=0.003).fit(TASKS, uses, factories=BARLOW)
    for name in ("a", "b"):
        tied, task = fit.history[f"{name}/mine/loss"], fit.history[f"{name}/loss"]
        assert tied[-1] < 0.8 * tied[0] and task[-1] < 0.7 * task[0]
