"""DELTA, Co-Tuning, StochNorm and gradual unfreezing: equations by hand, the real trainer, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit_plugins.regularizers.co_tuning import CoTuning, relation
from compatkit_plugins.regularizers.delta import Delta, distance
from compatkit_plugins.regularizers.gradual_unfreezing import GradualUnfreezing
from compatkit_plugins.regularizers.stochnorm import StochNorm

NETWORK: dict[str, Any] = {"model": "resnet8_cifar", "cut": "layer2", "size": 12}
FOUR = ("0", "1", "2", "3")


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return quick(steps=4, lr=0.05).fit([ck.Task("a", data_set("a", classes=FOUR), **NETWORK)]).weights("a")


def tuned(weights: Any, *uses: Any, steps: int = 4, **settings: Any) -> ck.Fit:
    task = ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights)
    return quick(**{"steps": steps, "lr": 0.05, "weight_decay": 0.0, **settings}).fit([task], list(uses))


class TestDelta:
    def test_the_distance_by_hand(self) -> None:
        now, start = torch.zeros(2, 2, 1, 2), torch.zeros(2, 2, 1, 2)
        now[0, 0], now[0, 1], now[1, 1] = torch.tensor([1.0, 3.0]), 2.0, 4.0
        # image 0: C / (HW) (a_0 (1 + 9) + a_1 (4 + 4)) = 2 / 2 (.25 * 10 + .75 * 8); image 1: .75 * 32
        assert float(distance(now, start, torch.tensor([0.25, 0.75]))) == pytest.approx((8.5 + 24.0) / 2)

    def test_vectors_count_as_maps_of_one_position(self) -> None:
        rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
        even = torch.full((5,), 0.2)
        maps = rows[:, :, None, None]
        result = distance(rows, 0 * rows, even)
        assert float(result) == pytest.approx(float(distance(maps, 0 * maps, even)))
        assert float(result) == pytest.approx(float(rows.square().sum(1).mean()), rel=1e-6)

    def test_the_start_has_no_distance_in_eval_mode_and_training_has(
        self, weights: dict[str, Tensor]
    ) -> None:
        use = ck.use("delta", weight=0.01, layers=["layer1", "layer2"], attention=False)
        fit = tuned(weights, use)
        assert fit.history["b/delta/maps"][-1] > 0 and fit.history["b/delta/new"][0] > 0

    def test_attention_falls_on_the_channel_that_the_loss_needs(self, weights: dict[str, Tensor]) -> None:
        use = ck.use("delta", layers=["layer2"], fit_steps=20, batch_size=16, temperature=0.05)
        result = tuned(weights, use, steps=1).run["pretraining"]["plugins"]["delta"]
        (largest,) = result["largest attention over the mean"].values()
        assert largest > 1

    def test_a_strong_pull_keeps_maps_nearer(self, weights: dict[str, Tensor]) -> None:
        def apart(weight: float) -> float:
            use = ck.use("delta", weight=weight, layers=["layer2"], attention=False, beta=0.0)
            return float(tuned(weights, use, steps=10).history["b/delta/maps"][-1])

        assert apart(1.0) < apart(1e-6)

    def test_refusals(self, weights: dict[str, Tensor]) -> None:
        for settings, subject in (
            ({"layers": "layer1"}, "layers"),
            ({"layers": ["x"], "fit_steps": 0}, "fit_steps"),
            ({"layers": ["x"], "temperature": 0.0}, "temperature"),
        ):
            with pytest.raises(UsageError) as caught:
                Delta(**settings)
            assert caught.value.subject == subject
        with pytest.raises(UsageError):
            tuned(None, ck.use("delta", layers=["layer1"]))
        with pytest.raises(UsageError):
            tuned(weights, ck.use("delta", layers=["layer9"]))

    def test_fewer_images_than_a_batch_are_taken_whole(self, weights: dict[str, Tensor]) -> None:
        uses = ck.use("delta", layers=["layer1"], fit_steps=2, batch_size=500), ck.use("co_tuning", steps=2)
        fit = tuned(weights, *uses, steps=1)
        count = len(fit.tasks["b"].examples)
        assert count < 64 and fit.run["pretraining"]["plugins"]["co_tuning"] == {"images": {"b": 2 * count}}


class TestCoTuning:
    def test_the_relation_is_the_mean_share_of_each_class(self) -> None:
        shares = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]])
        result = relation(shares, torch.tensor([0, 0, 2]), 3)
        torch.testing.assert_close(result, torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.2, 0.8]]))

    def test_the_first_loss_is_that_of_the_source_network(self, weights: dict[str, Tensor]) -> None:
        use = ck.use("co_tuning", steps=6, batch_size=8, temperature=2.5)
        fit = tuned(weights, use, steps=1, batch_size=48)
        start = quick(steps=0).fit([ck.Task("a", data_set("a", classes=FOUR), **NETWORK, weights=weights)])
        network = start.network("a")
        network.load_state_dict({name: weights[name.partition(".")[2]] for name in network.state_dict()})
        state = fit.tasks["b"]
        images = torch.from_numpy(state.examples.read(range(48))).permute(0, 3, 1, 2).double() / 255
        mean, std = (torch.tensor(item).view(1, -1, 1, 1) for item in (state.data.mean, state.data.std))
        labels = torch.from_numpy(state.examples.labels)
        with torch.no_grad():
            shares = (network.double().eval()((images - mean) / std) / 2.5).softmax(1)
            logs = network.train()((images - mean) / std).log_softmax(1)
        means = [shares[labels == target].mean(0) for target in range(3)]
        wanted = -sum((means[int(target)] * row).sum() for target, row in zip(labels, logs, strict=True)) / 48
        # Each image is among the six batches of 8 once.
        assert fit.history["b/co_tuning/source"][0] == pytest.approx(float(wanted), rel=1e-5)

    def test_steps_of_a_dry_run_come_before_the_relation(self, weights: dict[str, Tensor]) -> None:
        task = ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights)
        assert quick(steps=2).profile([task], ["co_tuning"], steps=1).steps == 1

    def test_a_resumed_run_equals_a_whole_one(self, weights: dict[str, Tensor], tmp_path: Path) -> None:
        use = ck.use("co_tuning", weight=2.3, steps=2, batch_size=8)
        whole = tuned(weights, use, steps=6)

        class Stop(Exception):
            pass

        class Stopping:
            @ck.hookimpl
            def compatkit_after_step(self, step: ck.Step) -> None:
                if step.number == 3 and armed:
                    raise Stop

        armed = True
        task = ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights)
        plan = quick(
            steps=6, lr=0.05, weight_decay=0.0, checkpoint=tmp_path / "run.safetensors", checkpoint_every=2
        )
        with pytest.raises(Exception):  # noqa: B017 -- how a plugin's error arrives is not its subject
            plan.fit([task], [use, "stopping"], factories={"stopping": Stopping})
        armed = False
        assert same_parts(plan.fit([task], [use, "stopping"], factories={"stopping": Stopping}), whole)

    def test_refusals(self) -> None:
        for settings, subject in (({"steps": 0}, "steps"), ({"temperature": 0.0}, "temperature")):
            with pytest.raises(UsageError) as caught:
                CoTuning(**settings)
            assert caught.value.subject == subject
        with pytest.raises(UsageError):
            tuned(None, "co_tuning")


class TestStochNorm:
    def mixed(self, p: float) -> tuple[Tensor, nn.BatchNorm2d, Tensor]:
        """Return what a layer gives in a step, the layer, and its images."""
        layer = nn.BatchNorm2d(50)
        images = torch.randn(8, 50, 3, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
        plugin = StochNorm(p)
        before, after = plugin._around(layer)
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
        plugin._draw = torch.Generator().manual_seed(1)
        return layer(images), layer, images

    def test_a_channel_has_one_kind_of_statistics(self) -> None:
        result, layer, images = self.mixed(0.5)
        fresh = nn.BatchNorm2d(50)
        by_batch, stored = fresh(images), nn.BatchNorm2d(50).eval()(images)
        is_batch = [torch.allclose(result[:, at], by_batch[:, at], atol=1e-5) for at in range(50)]
        is_stored = [torch.allclose(result[:, at], stored[:, at], atol=1e-5) for at in range(50)]
        assert all(entry != other for entry, other in zip(is_batch, is_stored, strict=True))
        assert 10 < sum(is_batch) < 40  # 50 draws: a deviation of 3.5
        torch.testing.assert_close(layer.running_mean, fresh.running_mean)
        torch.testing.assert_close(layer.running_var, fresh.running_var)

    def test_layers_in_a_run_are_those_of_the_equation_in_numpy(self, weights: dict[str, Tensor]) -> None:
        """Of three steps: which channels use the batch differs, and stored statistics move as without it."""
        calls: list[list[Any]] = []

        def numbers(*tensors: Tensor) -> list[Any]:
            return [tensor.detach().double().numpy().copy() for tensor in tensors]

        class Watches:
            @ck.hookimpl
            def compatkit_set_up(self, setup: ck.SetUp) -> None:
                for layer in setup.tasks["b"].extractor.modules():
                    if isinstance(layer, nn.BatchNorm2d):
                        layer.register_forward_pre_hook(self.before)
                        layer.register_forward_hook(self.after)

            def before(self, layer: Any, inputs: tuple[Tensor]) -> None:
                stored = layer.running_mean, layer.running_var, layer.weight, layer.bias
                calls.append(numbers(*inputs, *stored))

            def after(self, layer: Any, inputs: tuple[Tensor], output: Tensor) -> None:
                calls[-1] += numbers(output, layer.running_mean, layer.running_var)

        watches = ck.use("watches", after="stochnorm")
        task = ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights)
        quick(steps=3).fit([task], [ck.use("stochnorm", p=0.3), watches], factories={"watches": Watches})
        drawn = []
        for taken, mean, variance, scale, shift, output, mean_after, variance_after in calls:
            rows = taken.transpose(0, 2, 3, 1).reshape(-1, len(mean))
            got = output.transpose(0, 2, 3, 1).reshape(rows.shape)
            stored, batch = (
                (rows - middle) / np.sqrt(square + 1e-5) * scale + shift
                for middle, square in ((mean, variance), (rows.mean(0), rows.var(0)))
            )
            drawn.append(np.abs(got - batch).max(0) < np.abs(got - stored).max(0))
            np.testing.assert_allclose(got, np.where(drawn[-1], batch, stored), rtol=1e-4, atol=1e-4)
            assert mean_after == pytest.approx(0.9 * mean + 0.1 * rows.mean(0), rel=1e-4, abs=1e-5)
            moved = 0.9 * variance + 0.1 * rows.var(0, ddof=1)
            assert variance_after == pytest.approx(moved, rel=1e-4, abs=1e-5)
        share = np.concatenate(drawn)
        assert share.mean() == pytest.approx(0.3, abs=4 * (0.21 / len(share)) ** 0.5)
        assert any((one != other).any() for one, other in zip(drawn, drawn[len(drawn) // 3 :], strict=False))

    def test_its_ends_are_batch_statistics_and_stored_ones(self) -> None:
        for p, train in ((1.0, True), (0.0, False)):
            result, _, images = self.mixed(p)
            torch.testing.assert_close(result, nn.BatchNorm2d(50).train(train)(images))

    def test_probability_one_trains_as_without_it(self, weights: dict[str, Tensor]) -> None:
        assert same_parts(tuned(weights, ck.use("stochnorm", p=1.0)), tuned(weights))
        fit = tuned(weights, ck.use("stochnorm", p=0.5))
        assert not same_parts(fit, tuned(weights)) and same_parts(
            fit, tuned(weights, ck.use("stochnorm", p=0.5))
        )
        assert not any(module._forward_hooks for module in fit.network("b").modules())

    def test_refusals(self, weights: dict[str, Tensor]) -> None:
        with pytest.raises(UsageError) as caught:
            StochNorm(1.5)
        assert caught.value.subject == "p"
        with pytest.raises(UsageError):
            task = ck.Task("b", data_set("b"), "lenet", "forward_features", size=16)
            quick(steps=1).fit([task], ["stochnorm"])


class TestGradualUnfreezing:
    def changed(self, weights: dict[str, Tensor], steps: int, **settings: Any) -> set[str]:
        """Return the parts of the network that moved."""
        fit = tuned(weights, ck.use("gradual_unfreezing", **settings), steps=steps)
        start = tuned(weights, steps=0).weights("b")
        return {
            name.split(".")[0]
            for name, weight in fit.weights("b").items()
            if not name.endswith("num_batches_tracked") and not torch.equal(weight, start[name])
        }

    def test_stages_open_from_the_class_layer_on(self, weights: dict[str, Tensor]) -> None:
        assert self.changed(weights, 2, every=2) == {"fc"}
        assert self.changed(weights, 3, every=2) == {"fc", "layer3"}
        assert self.changed(weights, 5, every=2) == {"fc", "layer3", "layer2"}
        assert {"conv1", "bn1", "layer1"} < self.changed(weights, 5, every=1)

    def test_a_frozen_extractor_stays_as_it_is(self, weights: dict[str, Tensor], tmp_path: Path) -> None:
        registry = ck.Registry.init(tmp_path / "parts")
        registry.publish(tuned(weights, steps=1), prefix="x")
        task = registry.task("b", data_set("b", seed=4), extractor="x/b.extractor", freeze_extractor=True)
        before = {
            name: value.clone() for name, value in registry["x/b.extractor"].module.state_dict().items()
        }
        fit = quick(steps=3, lr=0.05).fit([task], [ck.use("gradual_unfreezing", every=1, stages=1)])
        after = fit.tasks["b"].extractor.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())

    @pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
    def test_any_optimizer_leaves_closed_stages_alone(
        self, weights: dict[str, Tensor], optimizer: str
    ) -> None:
        use, settings = ck.use("gradual_unfreezing", every=3), {"optimizer": optimizer, "weight_decay": 0.1}
        fits = [tuned(weights, use, steps=n, momentum=0.9, **settings) for n in (0, 5)]
        before, after = (fit.weights("b") for fit in fits)
        assert torch.equal(before["layer1.0.conv1.weight"], after["layer1.0.conv1.weight"])
        assert not torch.equal(before["fc.weight"], after["fc.weight"])

    def test_one_group_is_the_head_alone_and_then_everything(self, weights: dict[str, Tensor]) -> None:
        assert self.changed(weights, 2, every=2, stages=1) == {"fc"}
        assert len(self.changed(weights, 3, every=2, stages=1)) == 6

    def test_refusals(self, weights: dict[str, Tensor]) -> None:
        for settings, subject in (({"every": 0}, "every"), ({"every": 1, "stages": 0}, "stages")):
            with pytest.raises(UsageError) as caught:
                GradualUnfreezing(**settings)
            assert caught.value.subject == subject
        with pytest.raises(UsageError):
            tuned(weights, ck.use("gradual_unfreezing", every=1, stages=9))
