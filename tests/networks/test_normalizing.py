"""Networks with layer or instance normalization, or with features of unit length: by hand, and as parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit_plugins.networks.layers import UnitLength, norm_layer
from compatkit_plugins.networks.residual import resnet8_cifar, resnet20_cifar

X = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
AXES = {"layer": (1, 2, 3), "instance": (2, 3)}


@pytest.mark.parametrize("name", AXES)
def test_each_image_is_normalized_by_itself(name: str) -> None:
    layer, axes = norm_layer("it", name, 4), AXES[name]
    nn.init.uniform_(layer.weight, 0.5, 1.5)  # type: ignore[arg-type]
    wide = X.double()
    spread, mean = torch.var_mean(wide, dim=axes, correction=0, keepdim=True)
    expected = (wide - mean) / (spread + 1e-5).sqrt() * layer.weight.double()[:, None, None]  # type: ignore[operator, union-attr]
    torch.testing.assert_close(layer(X).double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer(X), layer.eval()(X)) and not list(layer.buffers())


@pytest.mark.parametrize(("over", "axes"), [("position", (1,)), ("image", (1, 2, 3))])
def test_features_have_unit_length_and_zeros_stay(over: str, axes: tuple[int, ...]) -> None:
    layer, zero = UnitLength("it", over), torch.zeros(2, 4, 3, 3)
    torch.testing.assert_close(layer(X), X / X.square().sum(dim=axes, keepdim=True).sqrt())
    assert torch.equal(layer(zero), zero)


@pytest.mark.parametrize("norm", ["layer", "instance"])
def test_a_network_has_the_normalization_asked_for_and_the_names_of_the_usual_one(norm: str) -> None:
    network, usual = resnet20_cifar(norm=norm), resnet20_cifar()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    names = {name for name in usual.state_dict() if "running" not in name and "tracked" not in name}
    assert set(network.state_dict()) == names
    with torch.no_grad():
        x = torch.randn(4, 3, 16, 16)
        torch.testing.assert_close(network(x)[:2], network(x[:2]), rtol=1e-4, atol=1e-5)


def test_the_last_step_of_a_stage_makes_unit_length() -> None:
    network = resnet8_cifar(unit_length="layer2")
    features = network.layer2(network.layer1(torch.rand(2, 16, 8, 8)))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(2, 4, 4))
    assert set(network.state_dict()) == set(resnet8_cifar().state_dict())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"norm": "power"}, "'norm' must be one of batch, layer, instance, group; got 'power'"),
        ({"unit_length": "stem"}, "unit_length names a stage .layer1, layer2, layer3."),
        ({"unit_over": "channel"}, "'unit_over' must be one of position, image"),
    ],
)
def test_what_is_not_known_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resnet8_cifar(**kwargs)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer": ("resnet8_cifar", {"norm": "layer"}),
    "instance": ("resnet8_cifar", {"norm": "instance"}),
    "timm": ("resnet10t", {"norm_layer": "groupnorm1"}),
}


@pytest.mark.parametrize("which", OTHERS)
def test_parts_without_batch_normalization_come_back_and_no_policy_matters(
    which: str, tmp_path: Path
) -> None:
    model, kwargs = OTHERS[which]
    registry = ck.Registry.init(tmp_path / "parts")
    tasks = [
        ck.Task(name, data_set(name), model, "layer2", size=16 if which != "timm" else 32, kwargs=kwargs)
        for name in "ab"
    ]
    registry.publish(quick(steps=2).fit(tasks, ["identical_init"]), prefix="nets")
    assert registry.store.manifest("nets/a.extractor").contract.protocol.norm == "none"
    logits = []
    images = tasks[0].data.test
    for policy in ("running", "batch", "mix:16"):
        inputs = images if policy == "mix:16" else None
        made = registry.recombine("nets/a.extractor", "nets/b.head", bn_policy=policy, data=inputs)
        logits.append(made.predict(images).positions)
        result = [finding for finding in made.report.findings if finding.code == "normalization-needed"]
        assert [match.severity for match in result] == ["informs"] and "changes nothing" in result[0].actual
    assert all(torch.equal(logit, logits[0]) for logit in logits)
    cells = registry.matrix("nets/a.extractor", "nets/b.head", [images], bn_policy="mix:16")
    again = registry.matrix("nets/a.extractor", "nets/b.head", [images], bn_policy="running")
    assert again.settings["cells"]["taken"] == 1 and again.cells[0].restricted == cells.cells[0].restricted
