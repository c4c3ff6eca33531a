"""Optimizers by timm's names: timm's own steps on the uncut network, in timm's groups, and resumed bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts
from timm.optim import create_optimizer_v2, list_optimizers, param_groups_layer_decay
from torch import nn

import compatkit as ck
from compatkit.adapters.blueprints import build_pair
from compatkit.errors import UsageError
from compatkit.training.execution_selection import capture_blocker
from compatkit.training.optim import set_lr
from compatkit.training.prepare import FitRequest, prepare

VIT = {"embed_dim": 24, "depth": 3, "num_heads": 2}
NETWORKS: dict[str, tuple[Any, ...]] = {
    "residual": ("resnet8_cifar", "layer2", 12, {}),
    "mobile": ("mobilenetv3_small_050", "blocks.3", 32, {}),
    "transformer": ("vit_tiny_patch16_224", "blocks.1", 32, {**VIT, "img_size": 32}),
    "canonical": ("vit_tiny_patch16_224", "forward_features", 32, {**VIT, "img_size": 32}),
    "stopped": ("vit_tiny_patch16_224", "blocks.1", 32, {**VIT, "img_size": 32, "dynamic_img_size": True}),
    "convnext": ("test_convnext", "stages.1", 32, {}),
}


def task(network: str = "residual", **settings: Any) -> ck.Task:
    model, cut, size, kwargs = NETWORKS[network]
    data = data_set("a", count=24, channels=3, size=(size, size))
    return ck.Task("a", data, model, cut, size=size, kwargs=kwargs, **settings)


def whole_of(state: Any, place: Callable[[nn.Module], nn.Module]) -> nn.Module:
    whole = build_pair(state.extractor_blueprint, state.head_blueprint, seed=0)[0]
    whole.load_state_dict({**state.extractor.state_dict(), **state.head.state_dict()}, strict=True)
    return place(whole).train()


def assert_one_step_is_timms(trained: ck.Task, settings: dict[str, Any], timms: dict[str, Any]) -> None:
    trainer = quick(steps=3, schedule="constant", lr=1e-2, **settings)
    with prepare(FitRequest(trainer, [trained])) as prepared:
        loop, state = prepared.loop, prepared.loop.setup.tasks["a"]
        whole = whole_of(state, loop.setup.precision.place)
        assert {n for p in (state.extractor, state.head) for n, _ in p.named_parameters()} == {
            name for name, _ in whole.named_parameters()
        }
        optimizer = create_optimizer_v2(whole, lr=1e-2, momentum=0.9, **timms)
        for group in optimizer.param_groups:  # as timm's schedulers do
            group["lr"] *= group.get("lr_scale", 1.0)
        for number in range(2):
            batch = loop.begin(loop.task_loops["a"], number).batch
            torch.manual_seed(0)
            F.cross_entropy(whole(batch.images), batch.labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.step(state, number)
        ours = {**state.extractor.state_dict(), **state.head.state_dict()}
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        *((name, "residual") for name in ("adamw", "lion", "lamb", "lookahead_adamw", "rmsproptf")),
        *((name, "transformer") for name in ("muon", "sgdw")),
    ],
)
def test_two_steps_are_timms_on_the_uncut_network(name: str, network: str) -> None:
    assert_one_step_is_timms(
        task(network), {"optimizer": name, "weight_decay": 0.1}, {"opt": name, "weight_decay": 0.1}
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_layer_decay_is_timms(network: str) -> None:
    chosen = {"weight_decay": 0.1, "layer_decay": 0.75}
    assert_one_step_is_timms(task(network), {"optimizer": "adamw", **chosen}, {"opt": "adamw", **chosen})


def test_options_are_given_to_the_optimizer() -> None:
    chosen = {"betas": [0.5, 0.6], "eps": 1e-3}
    assert_one_step_is_timms(
        task(),
        {"optimizer": "adamw", "weight_decay": 0.1, "optimizer_options": chosen},
        {"opt": "adamw", "weight_decay": 0.1, **chosen},
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_scales_and_decay_of_each_parameter_are_timms(network: str, optimizer: str) -> None:
    """The paper's Adam decays everything, by layers too."""
    trainer = quick(
        steps=2, optimizer=optimizer, weight_decay=0.1, layer_decay=0.75, lr=0.5, schedule="constant"
    )
    with prepare(FitRequest(trainer, [task(network)])) as prepared:
        loop, state = prepared.loop, prepared.loop.setup.tasks["a"]
        whole = whole_of(state, nn.Module.train)
        never = getattr(whole, "no_weight_decay", set)() if optimizer == "adamw" else ()
        expected = param_groups_layer_decay(
            whole, 0.1, never, weight_decay_exclude_1d=optimizer == "adamw", layer_decay=0.75
        )
        names = {id(parameter): name for name, parameter in whole.named_parameters()}
        rules = {
            names[id(parameter)]: (group["lr_scale"], group["weight_decay"])
            for group in expected
            for parameter in group["params"]
        }
        ours = {
            id(parameter): n for p in (state.extractor, state.head) for n, parameter in p.named_parameters()
        }
        groups = loop.optimizers["network/a"].param_groups
        loop.rates.set(0)
        result = {
            ours[id(parameter)]: (group["lr_scale"], group["weight_decay"])
            for group in groups
            for parameter in group["params"]
        }
        assert result == rules and len(result) == len(names)
        assert all(group["lr"] == 0.5 * group["lr_scale"] for group in groups)
        assert min(scale for scale, _ in rules.values()) < max(scale for scale, _ in rules.values()) == 1


