"""Adversarial training: losses by hand, who moves whom, resumed exactly; the reverse pass through generators."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import CompatkitError, UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.networks.generative import super_resolution
from compatkit_plugins.regularizers.adversarial import Adversarial
from compatkit_plugins.regularizers.adversarial_in_turns import InTurns
from compatkit_plugins.regularizers.image_error import ImageError
from compatkit_plugins.regularizers.reverse_pass.chain import chain_of
from compatkit_plugins.regularizers.reverse_pass.full import full_loss, names_of, pairs, recorded

GAN = ck.use("adversarial", condition=4, channels=[4, 8], features=1.0, reverse=0.1)
OWNER = "plugin.adversarial.discriminator-a"


def task(**settings: Any) -> ck.Task:
    data = data_set("a", size=(16, 16))
    inputs = {"size": 16, "kwargs": {"channels": [4, 4, 4]}, **settings}
    return ck.Task(
        "a", data, inputs.pop("model", "super_resolution"), inputs.pop("cut", "generator"), **inputs
    )


def reason(error: CompatkitError) -> CompatkitError:
    return error.__cause__ if isinstance(error.__cause__, CompatkitError) else error


def by_hand(plugin: Adversarial, step: Any) -> dict[str, Tensor]:
    """The losses with the discriminator's layers written out."""
    net: Any = plugin._critics["a"].network
    real, made = step.batch.images, step.features.detach()
    low = F.avg_pool2d(real, 4).repeat_interleave(4, 2).repeat_interleave(4, 3)

    def run(images: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, maps = torch.cat([images, low], 1), []
        for layer in (net.layer1, net.layer2):
            x = F.leaky_relu(layer.linear(x), 0.2)
            maps.append(x)
        return net.fc(x.flatten(1)), maps

    (d_real, f_real), (d_made, f_made) = run(real), run(made)
    return {
        "discriminator": -d_real.sigmoid().log().mean() - (1 - d_made.sigmoid()).log().mean(),
        "generator": -d_made.sigmoid().log().mean(),
        "features": torch.stack(
            [(a - b).square().mean() for a, b in zip(f_real, f_made, strict=True)]
        ).mean(),
    }


class Checks(Adversarial):
    """Compares its losses with those by hand, in every step."""

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Any:
        result = Adversarial.compatkit_losses(self, step)
        with torch.no_grad():
            for name, wanted in by_hand(self, step).items():
                torch.testing.assert_close(result[name].detach(), wanted, rtol=1e-4, atol=1e-6)
        critic, network = ([*item.parameters()] for item in (self._critics["a"], step.task.extractor))

        def moves(name: str, weights: Any) -> bool:
            grads = torch.autograd.grad(result[name], weights, retain_graph=True, allow_unused=True)
            return any(grad is not None for grad in grads)

        for name in ("discriminator", "reverse"):
            assert moves(name, critic) and not moves(name, network)
        for name in ("generator", "features"):
            assert moves(name, network) and not moves(name, critic)
        return result


def test_losses_are_those_by_hand_and_each_moves_its_own_side() -> None:
    use = ck.use("checks", condition=4, channels=[4, 8], features=1.0, reverse=0.1)
    quick(steps=2).fit([task()], [use], factories={"checks": Checks})


def test_the_run_owns_the_discriminator_and_it_learns() -> None:
    plan = quick(steps=1).explain([task()], [GAN])
    assert OWNER in {owner["owner"] for owner in plan.owners}
    # against a generator that hardly moves
    still = ck.use("retrain", layers=["generator.body.layer4"], fresh=False)
    inputs = quick(steps=0).fit([task()], ["image_error"]).weights("a")
    fit = quick(steps=60, lr=3e-3).fit(
        [task(weights=inputs)], [ck.use("adversarial", channels=[8, 8]), still]
    )
    losses = [row["losses"]["adversarial/discriminator"] for row in fit.history]
    assert min(losses[-5:]) < 0.5 * losses[0]


def test_in_turns_one_side_moves_in_each_step() -> None:
    seen: list[dict[str, list[Tensor]]] = []

    class Watch(InTurns):
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            sides = {"critic": self._critics["a"], "network": step.task.extractor}
            seen.append(
                {side: [p.detach().clone() for p in value.parameters()] for side, value in sides.items()}
            )

    uses = [ck.use("watch", channels=[4], weight=0.1), "image_error", ck.use("reverse_pass", variant="full")]
    quick(steps=4, weight_decay=0.1).fit([task()], uses, factories={"watch": Watch})
    for number, (before, after) in enumerate(pairwise(seen), 1):
        moved, still = ("network", "critic") if number % 2 else ("critic", "network")
        assert all(torch.equal(a, b) for a, b in zip(before[still], after[still], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(before[moved], after[moved], strict=True))


def test_a_run_that_was_interrupted_is_resumed_exactly(tmp_path: Path) -> None:
    uses = [GAN, ck.use("image_error"), ck.use("reverse_pass", variant="full")]
    whole = quick(steps=6).fit([task()], uses)

    class Stop(Exception):
        pass

    class Breaks:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == 4 and not done:
                done.append(True)
                raise Stop

    done: list[bool] = []
    trainer = quick(steps=6, checkpoint=tmp_path / "run.pt", checkpoint_every=3)
    with pytest.raises((Stop, CompatkitError)):
        trainer.fit([task()], [*uses, "breaks"], factories={"breaks": Breaks})
    assert done and same_parts(whole, trainer.fit([task()], [*uses, "breaks"], factories={"breaks": Breaks}))


def test_weight_0_is_the_run_without_it() -> None:
    alone = quick(steps=3).fit([task()], ["image_error"])
    assert same_parts(alone, quick(steps=3).fit([task()], ["image_error", ck.use("adversarial", weight=0)]))


@pytest.mark.parametrize(
    "factory",
    [ImageError, lambda: Adversarial(condition=2, channels=[4], features=1.0), lambda: InTurns(channels=[4])],
)
def test_they_conform(factory: Any) -> None:
    assert_regularizer(factory, tasks=[task()])


@pytest.mark.parametrize("settings", [{"features": -1.0}, {"condition": -4}, {"reverse": float("nan")}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Adversarial(**settings)


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda: task(cut="down"), "image_error"),
        (lambda: task(normalize={"mean": 0.5, "std": 0.5}), "image_error"),
        (lambda: task(), ck.use("adversarial", condition=3)),
    ],
)
def test_other_tasks_are_refused(make: Any, use: Any) -> None:
    with pytest.raises(CompatkitError) as caught:
        quick(steps=1).fit([make()], [use])
    assert reason(caught.value).subject == "a"


class TestReverse:
    """The full reverse pass of a generator that begins with an average."""

    def loss_at(self, small: bool) -> tuple[float, list[Tensor]]:
        torch.manual_seed(0)
        network = super_resolution(img_size=16, channels=(4, 4)).double()
        images = torch.rand(3, 1, 16, 16, dtype=torch.float64)
        stages = chain_of(network, images)
        records = recorded(network, names_of(stages), images)
        if small:
            *_, (_, state, back) = pairs(stages, records, images)
            loss = F.mse_loss(F.avg_pool2d(back, 4), F.avg_pool2d(state, 4))
        else:
            result = full_loss(stages, records, images, factors={stages[0].linear: 1.0})
            assert result is not None
            loss = result
        return float(loss.detach()), list(torch.autograd.grad(loss, list(network.parameters())))

    def test_comparing_enlarged_inputs_adds_a_constant_and_changes_no_gradient(self) -> None:
        (large, remote), (low, here) = self.loss_at(False), self.loss_at(True)
        for entry, other in zip(remote, here, strict=True):
            torch.testing.assert_close(entry, other)
        torch.manual_seed(0)
        super_resolution(img_size=16, channels=(4, 4))  # draws what the networks drew
        images = torch.rand(3, 1, 16, 16, dtype=torch.float64)
        inside = images - F.interpolate(F.avg_pool2d(images, 4), scale_factor=4.0)
        assert large - low == pytest.approx(float(inside.square().mean()))

    def test_it_runs_through_a_generator_whose_head_has_no_weights(self) -> None:
        fit = quick(steps=1).fit([task()], ["image_error", ck.use("reverse_pass", variant="full")])
        assert fit.history[0]["losses"]["reverse_pass/loss"] > 0
        layers = fit.run["plugins"]
        assert "generator.body.layer4.linear" in str(layers)

    def test_a_head_with_weights_that_does_not_run_is_refused_still(self) -> None:
        other = ck.Task(
            "a", data_set("a", size=(16, 16)), "vgg16_cifar", "features.9", size=32, own_head=False
        )
        with pytest.raises(CompatkitError):
            quick(steps=1).fit([other], [ck.use("reverse_pass", variant="full")])

    def test_layers_are_pretrained_without_a_class_layer(self) -> None:
        use = ck.use("layerwise_autoencoder", steps=1, batch_size=4)
        fit = quick(steps=1).fit([task()], ["image_error", use])
        (result,) = fit.run["pretraining"]["plugins"]["layerwise_autoencoder"].values()
        assert len(result) == 4
