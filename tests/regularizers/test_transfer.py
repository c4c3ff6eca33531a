"""Transfer: which layers are kept, how they are re-scaled, and that a ReLU chain keeps its function up to a factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import CompatkitError
from compatkit_plugins.regularizers._called_layers import CalledLayer
from compatkit_plugins.regularizers.transfer import rescale

CNN = {"convolutions": 2, "filters": 4, "units": 16, "img_size": 12}
LAYERS = ("blocks.0.conv", "blocks.1.conv", "dense", "fc")


def task(**settings: Any) -> ck.Task:
    inputs = {"model": "simple_cnn", "cut": "blocks.1", "size": 12, "kwargs": CNN, **settings}
    return ck.Task("a", data_set("a"), **inputs)


@pytest.fixture(scope="module")
def pretrained() -> tuple[dict[str, Tensor], dict[str, float]]:
    """Weights after 30 steps, with biases that are not zero, and the norms of their initialization."""
    fit = quick(steps=30, lr=0.01).fit([task()], [ck.use("scaled_init", scale=0.7)])
    return fit.weights("a"), fit.run["pretraining"]["plugins"]["scaled_init"]["a"]


def started(weights: Mapping[str, Tensor], **settings: Any) -> tuple[dict[str, Tensor], Any]:
    """Return the weights of the first step, and the report."""
    fit = quick(steps=0).fit([task(weights=weights)], [ck.use("transfer", **settings)])
    return fit.weights("a"), fit.run["pretraining"]["plugins"]["transfer"]["a"]


def chain() -> tuple[list[CalledLayer], nn.Sequential]:
    """Return a ReLU chain with max pooling in float64, class layer included."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(45, 8),
        nn.LeakyReLU(),
        nn.Linear(8, 3),
    ).double()
    layers = [module for module in network if isinstance(module, nn.Conv2d | nn.Linear)]
    return [CalledLayer(str(place), layer, False, ()) for place, layer in enumerate(layers)], network


class TestRescaling:
    FACTORS = (0.3, 2.5, 1.7)

    def test_cumulative_biases_multiply_all_logits_by_the_product(self) -> None:
        layers, network = chain()
        images = torch.randn(6, 1, 8, 8, dtype=torch.float64)
        before = network(images)
        rescale(layers, self.FACTORS)
        after = network(images)
        torch.testing.assert_close(after, before * 0.3 * 2.5 * 1.7, rtol=1e-12, atol=1e-12)
        assert after.argmax(1).tolist() == before.argmax(1).tolist()

    @pytest.mark.parametrize("scale_bias", ["same", "none"])
    def test_other_biases_change_the_function(self, scale_bias: str) -> None:
        layers, network = chain()
        images = torch.randn(6, 1, 8, 8, dtype=torch.float64)
        before = network(images)
        rescale(layers, self.FACTORS, scale_bias)
        ratio = network(images) / before
        assert float(ratio.detach().std()) > 1e-3

    def test_without_biases_all_are_the_same(self) -> None:
        ways = []
        for scale_bias in ("cumulative", "same", "none"):
            layers, network = chain()
            for layer in layers:
                nn.init.zeros_(layer.layer.bias)  # type: ignore[arg-type]
            rescale(layers, self.FACTORS, scale_bias)
            ways.append(network(torch.ones(1, 1, 8, 8, dtype=torch.float64)))
        assert torch.equal(ways[0], ways[1]) and torch.equal(ways[0], ways[2])