def test_shared_heads_have_the_whole_rate_and_decay_as_timm_does() -> None:
    trainer = quick(steps=2, optimizer="adamw", weight_decay=0.1, layer_decay=0.75)
    with prepare(FitRequest(trainer, [task()], ["dcc"])) as prepared:
        (groups,) = (
            optimizer.param_groups
            for name, optimizer in prepared.loop.optimizers.items()
            if name.startswith("shared.")
        )
    assert [group["weight_decay"] for group in groups] == [0.0, 0.1]
    assert {group.get("lr_scale", 1.0) for group in groups} == {1.0}
    assert all(
        (parameter.ndim == 1) == (not group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    )


TRIED = (
    "adamw",
    "lion",
    "lamb",
    "muon",
    "lookahead_adamw",
    "adan",
    "adopt",
    "madgrad",
    "adafactorbv",
    "nadam",
)


@pytest.mark.parametrize("name", TRIED)
def test_a_killed_run_ends_bit_for_bit_where_it_would_have_ended(
    name: str, tmp_path: Path, killed: Callable[..., None]
) -> None:
    """Also what is counted outside of tensors: steps of a parameter, of a group, of the slow weights."""
    settings = {"steps": 8, "lr": 1e-3, "optimizer": name, "weight_decay": 0.1, "layer_decay": 0.8}
    whole = quick(**settings).fit([task()])
    path = tmp_path / "run.safetensors"
    trainer = quick(**settings, checkpoint=path, checkpoint_every=4)
    killed(trainer, [task()], after=4)
    assert same_parts(whole, trainer.fit([task()]))


@pytest.mark.parametrize("name", ["lamb", "adan", "muon", "adamw", "lookahead_lion"])
def test_a_trial_leaves_no_trace(name: str) -> None:
    """Counts of groups and moments that do not begin as zeros too."""
    trainer = quick(steps=3, optimizer=name)
    with prepare(FitRequest(trainer, [task()])) as prepared:
        loop, state = prepared.loop, prepared.loop.setup.tasks["a"]
        with loop.restored():
            loop.step(state, 0)
        loop.step(state, 0)
        tried = loop.weights()
        with prepare(FitRequest(trainer, [task()])) as again:
            again.loop.step(again.loop.setup.tasks["a"], 0)
            assert all(torch.equal(value, tried[key]) for key, value in again.loop.weights().items())


def test_timms_optimizers_are_taken_or_refused_with_the_reason() -> None:
    refused = []
    for name in list_optimizers():
        try:
            quick(steps=1, optimizer=name)
        except UsageError as error:
            assert error.subject == name and "Take another" in str(error)
            refused.append(name)
    own = {name for name in list_optimizers() if not name.startswith(("bnb", "fused"))}
    assert own & set(refused) == {"adahessian", "kron", "kronc", "kronw"}
    assert {"adamw", "lion", "lamb", "muon", "adan", "sgdw", "lars"} <= own - set(refused)


@pytest.mark.parametrize(
    ("settings", "message", "subject"),
    [
        ({"optimizer": "loin"}, "There is no optimizer 'loin'. Did you mean 'lion'?", "loin"),
        (
            {"optimizer": "adamw", "optimizer_options": {"beta": [0.9, 0.95]}},
            "'adamw' takes no option 'beta'. Did you mean 'betas'?",
            "beta",
        ),
        (
            {"optimizer": "lion", "optimizer_options": {"eps": 1e-3}},
            "'lion' takes no option 'eps'.",
            "eps",
        ),
        (
            {"optimizer": "adamw", "optimizer_options": {"lr": 1e-3}},
            "takes no option 'lr'. Set the trainer's lr",
            "lr",
        ),
        (
            {"optimizer": "adamw", "optimizer_options": {"betas": [0.9, 1.5]}},
            "does not take optimizer_options={'betas': [0.9, 1.5]}: Invalid beta",
            "adamw",
        ),
        ({"optimizer_options": {"betas": object()}}, "must be a table of JSON values", None),
        ({"layer_decay": 1.5}, "'layer_decay' must be a number above 0 and up to 1", "layer_decay"),
    ],
)
def test_what_no_optimizer_takes_is_refused(
    settings: dict[str, Any], message: str, subject: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        quick(steps=1, **settings)
    assert message in str(caught.value) and caught.value.code == "usage" and caught.value.subject == subject


def test_a_network_that_does_not_tell_its_layers_is_refused() -> None:
    task_ = ck.Task("a", data_set("a", size=(32, 32)), "lenet", "conv2", size=32)
    with pytest.raises(UsageError, match=r"layer_decay needs .* group_matcher, which lenet") as caught:
        quick(steps=1, layer_decay=0.5).fit([task_])
    assert caught.value.subject == "lenet"


def test_the_plan_states_what_is_on() -> None:
    result = quick(
        steps=1, optimizer="adamw", optimizer_options={"betas": (0.9, 0.95)}, layer_decay=0.5
    ).stated()
    assert result["optimizer_options"] == {"betas": [0.9, 0.95]} and result["layer_decay"] == 0.5
    assert {"optimizer_options", "layer_decay"}.isdisjoint(quick(steps=1).stated())


def test_a_step_whose_count_a_graph_cannot_hold_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with prepare(FitRequest(quick(steps=1, optimizer="lion"), [task()])) as prepared:
        monkeypatch.setattr(prepared.loop.setup, "precision", _OnGpu())
        assert "the optimizer 'lion' keeps its step count" in str(
            capture_blocker(prepared.loop, compiles=False)
        )


def test_rates_that_are_tensors_are_filled_in_place_by_the_scale_of_each_group() -> None:
    """As on a GPU, where a captured step reads them."""
    rates = [torch.tensor(1.0), torch.tensor(1.0)]
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "lr": rate, "lr_scale": scale}
        for rate, scale in zip(rates, (0.5, 1.0), strict=True)
    ]
    set_lr(torch.optim.SGD(groups, lr=1.0), 0.1)
    assert [float(rate) for rate in rates] == [pytest.approx(0.05), pytest.approx(0.1)]


class _OnGpu:
    device = "cuda"


def test_a_cosine_may_end_above_zero() -> None:
    falling, above = ck.Schedule("cosine", warmup=2), ck.Schedule("cosine", warmup=2, floor=0.1)
    for step in range(10):
        warm = min(1.0, (step + 1) / 3)
        assert above.at(step, 10) == pytest.approx(warm * (0.1 + 0.9 * falling.at(step, 10) / warm))
    assert above.at(10, 10) == pytest.approx(0.1) and falling.at(10, 10) == 0
    assert "floor" not in quick(steps=1, schedule=falling).stated()["schedule"]
    assert quick(steps=1, schedule=above).stated()["schedule"]["floor"] == 0.1
