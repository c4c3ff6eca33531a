"""The task's loss of each image, changed by plugins: what they get, what is trained, what is logged and refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F
from published import FOLDER, factories, module
from small import data_set, grouped, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import PluginError, TrainingError
from compatkit.training import objective
from compatkit.training.testing import assert_regularizer

FOCAL = factories("focal_loss")
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant"}


def changing(change: Callable[[Any, Tensor], Any], effect: Any = "pure") -> Callable[[], Any]:
    """A factory of a plugin with this change of the losses."""

    class Changing:
        @ck.hookimpl
        @ck.effect(effect)
        def compatkit_sample_losses(self, step: Any, losses: Tensor) -> Any:
            return change(step, losses)

    return Changing


def trained(
    change: Callable[[Any, Tensor], Any] | None = None, weight: float = 1.0, **settings: Any
) -> ck.Fit:
    trainer = quick(**{"steps": 3, **SGD, **settings})
    if change is None:
        return trainer.fit([grouped()])
    uses = [ck.use("changing", weight=weight)]
    return trainer.fit([grouped()], uses, factories={"changing": changing(change)})


def close(left: ck.Fit, right: ck.Fit, within: float = 1e-5) -> None:
    for mine, other in zip(left.network("a").parameters(), right.network("a").parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=within, atol=within)


def distance(left: ck.Fit, right: ck.Fit) -> float:
    pairs = zip(left.network("a").parameters(), right.network("a").parameters(), strict=True)
    return max(float((mine - other).detach().abs().max()) for mine, other in pairs)


def test_losses_that_stay_train_the_same_network() -> None:
    plain, same = trained(), trained(lambda step, losses: losses)
    close(plain, same)
    for left, right in zip(plain.history, same.history, strict=True):
        assert right["losses"]["task"] == pytest.approx(left["losses"]["task"], rel=1e-5)
        assert right["losses"]["cross_entropy"] == pytest.approx(left["losses"]["task"], rel=1e-5)
        assert right["losses"]["accuracy"] == left["losses"]["accuracy"]
        assert "cross_entropy" not in left["losses"]


def test_a_factor_is_one_of_the_learning_rate() -> None:
    """SGD without weight decay is linear in the gradients."""
    settings: dict[str, Any] = {**SGD, "weight_decay": 0.0}
    half = trained(lambda step, losses: losses / 2, **settings)
    close(half, trained(**{**settings, "lr": 0.05}))
    first = half.history[0]["losses"]
    assert first["task"] == pytest.approx(first["cross_entropy"] / 2)


def test_a_weight_blends_and_weight_zero_is_no_plugin() -> None:
    none, third = (
        trained(lambda step, losses: 4 * losses, weight=0.0),
        trained(lambda step, losses: 2 * losses),
    )
    blended = trained(lambda step, losses: 4 * losses, weight=1 / 3)
    assert same_parts(trained(), none)
    close(third, blended)
    assert distance(third, trained()) > 1e-3


def test_plugins_are_called_in_order_with_the_result_of_the_one_before() -> None:
    made = {"a": changing(lambda step, losses: losses + 1), "b": changing(lambda step, losses: losses * 3)}

    def first(*uses: Any) -> dict[str, float]:
        return quick(steps=1).fit([grouped()], uses, factories=made).history[0]["losses"]

    ordered, turned = first("a", "b"), first(ck.use("a", after="b"), "b")
    plain = ordered["cross_entropy"]
    assert ordered["task"] == pytest.approx(3 * (plain + 1), rel=1e-5)
    assert turned["task"] == pytest.approx(3 * plain + 1, rel=1e-5)


def test_start_and_stop() -> None:
    uses = [ck.use("focal_loss", start=1, stop=2)]
    rows = quick(steps=3).fit([grouped()], uses, factories=FOCAL).history
    assert ["cross_entropy" in row["losses"] for row in rows] == [False, True, False]


def test_what_a_plugin_gets_is_what_its_losses_come_from() -> None:
    """In bf16, with mixed images, smoothing, and a regularizer that keeps the images of the batch."""
    seen: list[tuple[str, ...]] = []

    def check(step: Any, losses: Tensor) -> Tensor:
        assert losses.dtype == step.logits.dtype == step.features.dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        mixed, smoothing = step.mixed_labels, step.task.task.smoothing
        if mixed is None:
            again = F.cross_entropy(
                step.logits, step.batch.labels, reduction="none", label_smoothing=smoothing
            )
        else:
            again = -(mixed * step.logits.log_softmax(1)).sum(1)
        torch.testing.assert_close(again, losses)
        with torch.no_grad(), step.precision.autocast():
            torch.testing.assert_close(step.classify(step.features).float(), step.logits, rtol=0.1, atol=0.1)
        seen.append(
            ("mixed" if mixed is not None else "plain", "two" if step.mixed_images is not None else "one")
        )
        return losses

    class Norm:
        @ck.hookimpl
        def compatkit_losses(self, step: Any) -> Any:
            assert step.features.requires_grad
            return {"norm": step.features.square().mean()}

    made = {"changing": changing(check, "host"), "norm": Norm}
    for task, uses in [
        (grouped(smoothing=0.2), ["changing"]),
        (grouped(mixup=0.8, smoothing=0.1), ["changing"]),
        (grouped(mixup=0.8), ["changing", "norm"]),
    ]:
        quick(steps=1, precision="bf16", accumulate=2).fit([task], uses, factories=made)
    assert seen == [*[("plain", "one")] * 2, *[("mixed", "one")] * 2, *[("mixed", "two")] * 2]


def test_a_task_without_a_head_is_left_alone_and_a_run_of_such_tasks_refused() -> None:
    class Norm:
        @ck.hookimpl
        def compatkit_losses(self, step: Any) -> Any:
            return {"norm": step.features.square().mean()}

    made, headless = {**FOCAL, "norm": Norm}, grouped("b", own_head=False)
    rows = quick(steps=1).fit([grouped(), headless], ["focal_loss", "norm"], factories=made).history
    assert ["cross_entropy" in row["losses"] for row in rows] == [True, False]
    with pytest.raises(PluginError) as caught:
        quick(steps=1).explain([headless], ["focal_loss", "norm"], factories=made)
    assert (caught.value.plugin, caught.value.hook) == ("focal_loss", "compatkit_sample_losses")


def test_pieces_give_the_gradients_of_the_whole_batch() -> None:
    focal: dict[str, Any] = {"factories": FOCAL}
    whole, pieces = (
        quick(steps=3, accumulate=count, **SGD).fit([grouped()], ["focal_loss"], **focal) for count in (1, 4)
    )
    close(whole, pieces)
    for left, right in zip(whole.history, pieces.history, strict=True):
        assert right["losses"] == pytest.approx(left["losses"], rel=1e-5)


def test_random_numbers_of_every_step_and_a_resumed_run_are_the_same(tmp_path: Path) -> None:
    drawn: list[float] = []

    def noisy(step: Any, losses: Tensor) -> Tensor:
        noise = torch.rand(len(losses))
        drawn.append(float(noise[0]))
        return losses * noise

    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == stop:
                raise KeyboardInterrupt

    def run(**settings: Any) -> ck.Fit:
        made = {"changing": changing(noisy, "host"), "stop": Stop}
        return quick(steps=4, accumulate=2, **settings).fit([grouped()], ["changing", "stop"], factories=made)

    stop = -1
    whole = run()
    assert len(set(drawn)) == 8
    stop, saved = 2, {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        run(**saved)
    stop = -1
    resumed = run(**saved)
    assert same_parts(whole, resumed) and whole.history == resumed.history


def test_a_compiled_step_is_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "BACKEND", "eager")
    eager, compiled = (
        quick(steps=3, execution=execution, **SGD).fit([grouped()], ["focal_loss"], factories=FOCAL)
        for execution in ("eager", "compile")
    )
    assert compiled.run["environment"]["execution"]["mode"] == "compile"
    close(eager, compiled)


def test_a_hook_with_side_effects_keeps_the_step_eager() -> None:
    made = {"changing": changing(lambda step, losses: losses, "host")}
    plan = quick(steps=1, execution="compile").explain([grouped()], ["changing"], factories=made)
    assert plan.execution["mode"] == "eager"
    assert "compatkit_sample_losses of the plugin 'changing'" in plan.execution["reason"]
    assert [line.split()[0] for line in plan.events.splitlines()] == ["event", "sample_losses"]


def wrote(step: Any, losses: Tensor) -> Tensor:
    return losses.mul_(2)


def wrote_logits(step: Any, losses: Tensor) -> Tensor:
    step.logits.detach().zero_()
    return losses


@pytest.mark.parametrize(
    "change",
    [
        lambda step, losses: None,
        lambda step, losses: losses.mean(),
        lambda step, losses: losses[:-1],
        lambda step, losses: losses.detach(),
        lambda step, losses: losses > 0,
        lambda step, losses: 1 / 0,
        wrote,
        wrote_logits,
    ],
    ids=["nothing", "mean", "shorter", "detached", "type", "raises", "wrote", "wrote_logits"],
)
def test_results_that_are_refused(change: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(PluginError) as caught:
        trained(change)
    assert (caught.value.plugin, caught.value.hook) == ("changing", "compatkit_sample_losses")


def test_a_loss_that_is_not_finite_names_the_hook() -> None:
    with pytest.raises(TrainingError, match="compatkit_sample_losses") as caught:
        trained(lambda step, losses: losses * math.nan)
    assert caught.value.subject == "task"


def test_the_focal_loss_by_hand() -> None:
    """Probabilities 3/4 and 1/2 of the true class: (1/4)^2 ln(4/3) and (1/2)^2 ln 2."""
    focal, step = (
        module("focal_loss").FocalLoss(),
        attrs.make_class("Step", ["logits", "batch", "mixed_labels"]),
    )
    logits = torch.tensor([[3.0, 1.0], [2.0, 2.0]], dtype=torch.float64).log()
    batch = ck.Batch(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2))
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    got = focal.compatkit_sample_losses(step(logits, batch, None), losses)
    expected = [math.log(4 / 3) / 16, math.log(2) / 4]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    shares = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(focal.compatkit_sample_losses(step(logits, batch, shares), losses), got)
    plain = module("focal_loss").FocalLoss(gamma=0)
    assert torch.equal(plain.compatkit_sample_losses(step(logits, batch, None), losses), losses)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_focal_loss_of_a_sure_prediction_has_a_finite_gradient(gamma: float) -> None:
    """p_t rounds to 1: the loss is 0, and a power below 1 has an infinite slope there."""
    logits = torch.tensor([[60.0, 0.0, 0.0]], requires_grad=True)
    batch = ck.Batch(torch.zeros(1), torch.tensor([0]), torch.arange(1))
    step = attrs.make_class("Step", ["logits", "batch", "mixed_labels"])(logits, batch, None)
    losses = F.cross_entropy(logits, batch.labels, reduction="none")
    got = module("focal_loss").FocalLoss(gamma=gamma).compatkit_sample_losses(step, losses)
    (slope,) = torch.autograd.grad(got.sum(), logits)
    assert got.tolist() == [0.0] and float(slope.abs().max()) < 1e-20


def test_the_focal_loss_conforms_is_short_and_learns() -> None:
    assert_regularizer(FOCAL["focal_loss"], gamma=1.0)
    assert len((FOLDER / "focal_loss.py").read_text().splitlines()) < 80
    fit = quick(steps=60, log_every=10, lr=0.005).fit(
        [ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)], ["focal_loss"], factories=FOCAL
    )
    loss, plain = fit.history["a/loss"], fit.history["a/cross_entropy"]
    assert loss[-1] < 0.3 * loss[0] and (loss < plain).all()
