"""Recomputed activations: the same run bit by bit, with less kept for the backward pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import compatkit as ck
from compatkit.errors import TrainingError, UsageError
from compatkit.training import recompute
from compatkit.training.execution_selection import compile_blocker
from compatkit.training.prepare import FitRequest, prepare

DRAWING = {"drop_path_rate": 0.3}
VIT = {"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 32, "proj_drop_rate": 0.2, **DRAWING}
NETWORKS: dict[str, tuple[Any, ...]] = {
    "residual": ("resnet8_cifar", "layer2", 12, {"drop_rate": 0.2}),
    "mobile": ("mobilenetv3_small_050", "blocks.3", 32, DRAWING),
    "transformer": ("vit_tiny_patch16_224", "blocks.1", 32, VIT),
    "canonical": ("vit_tiny_patch16_224", "forward_features", 32, VIT),
    "stopped": ("vit_tiny_patch16_224", "blocks.1", 32, {**VIT, "dynamic_img_size": True}),
    "convnext": ("test_convnext", "stages.1", 32, DRAWING),
}


def task(network: str = "residual", **settings: Any) -> ck.Task:
    model, cut, size, kwargs = NETWORKS[network]
    data = data_set("a", count=24, channels=3, size=(size, size))
    return ck.Task("a", data, model, cut, size=size, kwargs=kwargs, **settings)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_is_bit_for_bit_the_run_without_it(network: str) -> None:
    """With dropout and stochastic depth, which draw the same; running statistics see each batch once."""
    plain, less = (
        quick(steps=2, lr=1e-3).fit([task(network, recompute_activations=on)]) for on in (False, True)
    )
    assert same_parts(plain, less) and plain.history == less.history and plain.plan == less.plan
    counts = [v for k, v in less.weights("a").items() if k.endswith("num_batches_tracked")]
    assert all(int(count) == 2 for count in counts) and (counts or network not in ("residual", "mobile"))


@pytest.mark.parametrize(
    ("settings", "uses"),
    [
        ({"accumulate": 2}, ["rotation_prediction"]),
        ({"precision": "bf16"}, ["contrastive"]),
        ({}, [ck.use("reverse_pass", balance="gradient")]),
    ],
)
def test_it_is_so_with_further_views_pieces_bf16_and_recorded_layers(
    settings: dict[str, Any], uses: list[Any]
) -> None:
    """Balanced gradients go backward twice, so that blocks are recomputed twice."""
    network = "residual"
    plain, less = (
        quick(steps=2, lr=1e-3, **settings).fit([task(network, recompute_activations=on)], uses)
        for on in (False, True)
    )
    assert same_parts(plain, less) and plain.history == less.history


def test_frozen_stages_keep_their_statistics_when_recomputed() -> None:
    plain, less = (
        quick(steps=2).fit([task(freeze_stages=2, recompute_activations=on)]) for on in (False, True)
    )
    assert same_parts(plain, less)


def kept_bytes(chosen: ck.Task) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without weights."""
    with prepare(FitRequest(quick(steps=1), [chosen])) as prepared:
        loop, state = prepared.loop, prepared.loop.setup.tasks["a"]
        batch = loop.begin(loop.task_loops["a"], 0).batch
        parts = nn.ModuleList([state.extractor, state.head])
        own = {tensor.untyped_storage().data_ptr() for tensor in (*parts.parameters(), *parts.buffers())}
        saved: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        for module in parts.modules():  # what is recomputed keeps its input outside of autograd
            if "forward" in module.__dict__:
                module.register_forward_pre_hook(lambda _, inputs: [keep(x) for x in inputs] and None)
        with saved_tensors_hooks(keep, lambda value: value):
            F.cross_entropy(state.head(state.extractor(batch.images)), batch.labels)
        return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize(("network", "most"), [("residual", 0.6), ("mobile", 0.5), ("transformer", 0.4)])
def test_less_is_kept_for_the_backward_pass(network: str, most: float) -> None:
    assert kept_bytes(task(network, recompute_activations=True)) < most * kept_bytes(task(network))


def test_modules_are_as_before_after_the_run_and_copies_are_their_own() -> None:
    with prepare(FitRequest(quick(steps=1), [task(recompute_activations=True)])) as prepared:
        state = prepared.loop.setup.tasks["a"]
        wrapped = [name for name, module in state.extractor.named_modules() if "forward" in module.__dict__]
        assert wrapped == ["layer1.0", "layer2.0"]
        copied = copy.deepcopy(state.extractor)
        with torch.no_grad():
            copied.get_submodule("layer1.0.conv1").weight.zero_()
        images = torch.randn(8, 3, 12, 12)
        assert not torch.equal(copied(images), state.extractor(images))
    assert not any("forward" in module.__dict__ for module in state.extractor.modules())


def test_a_block_that_a_stopped_extractor_leaves_is_taken_apart() -> None:
    """Its forward pass never comes to its end."""
    with prepare(FitRequest(quick(steps=1), [task("stopped")])) as prepared:
        state = prepared.loop.setup.tasks["a"]
        assert state.extractor_blueprint.approach == "stopped"
        names = [name for name, _ in state.extractor.named_parameters()]
        layers = {name: int(name.split(".")[1]) for name in names if name.startswith("blocks.")}
        for stop, last in (("blocks.1", ["blocks.1"]), ("blocks.1.mlp.fc1", ["blocks.1.attn"])):
            result = [name for name, _ in recompute._blocks_in(state.extractor, "", layers, stop)]
            assert result == ["blocks.0", *last]


def test_weights_that_change_before_the_backward_pass_are_noticed() -> None:
    """Recomputed with other weights, gradients would be wrong in silence."""
    with prepare(FitRequest(quick(steps=1), [task(recompute_activations=True)])) as prepared:
        state = prepared.loop.setup.tasks["a"]
        images = torch.randn(8, 3, 12, 12)
        other = {k: v.detach().clone().requires_grad_() for k, v in state.extractor.named_parameters()}
        loss = torch.func.functional_call(state.extractor, other, images).sum()
        with pytest.raises(TrainingError, match=r"'layer2.0' cannot be recomputed") as caught:
            loss.backward()
        assert caught.value.subject == "layer2.0"


def test_steps_that_recompute_are_neither_compiled_nor_captured() -> None:
    with prepare(FitRequest(quick(steps=1), [task(recompute_activations=True)])) as prepared:
        loop = prepared.loop
        assert "'a' recomputes its activations" in str(compile_blocker(loop))


def test_what_cannot_be_recomputed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"recompute_activations": True, "size": 32}
    with pytest.raises(
        UsageError, match=r"recompute_activations needs .* group_matcher, which lenet"
    ) as caught:
        quick(steps=0).fit([ck.Task("a", data_set("a", size=(32, 32)), "lenet", "conv2", **settings)])
    assert caught.value.subject == "lenet"
    with pytest.raises(UsageError, match=r"passes='fused' was asked for.*activations are recomputed"):
        quick(steps=1, passes="fused").fit([task(recompute_activations=True)], ["rotation_prediction"])
    monkeypatch.setattr(recompute, "_blocks_in", lambda *args: iter(()))
    with pytest.raises(UsageError, match=r"needs blocks .* resnet8_cifar of task 'a' has none") as caught:
        quick(steps=0).fit([task(recompute_activations=True)])
    assert caught.value.subject == "a"
