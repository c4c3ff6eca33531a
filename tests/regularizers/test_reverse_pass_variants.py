"""The local pass with non-linearities, and the whole one, in runs: against the equations, and their refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import CompatkitError, PluginError
from compatkit_plugins.regularizers.reverse_pass import reverse_pass


def chain(**settings: Any) -> ck.Task:
    kwargs = {"filters": 4, "convolutions": 2, "units": 8}
    return ck.Task("a", data_set("a"), "simple_cnn", "blocks", size=12, kwargs=kwargs, **settings)


def residual(**settings: Any) -> ck.Task:
    return ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, **settings)


class Slow:
    """Computes the loss of a chain of two convolutions, a dense and a class layer from the equations, in float64."""

    def __init__(self, seen: list[float], variant: str) -> None:
        self.seen, self.variant = seen, variant

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
        part, head = step.task.extractor, step.task.head
        first, second = (part.get_submodule(f"blocks.{place}.conv") for place in (0, 1))
        layers: list[Any] = [first, second, head.get_submodule("dense"), head.get_submodule("fc")]
        with torch.no_grad():
            d = [step.batch.images.double()]
            for place, layer in enumerate(layers):
                taken = d[-1].flatten(1) if isinstance(layer, nn.Linear) else d[-1]
                d.append(_forward(layer, taken).relu() if place < 3 else _forward(layer, taken))
            back, total = d[-1], 0.0
            for m in (3, 2, 1, 0):
                layer = layers[m]
                if self.variant == "local":
                    if m == 3:
                        continue  # the class layer is left out
                    back = d[m + 1]
                back = _back(layer, back).reshape(d[m].shape)
                back = back.relu() if m else back
                if self.variant != "first" or m == 0:
                    total += float((d[m] - back).square().mean())
        self.seen.append(total)
        return {}


def _forward(layer: Any, x: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return F.linear(x, layer.weight.double(), layer.bias.double())
    return F.conv2d(x, layer.weight.double(), layer.bias.double(), 1, 1)


def _back(layer: Any, y: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return (y - layer.bias.double()) @ layer.weight.double()
    return F.conv_transpose2d(y - layer.bias.double()[:, None, None], layer.weight.double(), None, 1, 1)


@pytest.mark.parametrize("variant", ["local", "full", "first"])
def test_a_chain_in_a_run_has_the_loss_of_the_equations(variant: str) -> None:
    seen: list[float] = []
    use = ck.use("reverse_pass", variant=variant, activation=variant == "local")
    fit = quick(steps=2).fit([chain()], [use, "slow"], factories={"slow": lambda: Slow(seen, variant)})
    for row, expected in zip(fit.history, seen, strict=True):
        assert row["losses"]["reverse_pass/loss"] == pytest.approx(expected, rel=1e-4)


def test_normalization_of_the_layer_before_is_applied_again_and_writes_nothing() -> None:
    """By hand, for the second convolution of a block whose first has batch normalization and an activation."""
    seen: list[float] = []

    class Slow:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
            block = step.task.extractor.get_submodule("layer1.0")
            took: dict[str, Tensor] = {}
            hook = block.conv1.register_forward_hook(lambda _, inputs, out: took.update(x=inputs[0], y=out))  # type: ignore[union-attr]
            with torch.no_grad():
                step.extract(step.batch.images, write_statistics=False)
                hook.remove()
                d2 = _normal(block.bn1, took["y"]).relu()
                stem = step.task.extractor.get_submodule("bn1")
                back = F.conv_transpose2d(d2, block.conv1.weight, None, 1, 1)  # type: ignore[union-attr]
                seen.append(float((took["x"] - _normal(stem, back).relu()).square().mean()))
            return {}

    use = ck.use("reverse_pass", activation=True, layers=["layer1.0.conv1"])
    fits = [
        quick(steps=1, optimizer="sgd").fit([residual()], uses, factories={"slow": Slow})
        for uses in ([use, "slow"], [])
    ]
    assert fits[0].history[0]["losses"]["reverse_pass/loss"] == pytest.approx(seen[0], rel=1e-4)
    statistics = [
        {
            name: weight
            for name, weight in fit.weights("a").items()
            if "running" in name or "num_batches" in name
        }
        for fit in fits
    ]
    assert all(torch.equal(value, statistics[1][name]) for name, value in statistics[0].items())


def _normal(norm: Any, value: Tensor) -> Tensor:
    return F.batch_norm(value, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)


@pytest.mark.parametrize("statistics", ["batch", "forward_batch", "running"])
def test_statistics_on_the_way_back(statistics: str) -> None:
    use = ck.use("reverse_pass", activation=True, layers=["layer1.0.conv1"], bn_reverse=statistics)
    losses = quick(steps=1).fit([residual()], [use]).history[0]["losses"]
    assert losses["reverse_pass/loss"] > 0


def test_layers_whose_activation_is_not_theirs_are_refused_by_name() -> None:
    with pytest.raises(PluginError) as caught:
        quick(steps=1).fit([residual()], [ck.use("reverse_pass", activation=True)])
    message = str(caught.value)
    assert "'layer1.0.conv2' is activated together with others" in message
    assert "Use activation=False" in message


@pytest.mark.parametrize(
    ("model", "layers"),
    [("test_efficientnet", ["blocks.1.0.conv_exp"]), ("test_vit", ["blocks.0.mlp.fc1"])],
)
def test_layers_of_networks_of_timm_are_resolved(model: str, layers: list[str]) -> None:
    task = ck.Task("a", data_set("a"), model, "forward_features", size=160 if "vit" in model else 32)
    fit = quick(steps=1, batch_size=4).fit([task], [ck.use("reverse_pass", activation=True, layers=layers)])
    assert fit.history[0]["losses"]["reverse_pass/loss"] > 0


@pytest.mark.parametrize("variant", ["full", "first"])
def test_a_network_that_is_no_chain_is_refused_with_the_other_variant(variant: str) -> None:
    with pytest.raises(PluginError, match=r'needs a chain.*variant="local"'):
        quick(steps=1).fit([residual()], [ck.use("reverse_pass", variant=variant)])


def test_layers_of_a_chain_can_be_chosen() -> None:
    def loss(**settings: Any) -> float:
        use = ck.use("reverse_pass", variant="full", **settings)
        return quick(steps=1).fit([chain()], [use]).history[0]["losses"]["reverse_pass/loss"]

    first = loss(layers=["blocks.0.conv"])
    assert first == pytest.approx(
        quick(steps=1)
        .fit([chain()], [ck.use("reverse_pass", variant="first")])
        .history[0]["losses"]["reverse_pass/loss"]
    )
    whole = loss()
    assert whole == pytest.approx(first + loss(layers=["!blocks.0.conv"]), rel=1e-5)
    assert loss(layer_weights={"*": 0.5}) == pytest.approx(0.5 * whole, rel=1e-5)
    with pytest.raises(PluginError, match=r"'block' matches no layer of the chain of task 'a'; near it"):
        loss(layers=["block"])
    with pytest.raises(PluginError, match=r"exclude all layers of the chain of task 'a': blocks\.0\.conv"):
        loss(layers=["!*"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "full", "activation": True}, "activation applies only to variant='local'"),
        ({"variant": "first", "layers": ["conv1"]}, "layers has no effect with variant='first'"),
        ({"bn_reverse": "running"}, "bn_reverse and output_activation have no effect with variant='local'"),
        ({"output_activation": "relu"}, "only the linear part of each layer"),
        ({"variant": "full", "sample_images": 0.5}, "requires variant='local' without activation"),
        ({"activation": True, "sample_images": 0.5}, "requires variant='local' without activation"),
    ],
)
def test_settings_that_would_not_be_heeded_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CompatkitError, match=message):
        reverse_pass(**settings)