class TestInARun:
    def test_kept_layers_have_their_initial_norms_and_features_keep_their_directions(
        self, pretrained: Any
    ) -> None:
        weights, norms = pretrained
        made, result = started(weights, norms=norms)
        product = 1.0
        for name in LAYERS[:3]:
            assert float(made[f"{name}.weight"].norm()) == pytest.approx(norms[name], rel=1e-5)
            factor = norms[name] / float(weights[f"{name}.weight"].norm())
            product *= factor
            assert result["factors"][name] == pytest.approx(factor, rel=1e-5)
            torch.testing.assert_close(made[f"{name}.bias"], product * weights[f"{name}.bias"])
        assert result["kept"] == list(LAYERS[:3]) and result["drawn"] == ["fc"]

    def test_same_follows_the_paper(self, pretrained: Any) -> None:
        weights, norms = pretrained
        made, result = started(weights, norms=norms, scale_bias="same")
        for name in LAYERS[:3]:
            torch.testing.assert_close(
                made[f"{name}.bias"], result["factors"][name] * weights[f"{name}.bias"]
            )

    def test_without_norms_kept_layers_are_those_given(self, pretrained: Any) -> None:
        weights, _ = pretrained
        made, result = started(weights)
        assert all(torch.equal(made[f"{name}.weight"], weights[f"{name}.weight"]) for name in LAYERS[:3])
        assert not torch.equal(made["fc.weight"], weights["fc.weight"]) and result["factors"] == {}

    @pytest.mark.parametrize("first", [0, 1, 2, 3])
    def test_layers_after_the_first_are_those_of_a_run_from_scratch(
        self, pretrained: Any, first: int
    ) -> None:
        weights, _ = pretrained
        scratch = quick(steps=0).fit([task()], [ck.use("scaled_init", scale=0.7)]).weights("a")
        made, result = started(weights, first=first, scale=0.7)
        for place, name in enumerate(LAYERS):
            source = weights if place < first else scratch
            assert torch.equal(made[f"{name}.weight"], source[f"{name}.weight"]), name
            assert torch.equal(made[f"{name}.bias"], source[f"{name}.bias"]), name
        assert result["kept"] == list(LAYERS[:first])

    def test_dense_layers_are_drawn_and_biases_zeroed(self, pretrained: Any) -> None:
        weights, norms = pretrained
        made, result = started(weights, fresh=["dense"], zero_biases=True, norms=norms)
        assert result["drawn"] == ["dense", "fc"]
        assert not any(value.any() for name, value in made.items() if name.endswith("bias"))

    def test_the_class_layer_stays_where_the_task_keeps_it(self, pretrained: Any) -> None:
        weights, _ = pretrained
        fit = quick(steps=0).fit([task(weights=weights, keep_class_layer=True)], ["transfer"])
        assert torch.equal(fit.weights("a")["fc.weight"], weights["fc.weight"])


class TestOtherNetworks:
    def given(self, model: str, cut: str, **kwargs: Any) -> tuple[ck.Task, dict[str, float]]:
        made = ck.Task("a", data_set("a"), model, cut, size=12, kwargs=kwargs)
        fit = quick(steps=0).fit([made], ["scaled_init"])
        other_task = ck.Task("a", data_set("a"), model, cut, size=12, kwargs=kwargs, weights=fit.weights("a"))
        return other_task, fit.run["pretraining"]["plugins"]["scaled_init"]["a"]

    def test_layers_before_normalization_are_skipped(self) -> None:
        kwargs = {"channels": [4, 6], "norm": "batch", "img_size": [12, 12]}
        inputs, norms = self.given("conv_chain", "layer1", **kwargs)
        fit = quick(steps=0).fit(
            [inputs], [ck.use("transfer", norms={name: 2 * norm for name, norm in norms.items()})]
        )
        result = fit.run["pretraining"]["plugins"]["transfer"]["a"]
        assert result["skipped"] == ["layer1.linear", "layer2.linear"] and result["factors"] == {}

    @pytest.mark.parametrize(
        ("model", "cut", "kwargs"),
        [
            ("resnet18_v2_cifar", "layer1", {"width": 4}),
            ("conv_chain", "layer1", {"channels": [4, 6], "activation": "tanh", "img_size": [12, 12]}),
            ("conv_chain", "layer1", {"channels": [4], "activation": "tanh", "img_size": [12, 12]}),
        ],
        ids=["shortcuts", "tanh", "tanh after the last layer"],
    )
    def test_what_has_no_factor_is_refused(self, model: str, cut: str, kwargs: dict[str, Any]) -> None:
        inputs, norms = self.given(model, cut, **kwargs)
        with pytest.raises(CompatkitError) as caught:
            quick(steps=0).fit([inputs], [ck.use("transfer", norms=norms)])
        assert caught.value.code == "plugin" and "no factor" in str(caught.value)
        quick(steps=0).fit([inputs], ["transfer"])  # as the paper leaves residual networks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first": 4}, "first=4"),
        ({"first": -1}, "first"),
        ({"fresh": "dense"}, "fresh"),
        ({"fresh": ["nothing"]}, "nothing"),
        ({"norms": {"dense": 1.0}}, r"blocks\.0\.conv"),
        ({"norms": {"dense": 0.0}}, "norms"),
        ({"scale_bias": "all"}, "scale_bias"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    pretrained: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompatkitError, match=message):
        started(pretrained[0], **settings)


def test_random_weights_are_refused() -> None:
    with pytest.raises(CompatkitError, match="starts from random ones"):
        quick(steps=0).fit([task()], ["transfer"])
