"""Frozen stages: neither weights nor statistics of them move, wherever the network is cut; contracts say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from timm.models import group_parameters
from torch.nn.modules.batchnorm import _BatchNorm

import compatkit as ck
from compatkit.adapters.blueprints import build_pair
from compatkit.contracts.contract_rules import check_new_contract
from compatkit.errors import FormatError, UsageError
from compatkit.reports.contracts import summary
from compatkit.training.prepare import FitRequest, prepare

MOBILE = ("mobilenetv3_small_050", "blocks.3", 32, {})
NETWORKS: dict[str, tuple[Any, ...]] = {
    "residual": ("resnet8_cifar", "layer2", 12, {}),
    "mobile": MOBILE,
    "cut early": ("mobilenetv3_small_050", "blocks.0", 32, {}),
    "transformer": (
        "vit_tiny_patch16_224",
        "forward_features",
        32,
        {"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 32},
    ),
}


def task(network: str = "residual", **settings: Any) -> ck.Task:
    model, cut, size, kwargs = NETWORKS[network]
    data = data_set("a", count=24, channels=3, size=(size, size))
    return ck.Task("a", data, model, cut, size=size, kwargs=kwargs, **settings)


def whole_state(fit: ck.Fit) -> dict[str, torch.Tensor]:
    return fit.weights("a")


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_stages_stay_and_all_others_move(network: str) -> None:
    """Also where they reach into the head, and through views that are normalized by themselves."""
    frozen = task(network, freeze_stages=2)
    start = whole_state(quick(steps=0).fit([frozen]))
    fit = quick(steps=2, optimizer="adamw", weight_decay=0.1, ema=0.5).fit([frozen], ["rotation_prediction"])
    state, ended, averages = fit.tasks["a"], whole_state(fit), whole_state(fit.averaged())
    whole = build_pair(state.extractor_blueprint, state.head_blueprint, seed=0)[0]
    stages = group_parameters(whole, whole.group_matcher(coarse=True), reverse=True)  # type: ignore[operator]
    norms = {name for name, module in whole.named_modules() if isinstance(module, _BatchNorm)}
    for key, value in start.items():
        layer, _, last = key.rpartition(".")
        stage = stages.get(key, stages.get(f"{layer}.weight", 0))
        same = torch.equal(value, ended[key])
        assert same == (stage < 2), (key, stage)
        assert not same or torch.equal(value, averages[key])
        assert layer not in norms or last != "running_mean" or same == (stage < 2)
    assert {
        name
        for part in (state.extractor, state.head)
        for name, parameter in part.named_parameters()
        if not parameter.requires_grad
    } == {name for name, stage in stages.items() if stage < 2}


def test_what_is_frozen_has_no_gradient_and_no_optimizer() -> None:
    with prepare(FitRequest(quick(steps=1), [task(freeze_stages=2)])) as prepared:
        loop, state = prepared.loop, prepared.loop.setup.tasks["a"]
        moved = {id(p) for o in loop.optimizers.values() for g in o.param_groups for p in g["params"]}
        content = [
            parameter
            for name, parameter in state.extractor.named_parameters()
            if name.startswith(("conv1", "layer1"))
        ]
        assert content and moved.isdisjoint(map(id, content))
        batch = loop.begin(loop.task_loops["a"], 0).batch
        state.head(state.extractor(batch.images)).sum().backward()
        assert all(parameter.grad is None for parameter in content)
        norms = [name for name, module in state.extractor.named_modules() if module in state.frozen_norms]
        assert norms == ["bn1", "layer1.0.bn1", "layer1.0.bn2"]
        assert (
            not any(frozen_norm.training for frozen_norm in state.frozen_norms)
            and state.extractor.layer2[0].bn1.training
        )


def test_frozen_norms_see_further_views_as_they_see_the_batch() -> None:
    with prepare(FitRequest(quick(steps=1), [task(freeze_stages=2)])) as prepared:
        loop = prepared.loop
        step = loop.begin(loop.task_loops["a"], 0)
        seen = []
        norm = step.task.extractor.get_submodule("layer1.0.bn1")
        norm.register_forward_hook(lambda module, inputs, output: seen.append(module.training))
        step.extract(step.batch.images, write_statistics=False)
        step.extract(step.batch.images, write_statistics=True)
        assert seen == [False, False]


@pytest.mark.parametrize(("network", "available"), [("residual", 4), ("mobile", 7), ("transformer", 4)])
def test_more_stages_than_there_are_is_refused_with_their_count(network: str, available: int) -> None:
    with pytest.raises(
        UsageError, match=rf"freeze_stages={available + 1}; .* has {available} stages before"
    ) as caught:
        quick(steps=0).fit([task(network, freeze_stages=available + 1)])
    assert caught.value.subject == "a" and caught.value.code == "usage"
    fit = quick(steps=1).fit([task(network, freeze_stages=available)])
    assert any(parameter.requires_grad for parameter in fit.tasks["a"].head.parameters())


def test_what_cannot_be_frozen_so_is_refused() -> None:
    with pytest.raises(UsageError, match="'freeze_stages' must be a whole number from 0 up"):
        task(freeze_stages=-1)
    with pytest.raises(UsageError, match=r"freeze_stages needs .* group_matcher, which lenet"):
        quick(steps=0).fit([ck.Task("a", data_set("a", size=(32, 32)), "lenet", "conv2", freeze_stages=1)])


def test_run_and_contract_state_it_and_the_start_is_what_it_was(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    plain, fit = (quick(steps=1).fit([task(freeze_stages=count)]) for count in (0, 2))
    assert fit.run["tasks"][0]["frozen_stages"] == 2 and "frozen_stages" not in plain.run["tasks"][0]
    published = registry.publish(fit, prefix="frozen")
    usual = registry.publish(plain, prefix="plain")
    for side in ("a.extractor", "a.head"):
        manifest = registry.store.manifest(published[side])
        assert manifest.contract.protocol.frozen_stages == 2
        assert "first 2 stages of the network kept their initial weights" in summary(manifest)["frozen"]
        anchors = registry.store.manifest(usual[side]).contract.protocol.anchors
        assert manifest.contract.protocol.anchors == anchors  # both began at the same weights
        assert registry.store.manifest(usual[side]).contract.protocol.frozen_stages == 0
    state = registry.load(published["a.extractor"]).state_dict()
    assert all(
        torch.equal(state[name], value) for name, value in fit.tasks["a"].extractor.state_dict().items()
    )
    again = registry.task("b", data_set("b", channels=3), extractor=published["a.extractor"], freeze_stages=3)
    more = quick(steps=1).fit([again]).tasks["b"].extractor.state_dict()
    assert all(torch.equal(more[name], value) for name, value in state.items())


def test_a_contract_with_less_than_no_stage_is_none(tmp_path: Path) -> None:
    import attrs

    registry = ck.Registry.init(tmp_path / "parts")
    fit = registry.publish(quick(steps=0).fit([task()]), prefix="a")
    manifest = registry.store.manifest(fit["a.extractor"])
    wrong = attrs.evolve(
        manifest.contract, protocol=attrs.evolve(manifest.contract.protocol, frozen_stages=-1)
    )
    with pytest.raises(FormatError, match=r"protocol\.frozen_stages: expected int >= 0, got -1"):
        check_new_contract(wrong, manifest.blueprint, "manifest")
